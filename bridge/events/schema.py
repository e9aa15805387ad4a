"""The JSON Schema of events: what each type contains, field by field.

`docs/reference/events.md` and `events.schema.json` are generated from this file, and tests validate real events
against it. A field is never renamed or given another meaning; new fields may appear, so receivers must ignore those
they do not know.
"""

from __future__ import annotations

from typing import Any

from bridge.api.scanning import Decision
from bridge.errors import FailureLabel
from bridge.events.event import MAX_RECIPIENTS, TEST, EventType, ScannerState
from bridge.filter.late.decisions import LateStatus
from bridge.mail.action import Action

Schema = dict[str, Any]


def _text(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, **more}


def _number(description: str, type_: str = "integer") -> Schema:
    return {"type": type_, "minimum": 0, "description": description}


_REPLY: Schema = {
    "type": "object",
    "description": "What the client received.",
    "properties": {
        "code": {"type": "integer", "minimum": 200, "maximum": 599, "description": "SMTP code."},
        "status": _text("Enhanced status code, or empty."),
        "text": _text("The text of the reply."),
    },
    "required": ["code", "status", "text"],
}
_RECIPIENTS: Schema = {
    "type": "array",
    "items": {"type": "string"},
    "maxItems": MAX_RECIPIENTS,
    "description": f"Envelope recipients; at most {MAX_RECIPIENTS} are named.",
}
_LIST_OF_REPLIES: Schema = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"recipient": _text("Envelope recipient."), **_REPLY["properties"]},
        "required": ["recipient", *_REPLY["required"]],
    },
    "description": "The reply for each recipient, if they differ (LMTP, PRDR).",
}

MAIL: dict[str, Schema] = {
    "id": _text("Our id for the mail: the same in the log, in the reply and in the quarantine."),
    "session": _text("Id of the connection."),
    "listener": _text("Name of the listener."),
    "stage": _text(
        "When the decision was made: after the content, or before it, at MAIL or RCPT. At RCPT, the event is about one "
        "recipient.",
        enum=["content", "mail", "rcpt"],
    ),
    "client_address": _text("IP address of the host that sent the mail to the mail server."),
    "client_helo": _text("HELO or EHLO name of that host."),
    "client_login": _text("The user name with which the client authenticated."),
    "client_queue_id": _text("Queue id at the mail server in front of us."),
    "sender": _text("Envelope sender; empty for the null sender."),
    "recipients": _RECIPIENTS,
    "recipient_count": _number("Number of envelope recipients."),
    "size": _number("Bytes; at MAIL and RCPT, as announced by the client."),
    "message_id": _text("Message-ID of the mail."),
    "tenant": _text("The tenantUid."),
    "decision": _text("The scanner's decision; absent if there was none.", enum=[str(member) for member in Decision]),
    "verdict": _text("The scanner's verdict."),
    "tags": {"type": "array", "items": {"type": "string"}, "description": "The scanner's tags."},
    "ggrid": _text("The scanner's id for the mail."),
    "action": _text(
        "What was done; `cancelled` if the client disconnected first.",
        enum=[*(str(member) for member in Action), "cancelled"],
    ),
    "rule": _text("The policy rule, list or limit that applied, as in the log."),
    "list": _text("The list with a matching entry."),
    "list_entry": _text("The entry that matched."),
    "would": _text("Shadow mode: the action that would have been taken.", enum=[str(member) for member in Action]),
    "unscanned": _text("Why the mail was passed on without a decision."),
    "late": _text("How a late decision was involved.", enum=[str(member) for member in LateStatus]),
    "reply": _REPLY,
    "replies": _LIST_OF_REPLIES,
    "next_queue_id": _text("Queue id at the next hop."),
    "error": _text("Kind of error, if there was one.", enum=[str(member) for member in FailureLabel]),
    "problem": _text("The error message."),
    "wait_ms": _number("Time for which the throttle delayed the mail.", "number"),
    "scan_ms": _number("Time that the scanner took.", "number"),
    "relay_ms": _number("Time that the next hop took.", "number"),
}
_MAIL_ALWAYS = [
    *("id", "session", "listener", "stage", "sender", "recipients", "recipient_count", "size", "action"),
    *("wait_ms", "scan_ms", "relay_ms"),
]
RELEASED: dict[str, Schema] = {
    "id": _text("Our id for the mail, as in its other events."),
    "listener": _text("The listener that received it."),
    "tenant": _text("The tenantUid."),
    "sender": _text("Envelope sender."),
    "recipients": {
        **_RECIPIENTS,
        "description": f"The recipients of this release; at most {MAX_RECIPIENTS} are named.",
    },
    "recipient_count": _number("Number of recipients of this release."),
    "by": _text("Login name of the operator."),
    "reply": _text("The next hop's reply."),
}
REPORTED: dict[str, Schema] = {
    "id": _text("Our id for the mail, as in its other events; a hash of its content if we do not know the mail."),
    "listener": _text("The listener that received it."),
    "tenant": _text("The tenantUid."),
    "sender": _text("Envelope sender; empty if it is unknown."),
    "recipients": _RECIPIENTS,
    "recipient_count": _number("Number of envelope recipients."),
    "by": _text("Who reported it."),
    "kind": _text("What it was reported as.", enum=["spam", "ham"]),
    "result": _text(
        "`learned`: rspamd or the scanning service has learned from it. `known`: they already knew it. `noted`: "
        "neither is configured to learn. `refused`: neither can learn from this mail. `waiting`: one of them cannot be "
        "reached and will learn from it later.",
        enum=["learned", "known", "noted", "refused", "waiting"],
    ),
}
LIST: dict[str, Schema] = {
    "list": _text("Name of the list."),
    "tenant": _text("The tenantUid; absent for the list of the whole deployment."),
    "entries": _number("Number of entries in our copy now."),
    "entries_before": _number("Number of entries in the previous copy; absent for the first one."),
}
SCANNER: dict[str, Schema] = {
    "host": _text("URL of the scanner host."),
    "state": _text(
        "`up`: it receives mail. `down`: it fails or cannot be reached. `token_refused`: it refuses our token. "
        "`saturated`: it has no capacity.",
        enum=[str(state) for state in ScannerState],
    ),
    "state_before": _text("The previous state.", enum=[str(state) for state in ScannerState]),
    "problem": _text("Why it is down."),
}
TESTED: dict[str, Schema] = {"sink": _text("Name of the sink."), "by": _text("Login name of the operator.")}

