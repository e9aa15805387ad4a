"""One entry of the history: what is known about one attempt to deliver one mail.

Most values that can be filtered by repeat from mail to mail, so they are stored once, as a `Kind`, and each mail
refers to its kind. `address_keys` are the forms in which an address is found: whole, and by its domain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from bridge.mail.address import comparable_address, comparable_domain
from bridge.quarantine.worst_tags_first import worst_first

ACCEPTED_LATE, REFUSED_LATE = "accepted late", "refused late"  # events: answers of the next hop
MAX_KEY = 400  # characters of an address; PostgreSQL takes 2,700 bytes
_ADDRESSEE = r"""(?:"(?:[^"\\]|\\.)*+"|(?!, |: )[^"])++"""  # a quoted local part may contain both
_ADDRESSEES = re.compile(rf"to {_ADDRESSEE}(?:, {_ADDRESSEE})*+")


class Kind(NamedTuple):
    """What many mails have in common. Everything is text; "" if there is none."""

    listener: str
    tenant: str
    stage: str  # "", or where the mail was refused: connect, mail, rcpt, data
    action: str
    decision: str
    verdict: str
    rule: str
    tags: str  # joined by commas
    would: str  # shadow mode: the action that would have been taken
    late: str
    unscanned: str
    error: str
    list: str
    scanner: str  # the URL of the host that was asked last


class Row(NamedTuple):
    """One mail as it is stored; the order is that of the columns."""

    at: float  # Unix time of the end of its processing
    id: str
    session: str
    client: str
    helo: str
    sender: str
    recipients: str  # one per line
    size: int
    message_id: str
    subject: str
    reply: str
    ggrid: str
    wait_s: float
    scan_s: float
    relay_s: float
    queue_id: str  # the mail server's, before us
    next_id: str  # the next hop's
    attempt: str  # the same for every attempt with this mail; "" if it was not deferred
    mails: int  # more than 1: refusals that share this row
    more: str | None  # JSON of what only a few mails have


@dataclass(frozen=True, slots=True)
class MailEntry:
    """One mail as it is read."""

    row: Row
    kind: Kind
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Sequence[Any]) -> MailEntry:
        """From the columns of its row, then those of its kind."""
        row, kind = Row(*values[: len(Row._fields)]), Kind(*values[len(Row._fields) :])
        return cls(row, kind, {} if row.more is None else json.loads(row.more))

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.row.at, UTC)

    @property
    def recipients(self) -> tuple[str, ...]:
        return tuple(self.row.recipients.split("\n")) if self.row.recipients else ()

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(self.kind.tags.split(",")) if self.kind.tags else ()

    @property
    def why(self) -> str:
        """What explains the action best: the list, the error, the tags, or the rule."""
        kind = self.kind
        if kind.list:
            return f"list {kind.list}"
        if kind.error:
            return kind.error
        return ",".join(worst_first(self.tags, {})) or kind.verdict or kind.decision or kind.rule

    @property
    def shown_sender(self) -> str:
        """Refusals that share an entry, and refused connections, have none; other mail may have the null sender."""
        has_none = self.kind.stage == "connect" or self.row.mails > 1
        return self.row.sender or ("-" if has_none else "<>")

    def without_internals(self) -> MailEntry:
        """For users who see only some tenants' mail: without the names of machines and the entries of lists."""
        more = {name: value for name, value in self.more.items() if name not in ("why", "entry", "entries")}
        return replace(self, kind=self.kind._replace(scanner=""), more=more)

    @property
    def cursor(self) -> str:
        """Where a page ends: the next one begins below this entry."""
        return f"{self.row.at!r}:{self.row.id}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Values that the mail does not have are left out."""
        shown: dict[str, Any] = {"time": self.time.isoformat(timespec="milliseconds")}
        shown |= self.row._asdict() | self.kind._asdict()
        shown |= {"recipients": list(self.recipients), "tags": list(self.tags)}
        for name in ("wait", "scan", "relay"):  # as the log has them
            shown[f"{name}_ms"] = round(shown.pop(f"{name}_s") * 1000, 1)
        del shown["at"], shown["more"]
        if self.row.mails == 1:
            del shown["mails"]
        return {name: value for name, value in shown.items() if value not in ("", [], None)} | self.more


@dataclass(frozen=True, slots=True)
class LaterEvent:
    """What happened to a mail later: released, deleted, reported, listed in a digest, answered by the next hop."""

    at: float
    id: str  # the mail's
    event: str
    by: str = ""
    text: str = ""

    def without_internals(self) -> LaterEvent:
        """For users who see only some tenants' mail: without replies and errors, which may name machines."""
        return replace(self, text=self._addressees)

    @property
    def recipients(self) -> tuple[str, ...]:
        """Those whom it is about, if it names them."""
        return tuple(re.findall(rf"(?:to |, )({_ADDRESSEE})", self._addressees))

    @property
    def _addressees(self) -> str:
        found = _ADDRESSEES.match(self.text)
        return found[0] if found is not None else ""

    def to_dict(self) -> dict[str, Any]:
        time = datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds")
        return {"time": time} | {name: value for name, value in asdict(self).items() if value and name != "at"}


def queue_id_keys(next_id: str) -> list[str]:
    """The keys of a mail that several next hops have: one for each of their queue ids."""
    return [f"next:{queue_id}" for queue_id in next_id.split(",")] if "," in next_id else []


def address_keys(sender: str, recipients: Iterable[str]) -> Iterator[str]:
    """The keys under which the mail is found by its addresses."""
    yield from keys_of_address("from:", sender)
    for recipient in recipients:
        yield from keys_of_address("to:", recipient)


def keys_of_address(role: str, address: str) -> Iterator[str]:
    """`role`: "from:" or "to:"."""
    compared = comparable_address(address)[-MAX_KEY:]  # of a longer one, only the end, which has the domain
    yield role + compared
    _, at, domain = compared.rpartition("@")
    if at:
        yield f"{role}@{domain}"


def key_of(role: str, wanted: str) -> str:
    """The key of an address, a domain or `@domain`; `<>` is the null sender. `role` is `from` or `to`."""
    if wanted in ("", "<>"):
        return f"{role}:"
    if "@" not in wanted.lstrip("@") and not wanted.startswith("~"):  # ~: a pseudonym
        return f"{role}:@{comparable_domain(wanted.lstrip('@'))}"
    return f"{role}:{comparable_address(wanted)[-MAX_KEY:]}"
