"""Event: one thing that happened, as other programs read it.

An event is four facts: an id that stays the same however often it is sent, a time, a type, and its data. A mail's data
comes from the same record as its log line, and addresses are shown as in the log (`log.addresses`). The content and
subject of a mail are never part of an event. Knows nothing of sinks. If this is wrong, a receiver reads something other
than what the client was told, or reads an address that was to be hidden.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from bridge.api.json_bytes import json_bytes
from bridge.filter.outcome import Outcome, Record
from bridge.mail.action import Action
from bridge.mail.reply import Reply
from bridge.observe.metrics import reason_of
from bridge.observe.redaction import FULL, Redaction
from bridge.runtime.value import value

MAX_ABOUT = 64  # characters that are stored; the digest of a reported mail is longer
MAX_RECIPIENTS = 100  # named in one event; `recipient_count` has the number
_MAX_TAGS = 100
_MAX_TEXT = 1000  # characters of one value


class EventType(StrEnum):
    DECIDED = "mail.decided"
    REFUSED = "mail.refused"
    QUARANTINED = "mail.quarantined"
    RELEASED = "mail.released"
    REPORTED = "mail.reported"
    LIST_CHANGED = "list.changed"
    SCANNER_STATE = "scanner.state"


TEST = "test"  # sent only by `scanbridge events test`


class ScannerState(StrEnum):
    UP = "up"
    DOWN = "down"
    REFUSED = "token_refused"
    SATURATED = "saturated"


@value
class Event:
    type: str
    data: dict[str, Any]
    time: float  # seconds since 1970
    id: str
    about: str  # events about the same thing stay in order: a mail (its id), a list, a scanner host

    @classmethod
    def new(cls, type_: str, data: dict[str, Any], time: float, about: str) -> Event:
        return cls(type_, data, time, _new_id(), about[:MAX_ABOUT])

    def to_json(self, source: str) -> bytes:
        """Strict JSON in UTF-8: bytes that are not text (a HELO may have some) become `?`."""
        moment = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
        whole = {"id": self.id, "time": moment, "type": str(self.type), "source": source, "data": self.data}
        return json_bytes(whole)


def _new_id() -> str:
    """A random UUID (version 4); `uuid.uuid4` takes five times as long."""
    drawn = os.urandom(16).hex()
    variant = "89ab"[int(drawn[16], 16) & 3]
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


# Mail


def types_of(record: Record) -> list[EventType]:
    """The events that one finished mail, or one refused recipient, gives rise to, in order."""
    found = [] if record.at else [EventType.DECIDED]
    outcome = record.outcome
    if outcome is None:
        return found
    if not outcome.reply.is_success or any(not reply.is_success for reply in outcome.replies):
        found.append(EventType.REFUSED)
    if record.is_kept or outcome.action is Action.HOLD:
        found.append(EventType.QUARANTINED)
    return found


def of_mail(record: Record, wanted: Container[str], redaction: Redaction, time: float) -> Iterator[Event]:
    """Those of the events of this record that are wanted; they have the same data."""
    data: dict[str, Any] | None = None
    for type_ in types_of(record):
        if type_ in wanted:
            data = data or _mail_data(record, redaction)
            yield Event.new(type_, data, time, record.tx.id)


def _mail_data(record: Record, redaction: Redaction) -> dict[str, Any]:
    tx, outcome = record.tx, record.outcome
    client, listed = tx.session.client, record.listed
    redaction = redaction.of_mail(tx.envelope.sender, tx.envelope.addresses)
    data: dict[str, Any] = {
        "id": tx.id,
        "session": tx.session.id,
        "listener": tx.session.listener,
        "stage": record.at or "content",
        "client_address": client.address,
        "client_helo": client.helo and redaction.text(client.helo),
        "client_login": client.login and redaction.address(client.login),
        "client_queue_id": client.ident and redaction.text(client.ident),
        "sender": redaction.address(tx.envelope.sender),
        "recipients": [redaction.address(recipient.address) for recipient in tx.envelope.recipients[:MAX_RECIPIENTS]],
        "recipient_count": len(tx.envelope.recipients),
        "size": record.size,
        "message_id": redaction.message_id(record.message_id) or None,
        "tenant": record.tenant,
        "action": "cancelled" if outcome is None else str(outcome.action),
        "rule": record.rule or None,
        "list": listed and listed.name,
        "list_entry": listed and redaction.text(listed.entry),
        "would": record.would and str(record.would),
        "unscanned": record.unscanned or None,
        "late": record.late and str(record.late),
        "next_queue_id": redaction.text(record.next_id) or None,
        "error": None if record.error is None else reason_of(record.error),
        "problem": redaction.text(record.why) or None,
        "wait_ms": round(record.wait_s * 1000, 1),
        "scan_ms": round(record.scan_s * 1000, 1),
        "relay_ms": round(record.relay_s * 1000, 1),
    }
    if outcome is not None:
        data |= _outcome_data(outcome, tx.envelope.addresses, redaction)
    return _short(data)


def _outcome_data(outcome: Outcome, addresses: tuple[str, ...], redaction: Redaction) -> dict[str, Any]:
    data: dict[str, Any] = {"reply": _reply(outcome.reply, redaction)}
    if len(set(outcome.replies)) > 1:
        pairs = list(zip(addresses, outcome.replies, strict=True))[:MAX_RECIPIENTS]
        data["replies"] = [
            {"recipient": redaction.address(address), **_reply(reply, redaction)} for address, reply in pairs
        ]
    result = outcome.result
    if result is not None:
        data |= {
            "decision": str(result.decision),
            "verdict": redaction.text(result.verdict) or None,
            "ggrid": redaction.text(result.ggrid) or None,
        }
        data["tags"] = [redaction.text(tag)[:_MAX_TEXT] for tag in result.tags[:_MAX_TAGS]]
    return data


def _reply(reply: Reply, redaction: Redaction) -> dict[str, Any]:
    return {"code": reply.code, "status": reply.status, "text": redaction.text(reply.text)[:_MAX_TEXT]}


def _short(data: dict[str, Any]) -> dict[str, Any]:
    """Without what is unknown, and with no text longer than a receiver can use."""
    return {key: value[:_MAX_TEXT] if type(value) is str else value for key, value in data.items() if value is not None}


# Everything else


@dataclass(frozen=True, slots=True)
class Release:
    """A quarantined mail that an operator sent on."""

    id: str
    sender: str
    recipients: tuple[str, ...]  # those who got it now
    by: str
    reply: str
    listener: str = ""
    tenant: str = ""


def released(release: Release, redaction: Redaction, time: float) -> Event:
    redaction = redaction.of_mail(release.sender, release.recipients)
    data = {
        "id": release.id,
        "listener": release.listener or None,
        "tenant": release.tenant or None,
        "sender": redaction.address(release.sender),
        "recipients": [redaction.address(address) for address in release.recipients[:MAX_RECIPIENTS]],
        "recipient_count": len(release.recipients),
        "by": redaction.text(release.by),
        "reply": redaction.text(release.reply),
    }
    return Event.new(EventType.RELEASED, _short(data), time, release.id)


@dataclass(frozen=True, slots=True)
class Report:
    """A mail that a person has reported as spam, or as not spam."""

    id: str
    sender: str
    recipients: tuple[str, ...]
    by: str
    kind: str  # spam or ham
    result: str  # what became of it
    listener: str = ""
    tenant: str = ""


def reported(report: Report, redaction: Redaction, time: float) -> Event:
    data = {
        "id": report.id,
        "listener": report.listener or None,
        "tenant": report.tenant or None,
        "sender": redaction.address(report.sender),
        "recipients": [redaction.address(address) for address in report.recipients[:MAX_RECIPIENTS]],
        "recipient_count": len(report.recipients),
        "by": redaction.text(report.by),
        "kind": report.kind,
        "result": report.result,
    }
    return Event.new(EventType.REPORTED, _short(data), time, report.id)


def list_changed(name: str, tenant: str | None, entries: int, before: int | None, time: float) -> Event:
    data = {"list": name, "tenant": tenant, "entries": entries, "entries_before": before}
    return Event.new(EventType.LIST_CHANGED, _short(data), time, f"list {name} {tenant or ''}")


def scanner_state(
    url: str,
    state: ScannerState,
    before: ScannerState | None,
    problem: str,
    time: float,
    redaction: Redaction = FULL,
) -> Event:
    """A problem may quote the scanner's answer, and that a mail."""
    data = {
        "host": url,
        "state": str(state),
        "state_before": before and str(before),
        "problem": redaction.text(problem) or None,
    }
    return Event.new(EventType.SCANNER_STATE, _short(data), time, url)


def trial(sink: str, by: str, time: float) -> Event:
    return Event.new(TEST, {"sink": sink, "by": by}, time, "")
