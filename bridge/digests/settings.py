"""The settings of one recipient's digests: those of their tenant, else those of all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bridge.config.digests import Digests, UserPolicy
from bridge.digests.schedule import Clock
from bridge.digests.why_held import Reason
from bridge.mail.address import domain_of


@dataclass(frozen=True, slots=True)
class TenantSettings:
    tenant: str  # "": no tenant
    schedule: str
    sender: str
    language: str
    templates: Path | None
    notify: tuple[str, ...]
    users: UserPolicy
    allow_by: str = "nobody"  # who may have a sender's mail always delivered: users, administrators or nobody

    def may(self, reason: Reason) -> str:
        """What users may do with such a mail: release, request or nothing."""
        chosen = str(getattr(self.users, reason))
        return "request" if reason is Reason.MALWARE and chosen == "release" else chosen


@dataclass(frozen=True, slots=True)
class DigestSettings:
    config: Digests
    directory: Path  # of the configuration file
    tenant_by_domain: Mapping[str, str]
    hostname: str
    allow_by: Callable[[str | None], str] = lambda tenant: "nobody"
    _cache: dict[str, TenantSettings] = field(default_factory=dict)

    @property
    def clock(self) -> Clock:
        return Clock(self.config.at, self.config.weekday, self.config.time_zone)

    def tenant_of(self, address: str) -> str:
        return self.tenant_by_domain.get(domain_of(address), "")

    def of(self, address: str) -> TenantSettings:
        return self.of_tenant(self.tenant_of(address))

    def of_tenant(self, tenant: str) -> TenantSettings:
        if tenant not in self._cache:
            self._cache[tenant] = self._merged(tenant)
        return self._cache[tenant]

    def _merged(self, tenant: str) -> TenantSettings:
        conf = self.config
        own = next((entry for entry in conf.tenants if entry.uid == tenant), None)
        templates = (own.templates if own else None) or conf.templates
        users = conf.users
        if own is not None:
            users = users.model_copy(update={name: getattr(own.users, name) for name in own.users.model_fields_set})
        return TenantSettings(
            tenant=tenant,
            schedule=(own.schedule if own else None) or conf.schedule,
            sender=(own.from_ if own else None) or conf.from_ or f"quarantine@{self.hostname}",
            language=(own.language if own else None) or conf.languages[0],
            templates=self.directory / templates if templates else None,
            notify=tuple(own.notify if own is not None and own.notify is not None else conf.notify),
            users=users,
            allow_by=self.allow_by(tenant or None),
        )
