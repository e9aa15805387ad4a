"""rspamd (`POST /checkv2`): the bridge in the place of rspamd's own proxy.

The envelope goes into header fields of the request, the mail is its body. rspamd answers with an action, which is
mapped to a decision by one table, and with symbols, which become tags. It does not repeat our request id, but closes
each connection after its answer, so no answer can be taken for another's. It reports no load: `/ping` shows only that
it is there. If the table is wrong, mail that rspamd rejects is delivered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from bridge.api.changes import Changes
from bridge.api.json_answer import read_decision_in_any_bytes
from bridge.api.scanning import AnalysisRequest, AnalysisResult, Decision, QueueStatus
from bridge.errors import ScanMalformed
from bridge.mail.message import Message
from bridge.scanner.answers import need_decision, need_status, unreadable
from bridge.scanner.bounded_result import dangerous_first
from bridge.scanner.dialect import request_line
from bridge.scanner.dialects import allowed_changes
from bridge.scanner.dialects.allowed_changes import Wishes
from bridge.scanner.http import Answer

NAME = "rspamd"

DECISIONS: Mapping[str, Decision] = {
    "no action": Decision.DELIVER,
    "add header": Decision.DELIVER,
    "rewrite subject": Decision.DELIVER,
    "greylist": Decision.UNDECIDED,
    "soft reject": Decision.UNDECIDED,
    "reject": Decision.BOUNCE,
    "discard": Decision.DROP,
    "quarantine": Decision.QUARANTINE,
}
_INSTEAD_OF_REJECT = {"discard": Decision.DROP, "quarantine": Decision.QUARANTINE}  # milter.reject

_SPAM_FIELD = "X-Spam"  # as rspamd's proxy writes it for `add header`
_SUBJECT_ONLY = frozenset([allowed_changes.SUBJECT])
_MAX_SYMBOLS = 256
_MAX_WORD = 100
_ORDINARY = re.compile(r"(?:[A-Z0-9_]{1,100}(?: (?=.)|$))*")  # the names of symbols, joined by spaces


@dataclass(frozen=True, slots=True)
class RspamdSettings:
    settings_id: str | None = None
    decisions: Mapping[str, Decision] = field(default_factory=dict)  # the operator's own, before the table above
    allowed: frozenset[str] = frozenset()  # the changes that are carried out, see `allowed_changes`
    prefix: str = "X-Scan-"  # of the header fields that only we may write


class Rspamd:
    name = NAME
    is_ready = True

    def __init__(self, url: str, password: str, settings: RspamdSettings) -> None:
        self._url = url
        self._password = password
        self._allowed, self._prefix = settings.allowed, settings.prefix
        self._decisions = {**DECISIONS, **settings.decisions}
        secret = f"Password: {password}\r\n" if password else ""
        chosen = f"Settings-ID: {settings.settings_id}\r\n" if settings.settings_id else ""
        head = request_line("POST", url, "/checkv2") + secret + chosen + "Milter: yes\r\n"
        self._head = head.encode("latin-1")
        self._ping = (request_line("GET", url, "/ping") + secret + "\r\n").encode("latin-1")

    def submission(
        self, request: AnalysisRequest, message: Message, header: bytes, request_id: bytes
    ) -> Iterable[bytes]:
        length = b"Content-Length: %d\r\n\r\n" % message.size
        return chain((b"".join((self._head, header, _envelope(request), length)),), message.chunks())

    def body_bytes(self, request: AnalysisRequest, message: Message) -> int:
        return message.size

    def result(self, answer: Answer) -> AnalysisResult:
        need_decision(self._url, answer, self._password)
        try:
            return self._read(read_decision_in_any_bytes(answer.body, "action"))
        except (ValueError, RecursionError) as exc:
            raise unreadable(self._url, answer, self._password) from exc

    def _read(self, found: Any) -> AnalysisResult:
        action = found.get("action") if isinstance(found, dict) else None
        if not isinstance(action, str) or not action:
            raise ValueError("the answer has no action")
        decision = self._decisions.get(action, Decision.UNDECIDED)
        milter = found.get("milter")
        if isinstance(milter, dict):
            if action == "reject":
                decision = _INSTEAD_OF_REJECT.get(str(milter.get("reject")), decision)
            if milter.get("no_action") is True:
                decision = Decision.DELIVER
        else:
            milter = {}
        verdict = action if action in DECISIONS else next(allowed_changes.names((action,), 1, _MAX_WORD))
        may_change = self._allowed and (self._allowed != _SUBJECT_ONLY or action == "rewrite subject")
        changes = self._changes(action, found, milter) if may_change else None
        return AnalysisResult(decision, "", verdict, _tags(found), changes=changes)

    def _changes(self, action: str, found: dict[str, Any], milter: dict[str, Any]) -> Changes | None:
        wished = Wishes(self._allowed, self._prefix)
        for name, which in _items(milter.get("remove_headers")):
            wished.remove(name, which)
        if action == "add header":
            fields = milter.get("spam_header", "Yes")
            for name, value in _items(fields if isinstance(fields, dict) else {_SPAM_FIELD: fields}):
                wished.replace(name, value)
        for name, given in _items(milter.get("add_headers")):
            for value in given if isinstance(given, list) else (given,):
                if isinstance(value, dict):
                    wished.add(name, value.get("value"), value.get("order"))
                else:
                    wished.add(name, value)
        signatures = found.get("dkim-signature")
        for value in signatures if isinstance(signatures, list) else (signatures,):
            wished.add("DKIM-Signature", value)
        if action == "rewrite subject":
            wished.subject(found.get("subject"))
        messages = found.get("messages")
        if isinstance(messages, dict):
            wished.reply_text(messages.get("smtp_message"))
        return wished.found()

    def has_forgotten_us(self, answer: Answer) -> bool:
        return False

    def status(self, request_id: bytes) -> Iterable[bytes]:
        return (self._ping,)

    def read_status(self, answer: Answer) -> QueueStatus:
        need_status(self._url, answer)
        if answer.body.strip() != b"pong":
            raise ScanMalformed(f"{self._url}: the answer to /ping is not `pong`; is this an rspamd server?")
        return QueueStatus.GREEN


def _envelope(request: AnalysisRequest) -> bytes:
    border = request.border
    text = f"From: <{_value(border.envelope_from)}>\r\n"
    for recipient in border.envelope_recipients:
        text += f"Rcpt: <{_value(recipient)}>\r\n"
    if border.remote_address is not None:
        text += f"IP: {_value(border.remote_address)}\r\n"
    if border.sender_helo is not None:
        text += f"Helo: {_value(border.sender_helo)}\r\n"
    if request.client_name is not None:
        text += f"Hostname: {_value(request.client_name)}\r\n"
    if request.login is not None:
        text += f"User: {_value(request.login)}\r\n"
    if request.queue_id is not None:
        text += f"Queue-ID: {_value(request.queue_id)}\r\n"
    return text.encode("utf-8", "replace")


def _value(text: str) -> str:
    """What a client wrote, without anything that could end the line of its header field."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _items(found: Any) -> Iterable[tuple[Any, Any]]:
    return list(found.items())[: allowed_changes.MAX_FIELDS] if isinstance(found, dict) else ()


