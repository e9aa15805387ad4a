"""The record of one quarantined mail: its `<id>.json` and, once it was released, its `<id>.releases`.

These files are the truth and outlive our versions, so reading them is lenient: an unknown key is
ignored, a missing key has a default, and of a file that is not JSON only the id and the time are known.
Such a mail can still be listed, exported, and released to a named address.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from bridge.api.scanning import Scoring, readable_reasons, readable_scoring
from bridge.mail.address import domain_of
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.session import Client
from bridge.mail.transaction import Transaction
from bridge.mime.words import subject_text

ID = re.compile(r"[0-9A-Za-z]{1,64}")  # a mail's id; cannot form a path

KEPT, INTERRUPTED, UNSURE, RELEASED = "kept", "interrupted", "unsure", "released"
STATES = (KEPT, INTERRUPTED, UNSURE, RELEASED)

MAX_ATTEMPTS = 100  # recorded per mail

_SUBJECT = re.compile(rb"^subject:([^\r\n]{0,800}(?:\r\n[ \t][^\r\n]{0,800}){0,99})", re.IGNORECASE | re.MULTILINE)

# The link of the users' own digests: if one is held, no other digest lists it (`bridge.digests.listing`).
_UNSUBSCRIBE = re.compile(rb"^list-unsubscribe:[ \t]*<[^>\s]{1,500}/u/([\w.-]{40,1000})>", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it is stored."""

    id: str
    metadata: bytes  # the .json
    releases: bytes
    kept_at: float  # Unix time of the .json, used if its content is damaged
    version: str | None = None  # of the .releases: changes with each write; "": there is none; None: unknown


@dataclass(frozen=True, slots=True)
class ReleaseAttempt:
    """One attempt to send the mail on. An empty `reply` means that it began and its result is unknown."""

    at: str  # ISO 8601, UTC
    by: str
    to: tuple[str, ...]
    reply: str = ""  # the next hop's
    delivered: tuple[str, ...] = ()  # recipients who have the mail by now; in old records, only if some do not
    unsure: tuple[str, ...] = ()  # recipients who may have it: it was sent, and the next hop's answer was lost

    @property
    def is_done(self) -> bool:
        return self.reply.startswith("2")

    @property
    def time(self) -> datetime | None:
        """None in a damaged record."""
        try:
            return datetime.fromisoformat(self.at).astimezone(UTC)
        except (ValueError, OverflowError):
            return None

    @property
    def local_time(self) -> str:
        """For people."""
        return self.at if self.time is None else self.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")

    @property
    def unknown(self) -> tuple[str, ...]:
        """The recipients for whom its result is unknown."""
        return self.unsure if self.reply else self.to


