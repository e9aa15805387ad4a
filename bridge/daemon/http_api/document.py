"""The OpenAPI 3.1 description of the HTTP API at the admin address.

Built from the tables that the code itself uses, so parameters and errors cannot diverge from it. `make docs` writes
it to docs/reference/api.json and makes docs/reference/api.md from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.daemon.http_api.failures import ERRORS
from bridge.history.parameters import MAIL_ID, PAGE, STATS, Parameter
from bridge.history.query import ACTIONS, BY, STAGES
from bridge.quarantine.record import STATES

Json = dict[str, Any]

HISTORY_PATH = "/api/v1/history"
STATS_PATH = "/api/v1/stats"
MAILS_PATH = "/api/v1/mails/"
DOCUMENT_PATH = "/api/v1/openapi.json"


def document() -> Json:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "scanbridge: what happened to mail",
            "version": "1.0.0",
            "summary": "Search the history of mail, and count mails.",
            "description": "Read-only, at the admin address of a running daemon (`admin.address`).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": {
            HISTORY_PATH: {"get": _history()},
            f"{MAILS_PATH}{{id}}": {"get": _mail()},
            STATS_PATH: {"get": _stats()},
            DOCUMENT_PATH: {"get": _document()},
        },
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token from `api.tokens`."}
            },
            "schemas": _schemas(),
        },
    }


# Operations


def _history() -> Json:
    return {
        "operationId": "history",
        "tags": ["History"],
        "summary": "Search for mails, newest first.",
        "description": "A mail must match all given parameters. To keep pages small, a page may contain fewer "
        "mails than `limit`; the last page is the one whose `next` is null.",
        "parameters": _parameters(PAGE),
        "responses": _responses("A page of mails.", "Page"),
    }


def _mail() -> Json:
    mail_id = {
        "name": "id",
        "in": "path",
        "required": True,
        "description": "Our id for the mail, as in the log and in replies.",
        "schema": {"type": "string", "pattern": f"^{MAIL_ID.pattern}$"},
    }
    return {
        "operationId": "mail",
        "tags": ["History"],
        "summary": "Everything about one mail: its attempts, what happened later, and whether it is in the quarantine.",
        "parameters": [mail_id],
        "responses": _responses("The mail.", "Story"),
    }


def _stats() -> Json:
    return {
        "operationId": "stats",
        "tags": ["History"],
        "summary": "Count mails. Without `since`, those from the 24 hours before `until` are counted.",
        "description": "A mail with two tags or two recipients counts for both.",
        "parameters": _parameters(STATS, required=("by",)),
        "responses": _responses("The sums.", "Stats"),
    }


def _document() -> Json:
    return {
        "operationId": "openapi",
        "tags": ["Description"],
        "summary": "This document.",
        "security": [],
        "responses": _responses("An OpenAPI 3.1 document.", None, without=(401, 403, 429, 503)),
    }


def _parameters(known: Mapping[str, Parameter], required: tuple[str, ...] = ()) -> list[Json]:
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": parameter.description,
            "schema": parameter.schema,
        }
        for name, parameter in known.items()
    ]


def _responses(description: str, schema: str | None, without: tuple[int, ...] = ()) -> Json:
    content = {"schema": {"type": "object"} if schema is None else _ref(schema)}
    found: Json = {"200": {"description": description, "content": {"application/json": content}}}
    for status in sorted({status for status, _ in ERRORS.values()} - set(without)):
        words = [f"`{error}`: {text}" for error, (own, text) in ERRORS.items() if own == status]
        found[str(status)] = {
            "description": " ".join(words),
            "content": {"application/json": {"schema": _ref("Error")}},
            **({"headers": _HEADERS[status]} if status in _HEADERS else {}),
        }
    return found


_RETRY: Json = {
    "description": "Seconds to wait before trying again; absent if trying again would not help.",
    "schema": {"type": "integer"},
}
_HEADERS: dict[int, Json] = {
    401: {"WWW-Authenticate": {"description": "The expected scheme.", "schema": {"type": "string"}}},
    405: {"Allow": {"description": "The supported methods.", "schema": {"type": "string"}}},
    429: {"Retry-After": _RETRY},
    503: {"Retry-After": _RETRY},
}

# Objects

_TEXT: Json = {"type": "string"}
_NOT_FOR_TENANTS = "Absent if the token has `tenants`."
_NUMBER: Json = {"type": "integer", "minimum": 0}
_TIME: Json = {"type": "string", "format": "date-time"}


def _schemas() -> Json:
    mail = _object(["time", "action", "listener"], _mail_fields())
    later = {
        "time": _TIME,
        "id": _TEXT,
        "event": {
            **_TEXT,
            "description": "For example `released`, `deleted`, `reported as spam`, `digest sent`, "
            "`accepted late` or `refused late`.",
        },
        "by": {**_TEXT, "description": "Who did it."},
        "text": _TEXT,
    }
    held = {"id": _TEXT, "state": {"enum": list(STATES)}, "time": {**_TIME, "description": "When it was stored."}}
    fields = {"label": _TEXT, "mails": _NUMBER, "size": {**_NUMBER, "description": "Bytes."}}
    error = {
        "error": {"type": "string", "enum": sorted(ERRORS), "description": "Stable: programs may depend on it."},
        "message": {**_TEXT, "description": "For people."},
        "parameter": {**_TEXT, "description": "The invalid parameter."},
    }
    return {
        "Page": _object(["mails", "next"], _page_fields()),
        "Story": _object(["id", "mails", "attempts", "later", "quarantine"], _story_fields()),
        "Stats": _object(["by", "since", "until", "sums", "left_out"], _stats_fields()),
        "Mail": mail,
        "Later": _object(["time", "id", "event"], later),
        "Held": _object(["id", "state", "time"], held),
        "Sum": _object(list(fields), fields),
        "Error": _object(["error", "message"], error),
    }


def _mail_fields() -> Json:
    """As `MailEntry.to_dict` makes them. Values that a mail does not have are left out."""
    milliseconds: Json = {"type": "number", "minimum": 0}
    return {
        "time": {**_TIME, "description": "When its processing ended."},
        "id": {
            **_TEXT,
            "description": "Our id; absent for refusals that share an entry. A mail has several entries if the client "
            "received different answers for its recipients.",
        },
        "session": _TEXT,
        "listener": _TEXT,
        "tenant": _TEXT,
        "client": {**_TEXT, "description": "The client's IP address."},
        "helo": _TEXT,
        "login": _TEXT,
        "sender": {**_TEXT, "description": "Absent for the null sender."},
        "recipients": {"type": "array", "items": _TEXT},
        "size": {**_NUMBER, "description": "Bytes."},
        "message_id": _TEXT,
        "subject": _TEXT,
        "stage": {
            "enum": list(STAGES),
            "description": "The stage at which it was refused, before its content was sent.",
        },
        "action": {"enum": list(ACTIONS)},
        "decision": _TEXT,
        "verdict": _TEXT,
        "tags": {"type": "array", "items": _TEXT},
        "rule": {**_TEXT, "description": "The policy rule that applied."},
        "reply": {**_TEXT, "description": "What the client received."},
        "replies": {"type": "object", "description": "The replies by recipient, if they differ."},
        "accepted": {
            "type": "array",
            "items": _TEXT,
            "description": "The recipients for whom the next hop accepted a mail that it refused for others, or whose "
            "client had gone.",
        },
        "unsure": {
            "type": "array",
            "items": _TEXT,
            "description": "The recipients for whom it is unknown whether the next hop has accepted the mail: it got "
            "all of it, but there was no answer in time. A later event may have the answer.",
        },
        "ggrid": _TEXT,
        "scanner": {**_TEXT, "description": f"The URL of the last scanner host that was used. {_NOT_FOR_TENANTS}"},
        "queue_id": {**_TEXT, "description": "The mail's queue id on the mail server in front of the bridge."},
        "next_id": {
            **_TEXT,
            "description": "The mail's queue id at the next hop; those of several next hops are joined by commas.",
        },
        "next_ids": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": _TEXT},
            "description": "For each queue id, the recipients whose next hop gave it, if there are several.",
        },
        "stopped": {
            "type": "boolean",
            "description": "True if the mail is `cancelled` because the bridge closed the listener.",
        },
        "attempt": {**_TEXT, "description": "An id that all attempts to send this mail share, if it was deferred."},
        "wait_ms": milliseconds,
        "scan_ms": milliseconds,
        "relay_ms": milliseconds,
        "would": {**_TEXT, "description": "In shadow mode: the action that would have been taken."},
        "late": _TEXT,
        "unscanned": _TEXT,
        "error": _TEXT,
        "why": {**_TEXT, "description": f"The error. {_NOT_FOR_TENANTS}"},
        "reasons": {
            "type": "array",
            "items": _TEXT,
            "description": "Why the scanner suspects it, in sentences. Names in them come from the mail.",
        },
        "list": {**_TEXT, "description": "The list that has a matching entry."},
        "entry": {**_TEXT, "description": f"The entry that matches. {_NOT_FOR_TENANTS}"},
        "entries": {
            "type": "object",
            "additionalProperties": _TEXT,
            "description": f"For each list: the entry that the scanner found, if it named one. {_NOT_FOR_TENANTS}",
        },
        "unchecked": {
            "type": "array",
            "items": _TEXT,
            "description": "Enforced lists that were not checked, because there was no local copy yet.",
        },
        "limit": {**_TEXT, "description": "The limit that was reached."},
        "mails": {**_NUMBER, "description": "How many refusals share this entry, if there are several."},
    }


def _page_fields() -> Json:
    cursor = {
        "type": ["string", "null"],
        "description": "The value of `before` for the next page; null if there is none.",
    }
    return {"mails": _list("Mail"), "next": cursor}


def _story_fields() -> Json:
    return {
        "id": _TEXT,
        "mails": {**_list("Mail"), "description": "The entries of the history with this id, in order."},
        "attempts": {**_list("Mail"), "description": "Other attempts to send the same mail, in order."},
        "later": {**_list("Later"), "description": "What happened after the decision, in order."},
        "quarantine": {
            "anyOf": [_list("Held"), {"type": "null"}],
            "description": "Which of these mails are in the quarantine of this machine; null if the quarantine is "
            "in object storage, which is not searched.",
        },
    }


def _stats_fields() -> Json:
    return {
        "by": {"enum": list(BY)},
        "since": _TIME,
        "until": _TIME,
        "sums": {**_list("Sum"), "description": "The largest first; hours and days (UTC) in order."},
        "left_out": {**_NUMBER, "description": "How many sums were left out because of `limit`."},
    }


def _list(schema: str) -> Json:
    return {"type": "array", "items": _ref(schema)}


def _object(required: list[str], properties: Json) -> Json:
    return {"type": "object", "required": required, "properties": properties}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}
