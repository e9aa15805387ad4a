"""Which recipients may share a mail: those of one tenant and, if all of them get one reply, of one next hop.

A mail is scanned for one tenant, with that tenant's policy and lists. The first recipient decides whose it is; the
mail server sends to the others in another transaction. If this is wrong, a mail is judged by another tenant's rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.mail.address import KnownDomains, domain_of
from bridge.mail.reply import Reply

OTHER_TENANT = Reply(452, "4.5.3", "Recipients of another tenant: send to them in another transaction")
OTHER_ROUTE = Reply(452, "4.5.3", "Recipients with another route: send to them in another transaction")

Group = tuple[str | None, int]  # tenant, number of the next hop


@dataclass(frozen=True, slots=True)
class RecipientGroups:
    """The groups of recipients by their domain. Empty if all recipients are in one group."""

    by_domain: Mapping[str, Group] = field(default_factory=dict)
    default: Group = (None, 0)
    known: KnownDomains = field(init=False, compare=False, repr=False)  # the domains in `by_domain`

    def __post_init__(self) -> None:
        object.__setattr__(self, "known", KnownDomains(self.by_domain))

    def of(self, address: str) -> Group:
        return self.by_domain.get(domain_of(address), self.default)

    def refusal(self, first: str, address: str) -> Reply | None:
        """The answer to a recipient who is not in the group of the first one."""
        if not self.by_domain or (group := self.of(first)) == (other := self.of(address)):
            return None
        return OTHER_TENANT if group[0] != other[0] else OTHER_ROUTE
