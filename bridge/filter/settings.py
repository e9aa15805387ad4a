"""The filter's settings: what one listener does with mail, and which tenant a recipient belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.filter.policy import Policy
from bridge.mail.address import domain_of
from bridge.mail.envelope import Envelope


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """The configuration of one listener."""

    deadline_s: float
    policy: Policy
    tenant_policies: Mapping[str, Policy] = field(default_factory=dict)  # by tenantUid
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)
    default_tenant: str | None = None
    max_received: int = 99
    refuse_ambiguous_mime: bool = False
    keeps_refused: bool = False  # after a queue: a mail whose content we refuse is quarantined, not bounced
    shadow_percent: float = 0.0  # for this share of the mail, decisions are only logged and counted

    def tenant_of(self, address: str) -> str | None:
        if not self.tenant_by_domain:
            return self.default_tenant
        return self.tenant_by_domain.get(domain_of(address), self.default_tenant)

    def policy_of(self, envelope: Envelope) -> Policy:
        """The tenant's policy if all recipients have the same tenant; otherwise, and before RCPT, the listener's."""
        tenants = {self.tenant_of(address) for address in envelope.addresses}
        own = self.tenant_policies.get(tenants.pop() or "") if len(tenants) == 1 else None
        return own or self.policy
