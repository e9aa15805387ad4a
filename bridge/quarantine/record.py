"""Kept: one quarantined mail as the store tells it, `<id>.json` and, once somebody acted, `<id>.releases`.

These are the truth and outlive our versions, so reading them forgives: an unknown key is
ignored, a missing one has a default, and a file that is no JSON at all gives a mail of which only
the id and the time are known. It can then still be seen, exported, and released to a named address.
"""

from __future__ import annotations

import email.header
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.header_fields import FOLDED
from bridge.mail.session import Client
from bridge.mail.transaction import Transaction

log = logging.getLogger("bridge.quarantine")

ID = re.compile(r"[0-9A-Za-z]{1,64}")  # what a mail's id looks like; no path can be made of it

KEPT, INTERRUPTED, RELEASED = "kept", "interrupted", "released"
STATES = (KEPT, INTERRUPTED, RELEASED)

_MAX_SUBJECT = 200
_SUBJECT = re.compile(rb"^subject:(%b)" % FOLDED, re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Item:
    """One mail's files, but the mail itself."""

    id: str
    about: bytes  # the .json
    releases: bytes
    kept_at: float  # the time of the .json, for when its content is damaged


@dataclass(frozen=True, slots=True)
class Release:
    """One time somebody sent the mail on. An empty `reply`: it began, and nobody knows how it ended."""

    at: str  # ISO 8601, UTC
    by: str
    to: tuple[str, ...]
    reply: str = ""  # the next hop's

    @property
    def is_done(self) -> bool:
        return self.reply.startswith("2")


@dataclass(frozen=True, slots=True)
class Kept:
    """What a person searches by, and what a release needs."""

    id: str
    time: datetime
    envelope: Envelope = field(default_factory=lambda: Envelope(""))
    client: Client = field(default_factory=Client)
    listener: str = ""
    session: str = ""
    subject: str = ""
    tenant: str = ""
    facts: dict[str, Any] = field(default_factory=dict)  # reason; decision, verdict, tags, ggrid if there was a scan
    size: int = 0  # of the mail as it came
    head_size: int = 0  # the .eml starts with this many bytes of ours
    releases: tuple[Release, ...] = ()
    is_damaged: bool = False  # the .json could not be read

    @property
    def decision(self) -> str:
        return str(self.facts.get("decision") or self.facts.get("reason") or "")

    @property
    def tags(self) -> tuple[str, ...]:
        tags = self.facts.get("tags")
        return tuple(map(str, tags)) if isinstance(tags, list) else ()

    @property
    def state(self) -> str:
        if any(release.is_done for release in self.releases):
            return RELEASED
        return INTERRUPTED if self.releases and not self.releases[-1].reply else KEPT

    def to_dict(self) -> dict[str, Any]:
        """For machines: the .json's keys, and what became of it."""
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
            "releases": [asdict(release) for release in self.releases],
            "damaged": self.is_damaged,
        }


def write(tx: Transaction, head: bytes, facts: dict[str, object], tenant: str | None) -> bytes:
    """What a person searches by, and what a release needs: the whole envelope, and the size of our head."""
    client, envelope = tx.session.client, tx.envelope
    about = {
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
        "listener": tx.session.listener,
        "session": tx.session.id,
        "size": tx.message.size,
        "head_size": len(head),  # the .eml starts with this many bytes of ours
        "facts": facts,
    }
    return json.dumps(about, indent=1, default=str).encode("ascii") + b"\n"


def subject(head: bytes) -> str:
    """The Subject field as a person reads it, cut short."""
    match = _SUBJECT.search(head)
    if match is None:
        return ""
    raw = re.sub(rb"\r\n[ \t]", b" ", match.group(1)[: 4 * _MAX_SUBJECT]).decode("utf-8", "replace")
    try:
        raw = str(email.header.make_header(email.header.decode_header(raw)))
    except Exception:  # a stranger's encoding must not cost his mail: shown as it came
        log.debug("a subject could not be decoded", exc_info=True)
    return " ".join(raw.split())[:_MAX_SUBJECT]


def read(mail_id: str, about: bytes, releases: bytes, kept_at: float) -> Kept:
    """From the files' contents; `kept_at` stands in when the .json does not tell the time."""
    history = read_releases(releases)
    try:
        return _read(mail_id, json.loads(about), history)
    except (ValueError, TypeError, KeyError, AttributeError):
        return Kept(mail_id, datetime.fromtimestamp(kept_at, UTC), releases=history, is_damaged=True)


def _read(mail_id: str, data: dict[str, Any], history: tuple[Release, ...]) -> Kept:
    params = data.get("recipient_parameters") or [[] for _ in data["recipients"]]
    people = [
        Recipient(str(address), tuple(map(str, own)))
        for address, own in zip(data["recipients"], params, strict=True)
    ]  # fmt: skip
    return Kept(
        id=mail_id,
        time=datetime.fromisoformat(data["time"]).astimezone(UTC),
        envelope=Envelope(str(data["sender"]), tuple(people), tuple(map(str, data.get("mail_parameters", [])))),
        client=Client(address=data.get("remote_address"), helo=data.get("helo")),
        listener=str(data.get("listener") or ""),
        session=str(data.get("session") or ""),
        subject=str(data.get("subject") or ""),
        tenant=str(data.get("tenant") or ""),
        facts=dict(data.get("facts") or {}),
        size=int(data.get("size") or 0),
        head_size=int(data.get("head_size") or 0),
        releases=history,
    )


def read_releases(content: bytes) -> tuple[Release, ...]:
    if not content:
        return ()
    try:
        return tuple(
            Release(str(one["at"]), str(one["by"]), tuple(map(str, one["to"])), str(one["reply"]))
            for one in json.loads(content)
        )
    except (ValueError, TypeError, KeyError):
        return (Release("", "unknown", ()),)  # somebody began; whatever it said, it is not lost sight of


def write_releases(releases: Iterable[Release]) -> bytes:
    return json.dumps([asdict(release) for release in releases], indent=1).encode("ascii") + b"\n"
