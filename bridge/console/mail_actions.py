"""What the console asks to be done with quarantined mail. The command line knows how (`bridge.cli.console`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bridge.console.roles import Person
from bridge.quarantine.record import MailRecord

NOT_USABLE = "the quarantine or the next hop cannot be used at the moment"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one mail."""

    mail_id: str
    text: str
    is_done: bool = True
    brief: str = ""  # the same without machines and paths; "": `text` has none

    def shown_to(self, person: Person) -> str:
        return self.text if person.sees_everything else self.brief or self.text


@dataclass(frozen=True, slots=True)
class Listing:
    """Senders to be blocked or allowed."""

    what: str  # block or allow
    whole_domain: bool = False
    force: bool = False  # also dangerous entries


@dataclass(slots=True)
class ListPlan:
    """What a listing would do."""

    list_name: str
    entries: list[tuple[str, str]] = field(default_factory=list)  # each entry once, and for whom
    dangers: dict[str, str] = field(default_factory=dict)  # entry, and why it is dangerous
    problems: list[Result] = field(default_factory=list)


class MailActions(Protocol):
    """Each blocks, for as long as the store, the next hop or the lists take, and raises BridgeError if nothing works.

    `by` is the person, as the audit trail names them.
    """

    def release(
        self, mails: Sequence[MailRecord], by: str, to: tuple[str, ...] = (), *, even_if_unsure: bool = False
    ) -> list[Result]:
        """To these recipients alone, or to all who do not have it; to those who may have it only if told so."""

    def delete(self, mails: Sequence[MailRecord], by: str) -> list[Result]: ...

    def report(self, mails: Sequence[MailRecord], by: str, kind: str = "ham") -> list[Result]:
        """As `spam`, or as `ham`: not spam."""

    def plan_listing(self, mails: Sequence[MailRecord], by: str, listing: Listing) -> ListPlan:
        """Changes nothing."""

    def list_senders(self, mails: Sequence[MailRecord], by: str, listing: Listing) -> list[Result]: ...