# Type -> when such an event occurs, its fields, the fields that are always there
TYPES: dict[str, tuple[str, dict[str, Schema], list[str]]] = {
    EventType.DECIDED: (
        "A mail whose content was received has been processed, with any outcome: one event per mail.",
        MAIL,
        _MAIL_ALWAYS,
    ),
    EventType.REFUSED: (
        "The client received a 4xx or 5xx, for a mail or for some of its recipients: after the content (then there is "
        "also a `mail.decided`), or before it at MAIL or RCPT.",
        MAIL,
        _MAIL_ALWAYS,
    ),
    EventType.QUARANTINED: (
        "A mail or a copy of it is in our quarantine, or a milter had the mail server hold it (`action: hold`). "
        "This event follows the `mail.decided` of the mail.",
        MAIL,
        _MAIL_ALWAYS,
    ),
    EventType.RELEASED: (
        "An operator released a mail from the quarantine, and the next hop accepted it for these recipients.",
        RELEASED,
        ["id", "sender", "recipients", "recipient_count", "by", "reply"],
    ),
    EventType.REPORTED: (
        "A person reported a mail as spam, or as not spam.",
        REPORTED,
        ["id", "sender", "recipients", "recipient_count", "by", "kind", "result"],
    ),
    EventType.LIST_CHANGED: ("The entries in the local copy of a list have changed.", LIST, ["list", "entries"]),
    EventType.SCANNER_STATE: (
        "The state of a scanner host has changed. At startup, only hosts that are not up are reported.",
        SCANNER,
        ["host", "state"],
    ),
    TEST: ("Sent by `scanbridge events test`, regardless of the sink's `types`.", TESTED, ["sink", "by"]),
}
ENVELOPE: dict[str, Schema] = {
    "id": _text("Unique; it stays the same if the event is sent again.", format="uuid"),
    "time": _text("When it happened, in UTC.", format="date-time"),
    "type": _text("See below.", enum=[str(type_) for type_ in TYPES]),
    "source": _text("Host name of the bridge."),
    "data": {"type": "object", "description": "Depends on the type."},
}


def json_schema() -> Schema:
    """For any event."""
    choices = [
        {
            "title": str(type_),
            "description": description,
            "properties": {
                "type": {"const": str(type_)},
                "data": {"type": "object", "properties": fields, "required": always},
            },
        }
        for type_, (description, fields, always) in TYPES.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "scanbridge event",
        "type": "object",
        "properties": ENVELOPE,
        "required": list(ENVELOPE),
        "oneOf": choices,
    }