@dataclass(frozen=True, slots=True)
class MailRecord:
    """What operators search by, and what a release needs."""

    id: str
    time: datetime
    envelope: Envelope = field(default_factory=lambda: Envelope(""))
    client: Client = field(default_factory=Client)
    is_client_named: bool = True  # whether the client was named to the scanner; unknown in old records
    listener: str = ""
    session: str = ""
    subject: str = ""
    unsubscribe: str = ""  # what may be the token of a digest
    tenant: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # reason; after a scan also decision, verdict, tags, ggrid
    size: int = 0  # of the mail as received
    head_size: int = 0  # bytes that we added at the start of the .eml
    releases: tuple[ReleaseAttempt, ...] = ()
    is_damaged: bool = False  # the .json could not be read

    @property
    def decision(self) -> str:
        return str(self.facts.get("decision") or self.facts.get("reason") or "")

    @property
    def is_copy(self) -> bool:
        """Kept for operators (`keep_copy`), while the mail itself was handed on, refused or dropped."""
        return bool(self.facts.get("copy_of"))

    @property
    def tags(self) -> tuple[str, ...]:
        tags = self.facts.get("tags")
        return tuple(map(str, tags)) if isinstance(tags, list) else ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the scanner suspects it, in sentences for people."""
        return readable_reasons(self.facts.get("reasons"))

    @property
    def scoring(self) -> Scoring | None:
        """How the scanner came to its decision; None if it did not say."""
        return readable_scoring(self.facts.get("scoring"))

    @property
    def delivered(self) -> frozenset[str]:
        """Everyone to whom the mail was released, original recipient or not."""
        return delivered(self.releases)

    def lacking(self, recipients: tuple[Recipient, ...]) -> tuple[Recipient, ...]:
        """Those who do not have the mail. A local part may depend on letter case, a domain does not."""
        if not self.releases:
            return recipients
        have = set(map(_person, self.delivered))
        return tuple(recipient for recipient in recipients if _person(recipient.address) not in have)

    def uncertain(self, addresses: Iterable[str]) -> ReleaseAttempt | None:
        """The last attempt after which one of these may have the mail: it was cut off, or its answer was lost.

        A damaged record does not say whom an attempt was for: it may be anyone.
        """
        people = set(map(_person, addresses))
        for attempt in reversed(self.releases):
            is_lost = not attempt.reply and not attempt.to
            if is_lost or not people.isdisjoint(map(_person, attempt.unknown)):
                return attempt
        return None

    @property
    def state(self) -> str:
        """Released only when every original recipient has the mail; if they are unknown, after any release."""
        if self.envelope.recipients:
            is_released = not self.lacking(self.envelope.recipients)
        else:
            is_released = any(attempt.is_done for attempt in self.releases)
        if is_released:
            return RELEASED
        if self.releases and not self.releases[-1].reply:
            return INTERRUPTED
        last = self._last_uncertain()
        if last is None:
            return KEPT
        return UNSURE if last.reply else INTERRUPTED

    def _last_uncertain(self) -> ReleaseAttempt | None:
        if not self.envelope.recipients:
            return self.uncertain(address for attempt in self.releases for address in attempt.unknown)
        lacking = self.lacking(self.envelope.recipients)
        return self.uncertain(recipient.address for recipient in lacking)

    def to_dict(self) -> dict[str, Any]:
        """For `--json`: the keys of the .json, the state and the releases."""
        return {
            "id": self.id,
            "time": self.time.isoformat(timespec="milliseconds"),
            "state": self.state,
            "sender": self.envelope.sender,
            "recipients": list(self.envelope.addresses),
            "subject": self.subject,
            "tenant": self.tenant or None,
            "listener": self.listener,
            "session": self.session,
            "remote_address": self.client.address,
            "helo": self.client.helo,
            "size": self.size,
            "decision": self.decision,
            "facts": self.facts,
            "releases": [asdict(attempt) for attempt in self.releases],
            "damaged": self.is_damaged,
        }


def _person(address: str) -> tuple[str, str]:
    local, _, domain = address.rpartition("@")
    return local, domain_of(address) or domain


def write(tx: Transaction, head: bytes, facts: dict[str, object], tenant: str | None) -> bytes:
    """The content of a new .json."""
    client, envelope = tx.session.client, tx.envelope
    metadata = {
        "id": tx.id,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "sender": envelope.sender,
        "recipients": list(envelope.addresses),
        "mail_parameters": list(envelope.params),
        "recipient_parameters": [list(recipient.params) for recipient in envelope.recipients],
        "subject": subject(tx.message.head()),
        "tenant": tenant,
        "remote_address": client.address,
        "helo": client.helo,
        "client_named": tx.session.is_told,
        "listener": tx.session.listener,
        "session": tx.session.id,
        "size": tx.message.size,
        "head_size": len(head),
        "facts": facts,
    }
    if token := unsubscribe(tx.message.head()):
        metadata["unsubscribe"] = token
    return json.dumps(metadata, indent=1, default=str).encode("ascii") + b"\n"


def subject(head: bytes) -> str:
    """The decoded Subject field, truncated."""
    match = _SUBJECT.search(head)
    return "" if match is None else subject_text(match.group(1))


def unsubscribe(head: bytes) -> str:
    match = _UNSUBSCRIBE.search(head)
    return "" if match is None else match.group(1).decode("ascii", "replace")


def read(stored: StoredRecord) -> MailRecord:
    """Never raises: a damaged record has only its id and time."""
    releases = read_releases(stored.releases)
    try:
        return _read(stored.id, json.loads(stored.metadata), releases)
    except (ValueError, TypeError, KeyError, AttributeError):
        return MailRecord(stored.id, datetime.fromtimestamp(stored.kept_at, UTC), releases=releases, is_damaged=True)


def _read(mail_id: str, data: dict[str, Any], releases: tuple[ReleaseAttempt, ...]) -> MailRecord:
    params = data.get("recipient_parameters") or [[] for _ in data["recipients"]]
    recipients = [
        Recipient(str(address), tuple(map(str, own)))
        for address, own in zip(data["recipients"], params, strict=True)
    ]  # fmt: skip
    return MailRecord(
        id=mail_id,
        time=datetime.fromisoformat(data["time"]).astimezone(UTC),
        envelope=Envelope(str(data["sender"]), tuple(recipients), tuple(map(str, data.get("mail_parameters", [])))),
        client=Client(address=data.get("remote_address"), helo=data.get("helo")),
        is_client_named=data.get("client_named") is not False,
        listener=str(data.get("listener") or ""),
        session=str(data.get("session") or ""),
        subject=str(data.get("subject") or ""),
        unsubscribe=str(data.get("unsubscribe") or ""),
        tenant=str(data.get("tenant") or ""),
        facts=dict(data.get("facts") or {}),
        size=int(data.get("size") or 0),
        head_size=int(data.get("head_size") or 0),
        releases=releases,
    )


def read_releases(content: bytes) -> tuple[ReleaseAttempt, ...]:
    if not content:
        return ()
    try:
        return tuple(map(_read_attempt, json.loads(content)))
    except (ValueError, TypeError, KeyError):
        return (ReleaseAttempt("", "unknown", ()),)  # damaged, but there was an attempt: shown as interrupted


def _read_attempt(entry: dict[str, Any]) -> ReleaseAttempt:
    return ReleaseAttempt(
        at=str(entry["at"]),
        by=str(entry["by"]),
        to=tuple(map(str, entry["to"])),
        reply=str(entry["reply"]),
        delivered=tuple(map(str, entry.get("delivered") or ())),
        unsure=tuple(map(str, entry.get("unsure") or ())),
    )


def delivered(releases: Iterable[ReleaseAttempt]) -> frozenset[str]:
    """Everyone to whom these attempts have delivered the mail."""
    return frozenset(
        address
        for attempt in releases
        for address in (*attempt.delivered, *(attempt.to if attempt.is_done else ()))
    )  # fmt: skip


def begun(releases: tuple[ReleaseAttempt, ...], attempt: ReleaseAttempt) -> tuple[ReleaseAttempt, ...]:
    """With an attempt whose result is not known yet."""
    return _bounded((*releases, attempt))


def answered(
    releases: tuple[ReleaseAttempt, ...], attempt: ReleaseAttempt, result: ReleaseAttempt
) -> tuple[ReleaseAttempt, ...]:
    """With the result of an attempt in its place, or at the end if another process has overwritten it."""
    result = replace(result, delivered=tuple(sorted(delivered(releases) | set(result.delivered))))
    if attempt not in releases:
        return _bounded((*releases, result))
    return tuple(result if each == attempt else each for each in releases)


def _bounded(releases: tuple[ReleaseAttempt, ...]) -> tuple[ReleaseAttempt, ...]:
    """Leaves out the oldest, first those whose result is known: the others keep the mail from being sent twice."""
    surplus = len(releases) - MAX_ATTEMPTS
    if surplus <= 0:
        return releases
    clear = [number for number, each in enumerate(releases) if each.reply and not each.unsure]
    unknown = [number for number in range(len(releases)) if number not in clear]
    left_out = set([*clear[:-1], *unknown][:surplus])  # the last clear one names all who received it
    return tuple(each for number, each in enumerate(releases) if number not in left_out)


def write_releases(releases: Iterable[ReleaseAttempt]) -> bytes:
    return json.dumps([asdict(attempt) for attempt in releases], indent=1).encode("ascii") + b"\n"