def _tags(found: dict[str, Any]) -> tuple[str, ...]:
    """The score, then the symbols: all of them, or the dangerous ones and those that weigh most. Raises ValueError."""
    symbols = found.get("symbols")
    names: Iterable[Any] = symbols if isinstance(symbols, dict) else ()
    if isinstance(symbols, dict) and len(symbols) > _MAX_SYMBOLS:
        heaviest = tuple(sorted(symbols, key=lambda name: -abs(_number(symbols[name], "score"))))
        names = dangerous_first(heaviest)[:_MAX_SYMBOLS]
    if not _ORDINARY.fullmatch(" ".join(names)):
        names = allowed_changes.names(names, _MAX_SYMBOLS, _MAX_WORD)
    skipped = ("skipped",) if found.get("is_skipped") is True else ()
    return (_score(found), *names, *skipped)


def _score(found: dict[str, Any]) -> str:
    """The score, and the one at which rspamd rejects, if it has one."""
    score = f"score:{_number(found, 'score'):.2f}"
    required = found.get("required_score")
    return f"{score}/{_number(found, 'required_score'):.2f}" if required is not None else score


def _number(found: Any, name: str) -> float:
    """Raises ValueError if it is not a finite number; without one it is 0."""
    number = found.get(name, 0.0) if isinstance(found, dict) else 0.0
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) < 1e9:
        raise ValueError("a score is not a number")
    return float(number)
