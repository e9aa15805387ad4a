"""The Email Scanning API as data: requests, results and limits.

Both sides share this file: the bridge's scanner client builds the request and parses the result,
the service does the reverse. It knows no HTTP library, so each side can choose its own.
"""

from __future__ import annotations

import json
from enum import StrEnum
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, Protocol

from bridge.api.changes import Changes
from bridge.api.json_answer import DuplicateKey, read_decision, read_unique
from bridge.runtime.value import value
from bridge.runtime.visible_text import visible

SUBMIT_PATH = "/v1/messageQueue/submitEmail"
STATUS_PATH = "/v1/admin/status"

MAX_MESSAGE_BYTES = 50 * 1024 * 1024  # a larger mail gets HTTP 413
DEFAULT_IN_PROCESSING = 20  # maxGuardRequestsInProcessing, if mainWorkerCount is unset
DEFAULT_PORT = 9081
MAX_TAGS = 1000  # of a result that are kept; each is logged, searched for and indexed
MAX_REASONS = 6  # sentences in a result
MAX_REASON = 300  # characters of each
MAX_LIST_MATCHES = 20  # in a result
MAX_SCORES = 50  # in a result
MAX_RULE = 300  # characters
_MAX_LIST_NAME, _MAX_ENTRY, _MAX_SCORE_NAME = 64, 400, 100  # characters


class Decision(StrEnum):
    """The service's decision on one mail."""

    UNDECIDED = "undecided"
    DELIVER = "deliver"
    QUARANTINE = "quarantine"
    BOUNCE = "bounce"
    DROP = "drop"


class QueueStatus(StrEnum):
    """The service's own status."""

    GREEN = "GREEN"
    YELLOW = "YELLOW"
    RED = "RED"


@value
class BorderMtaData:
    """What the border MTA, the mail server that received the mail, knows about it."""

    envelope_from: str  # "" is the null sender
    envelope_recipients: tuple[str, ...]
    remote_address: str | None = None
    sender_helo: str | None = None


class KnownClient(Protocol):
    """What else is known about the client; see `bridge/mail/session.py`."""

    @property
    def name(self) -> str | None:
        """The verified host name."""

    @property
    def ident(self) -> str | None:
        """The mail server's queue id."""

    @property
    def login(self) -> str | None:
        """The authenticated user."""


@value
class AnalysisRequest:
    """MessageAnalysisRequest: the `parameters` part, and facts that only other dialects can carry."""

    border: BorderMtaData
    tenant_uid: str | None = None
    mail_id: str | None = None  # ours
    client: KnownClient | None = None

    @property
    def queue_id(self) -> str | None:
        """The mail server's, else ours."""
        return (self.client.ident if self.client is not None else None) or self.mail_id

    @property
    def client_name(self) -> str | None:
        return self.client.name if self.client is not None else None

    @property
    def login(self) -> str | None:
        return self.client.login if self.client is not None else None

    def to_json(self) -> bytes:
        """Valid JSON whatever a client put into HELO: everything beyond ASCII is written as \\uXXXX.

        Concatenated by hand from quoted strings, which takes half the time of `json.dumps`.
        """
        border = self.border
        recipients = ", ".join(map(_quoted, border.envelope_recipients))
        text = f'{{"borderMtaData": {{"envelopeFrom": {_quoted(border.envelope_from)}'
        text += f', "envelopeRecipients": [{recipients}]'
        if border.remote_address is not None:
            text += f', "remoteAddress": {_quoted(border.remote_address)}'
        if border.sender_helo is not None:
            text += f', "senderHelo": {_quoted(border.sender_helo)}'
        text += "}"
        if self.tenant_uid is not None:
            text += f', "tenantUid": {_quoted(self.tenant_uid)}'
        return (text + "}").encode("ascii")


def form(parameters: bytes, boundary: bytes) -> tuple[bytes, bytes]:
    """What precedes and follows the mail in the body of a submitEmail request."""
    before = (
        b'--%b\r\nContent-Disposition: form-data; name="parameters"\r\nContent-Type: application/json\r\n\r\n'
        b'%b\r\n--%b\r\nContent-Disposition: form-data; name="email"; filename="mail.eml"\r\n'
        b"Content-Type: message/rfc822\r\n\r\n"
    ) % (boundary, parameters, boundary)
    return before, b"\r\n--%b--\r\n" % boundary


BOUNDARY_BYTES = 36
SMALLEST_FORM_BYTES = sum(map(len, form(AnalysisRequest(BorderMtaData("", ("",))).to_json(), b"x" * BOUNDARY_BYTES)))


@value
class Scoring:
    """How the decision came about."""

    rule: str  # the row of the decisions table that decided, in words
    total: float = 0.0
    scores: tuple[tuple[str, float], ...] = ()  # what it consists of: tags, engines and the model

    def to_dict(self) -> dict[str, Any]:
        scores = [{"name": name, "score": score} for name, score in self.scores]
        return {"rule": self.rule, "total": self.total, "scores": scores}


