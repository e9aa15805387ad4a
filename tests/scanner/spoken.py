"""What a scanner of each dialect says, so that the same tests can be run over all of them.

The fixture `each_dialect` chooses the dialect; `current()` is the one of the running test.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

from bridge.api.scanning import AnalysisResult
from bridge.scanner.dialect import MakeDialect
from bridge.scanner.dialects.allowed_changes import KINDS
from bridge.scanner.dialects.email_scanning import EmailScanning
from bridge.scanner.dialects.mta_hooks import DISCOVERY, HooksSettings, MtaHooks
from bridge.scanner.dialects.rspamd import Rspamd, RspamdSettings

GGRID = "11111111-2222-4333-8444-555555555555"
_ALL = frozenset(KINDS)


@dataclass(frozen=True)
class Spoken:
    """The default dialect; the others differ in what they override."""

    name: str = "email-scanning"
    make: MakeDialect = EmailScanning
    mail_path: str = "/v1/messageQueue/submitEmail"
    status_path: str = "/v1/admin/status"
    reports_load: bool = True
    green: bytes = b'{"messageQueueStatus": "GREEN"}'

    def result(self, decision: object = "deliver", **fields: Any) -> bytes:
        given = {"ggrid": GGRID, "verdict": "clean", "tags": ["a:b"], "decision": decision, **fields}
        return json.dumps(given).encode()

    def word(self, found: AnalysisResult) -> str:
        """The `verdict` that `result` was given."""
        return found.verdict

    def sender(self, head: bytes, body: bytes) -> str:
        """The sender in a request for a mail."""
        parameters = body.split(b"\r\n\r\n", 1)[1].split(b"\r\n--", 1)[0]
        return str(json.loads(parameters)["borderMtaData"]["envelopeFrom"])

    def content(self, body: bytes) -> bytes:
        """Bytes that contain the mail of a request, byte for byte."""
        return body

    def introduction(self, line: str) -> tuple[int, bytes] | None:
        """The answer to a request by which the bridge introduces itself; None for any other."""
        return None


class SpokenByRspamd(Spoken):
    _ACTIONS = {  # noqa: RUF012
        "deliver": "no action", "bounce": "reject", "drop": "discard", "quarantine": "quarantine",
        "undecided": "soft reject",
    }  # fmt: skip

    def result(self, decision: object = "deliver", **fields: Any) -> bytes:
        symbols = {fields.get("verdict", "clean"): {"name": "x", "score": 0.0}}
        action = self._ACTIONS.get(str(decision), decision)
        given = {"action": action, "score": 0.0, "required_score": 15.0, "symbols": symbols, "messages": {}}
        return json.dumps({**given, "is_skipped": False, "time_real": 0.1, "milter": {}}).encode()

    def word(self, found: AnalysisResult) -> str:
        return found.tags[1]

    def sender(self, head: bytes, body: bytes) -> str:
        return head.split(b"\r\nFrom: <", 1)[1].split(b">", 1)[0].decode()


class SpokenByHooks(Spoken):
    def result(self, decision: object = "deliver", **fields: Any) -> bytes:
        action = {"deliver": "accept", "drop": "discard", "bounce": "reject", "undecided": "reject"}.get(str(decision))
        changes = [{"path": "/action", "value": action or decision}]
        if action == "reject":
            code = 550 if decision == "bounce" else 451
            changes.append({"path": "/response", "value": {"code": code, "enhancedCode": None, "message": "no"}})
        word = {"name": "X-Word", "value": fields.get("verdict", "clean")}
        return json.dumps({"set": changes, "add": [{"path": "/message/headers", "value": word}]}).encode()

    def word(self, found: AnalysisResult) -> str:
        assert found.changes is not None
        return found.changes.add[0][1]

    def sender(self, head: bytes, body: bytes) -> str:
        return str(json.loads(body)["envelope"]["from"]["address"])

    def content(self, body: bytes) -> bytes:
        told = json.loads(body) if body.startswith(b"{") else {}
        return base64.b64decode(told["rawMessage"], validate=True) if "rawMessage" in told else body

    def introduction(self, line: str) -> tuple[int, bytes] | None:
        if line.startswith(f"GET {DISCOVERY} "):
            return 200, discovery()
        return (201, registration()) if line.startswith("POST /register ") else None


def discovery(**changed: Any) -> bytes:
    found = {
        "version": "1.0",
        "endpoints": {"registration": "/register", "deregistration": "/register"},
        "serialization": ["json"],
        "capabilities": {"inbound": {"stages": ["data"], "fetchProperties": [], "actions": [], "updateProperties": []}},
        "limits": {"maxMessageSize": 1 << 30, "maxRegistrations": 10, "timeoutMs": 60000},
    }
    return json.dumps({**found, **changed}).encode()


def registration(**changed: Any) -> bytes:
    from bridge.scanner.dialects.mta_hooks import PROPERTIES

    found = {
        "registrationId": "us:1",
        "status": "active",
        "createdAt": "2026-01-01T00:00:00Z",
        "expiresAt": None,
        "hookEndpoint": "/hook",
        "negotiated": {"serialization": "json", "inbound": {"stages": ["data"], "properties": list(PROPERTIES)}},
        "endpoints": {"status": "/register/us:1", "deregistration": "/register/us:1"},
    }
    return json.dumps({**found, **changed}).encode()


_RSPAMD = RspamdSettings(allowed=_ALL)
_HOOKS = HooksSettings(allowed=_ALL)
SPOKEN = [
    Spoken(),
    SpokenByRspamd("rspamd", lambda url, token: Rspamd(url, token, _RSPAMD), "/checkv2", "/ping", False, b"pong\r\n"),
    SpokenByHooks(
        "mta-hooks", lambda url, token: MtaHooks(url, token, _HOOKS), "/hook", "/register/us:1", False, b"{}"
    ),
]

_current = SPOKEN[0]


def current() -> Spoken:
    return _current


def choose(spoken: Spoken) -> None:
    global _current
    _current = spoken