@value
class AnalysisResult:
    """MessageAnalysisResult: the answer to submitEmail."""

    decision: Decision
    ggrid: str = ""
    verdict: str = ""
    tags: tuple[str, ...] = ()
    created: str = ""
    completed: str = ""
    changes: Changes | None = None  # never read from this interface's own answers
    reasons: tuple[str, ...] = ()  # sentences for people, an extension; names in them were chosen by the mail's sender
    listed: tuple[tuple[str, str], ...] = ()  # lists with the entry of each that matches, an extension
    scoring: Scoring | None = None  # an extension

    def to_dict(self) -> dict[str, Any]:
        more: dict[str, Any] = {"reasons": list(self.reasons)} if self.reasons else {}
        if self.listed:
            more["listMatches"] = [{"listName": name, "entry": entry} for name, entry in self.listed]
        if self.scoring is not None:
            more["scoring"] = self.scoring.to_dict()
        return {
            "ggrid": self.ggrid,
            "created": self.created,
            "completed": self.completed,
            "decision": str(self.decision),
            "verdict": self.verdict,
            "tags": list(self.tags),
            **more,
        }

    @classmethod
    def from_json(cls, body: bytes) -> AnalysisResult:
        """Parse an answer. Raises ValueError unless it is an object with a decision.

        Tolerant where that is harmless: unknown fields are ignored, and missing or malformed fields
        other than the decision are empty. An unknown decision becomes `undecided`, because we do not
        know what it means.
        """
        value = _decoded(body)
        if not isinstance(value, dict):
            raise ValueError("the answer is not an object")
        decision = value.get("decision")
        if not isinstance(decision, str) or not decision:
            raise ValueError("the answer has no decision")
        ggrid, verdict, tags = value.get("ggrid"), value.get("verdict"), value.get("tags")
        created, completed = value.get("created"), value.get("completed")
        return cls(
            _DECISIONS.get(decision, _UNDECIDED),
            ggrid if isinstance(ggrid, str) else "",
            verdict if isinstance(verdict, str) else "",
            tuple([tag for tag in tags if isinstance(tag, str)]) if isinstance(tags, list) else (),
            created if isinstance(created, str) else "",
            completed if isinstance(completed, str) else "",
            reasons=readable_reasons(value["reasons"]) if "reasons" in value else (),
            listed=_readable_matches(value["listMatches"]) if "listMatches" in value else (),
            scoring=readable_scoring(value["scoring"]) if "scoring" in value else None,
        )


def readable_reasons(given: object) -> tuple[str, ...]:
    """At most a few short lines of printable text, whatever a service or a file contains."""
    texts = [text for text in given if isinstance(text, str)] if isinstance(given, list | tuple) else []
    return tuple(visible(text[: 2 * MAX_REASON])[:MAX_REASON] for text in texts[:MAX_REASONS])


def _readable_matches(given: object) -> tuple[tuple[str, str], ...]:
    """At most a few pairs of short, printable texts."""
    pairs = []
    for match in given[:MAX_LIST_MATCHES] if isinstance(given, list) else ():
        name, entry = (match.get("listName"), match.get("entry")) if isinstance(match, dict) else (None, None)
        if isinstance(name, str) and isinstance(entry, str) and name and entry:
            pairs.append((visible(name[:_MAX_LIST_NAME]), visible(entry[:_MAX_ENTRY])))
    return tuple(pairs)


def readable_scoring(given: object) -> Scoring | None:
    """A few numbers with short, printable names, whatever a service or a file contains; or None."""
    if not isinstance(given, dict) or not isinstance(rule := given.get("rule"), str) or not rule:
        return None
    rows = given.get("scores")
    scores = []
    for row in rows[:MAX_SCORES] if isinstance(rows, list) else ():
        name, score = (row.get("name"), row.get("score")) if isinstance(row, dict) else (None, None)
        if isinstance(name, str) and name and (points := _number(score)) is not None:
            scores.append((visible(name[:_MAX_SCORE_NAME]), points))
    return Scoring(visible(rule[:MAX_RULE]), _number(given.get("total")) or 0.0, tuple(scores))


def _number(given: object) -> float | None:
    """JSON as Python reads it has NaN, infinity, and integers that no float can hold."""
    if not isinstance(given, int | float) or isinstance(given, bool):
        return None
    return float(given) if -_MOST_POINTS <= given <= _MOST_POINTS else None


_MOST_POINTS = 1e9
_DECISIONS, _UNDECIDED = {d.value: d for d in Decision}, Decision.UNDECIDED


def _decoded(body: bytes) -> Any:
    """`json` also accepts encodings other than UTF-8."""
    try:
        return read_decision(body, "decision")
    except DuplicateKey:
        raise
    except ValueError:
        return read_unique(body)


def queue_status_from_json(body: bytes) -> QueueStatus:
    """Parse a SystemStatus. Raises ValueError if it is not one."""
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError("the status is not an object")
    return QueueStatus(str(value.get("messageQueueStatus")))
