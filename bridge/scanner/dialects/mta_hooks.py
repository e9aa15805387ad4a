"""MTA Hooks as a client (draft-degennaro-mta-hooks-01, experimental): the bridge is the mail server, at stage `data`.

A host is asked what it offers, then told who we are; only then does it take mail, as JSON with the content in base64.
It answers with changes to what was sent: `/action` and `/response` become the decision, added header fields are carried
out where the operator allows it. An answer that asks for anything else is not a decision, because half of what a
scanner wanted may be the opposite of it. All endpoints must be on the host's own origin, since the token goes there. If
this is wrong, a mail is delivered that the scanner wanted changed, or the token goes to another server.
"""

from __future__ import annotations

import json
import re
import time
from binascii import b2a_base64
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

from bridge.api.json_answer import read_json, read_unique
from bridge.api.scanning import AnalysisRequest, AnalysisResult, Decision, QueueStatus
from bridge.errors import MessageTooLarge, Saturated, ScanMalformed, ScanUnavailable
from bridge.mail.message import Message
from bridge.runtime.value import value
from bridge.scanner.answers import need_decision, need_status, unreadable
from bridge.scanner.dialect import request_line
from bridge.scanner.dialects.allowed_changes import Wishes
from bridge.scanner.http import Answer

NAME = "mta-hooks"
VERSION = "1.0"
STAGE = "data"
DISCOVERY = "/.well-known/mta-hooks"
PROPERTIES = ("/stage", "/action", "/timestamp", "/protocol", "/rawMessage", "/envelope", "/queue", "/client")
_NEEDED = {"/rawMessage", "/envelope"}  # a scanner that does not request them cannot decide on a mail

_DECISIONS = {"accept": Decision.DELIVER, "discard": Decision.DROP, "quarantine": Decision.QUARANTINE}
_ID = re.compile(r"[A-Za-z0-9_:-]{1,255}")
_RENEW_S = 5.0  # before its end
_STATUS, _OFFER, _REGISTRATION = "the status", "the discovery document", "the registration"


@dataclass(frozen=True, slots=True)
class HooksSettings:
    version: str = "0"  # ours
    timeout_s: float = 90.0  # how long we wait for a decision; the host is told
    allowed: frozenset[str] = frozenset()  # the changes that are carried out, see `allowed_changes`
    prefix: str = "X-Scan-"  # of the header fields that only we may write


@value
class _Offer:
    """What a host said about itself."""

    register_at: str
    max_bytes: int | None
    timeout_ms: int | None


@value
class _Registration:
    hook_head: bytes
    status_head: bytes
    properties: frozenset[str]
    max_bytes: int | None
    ends_at: float  # of `time.monotonic`


class MtaHooks:
    name = NAME

    def __init__(self, url: str, token: str, settings: HooksSettings) -> None:
        self._url = url
        self._token = token
        self._settings = settings
        parts = urlsplit(url)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._offer: _Offer | None = None
        self._registration: _Registration | None = None
        self._asked = _STATUS  # what the last status request was; there is only one at a time

    @property
    def is_ready(self) -> bool:
        return self._registration is not None and time.monotonic() < self._registration.ends_at

    # A mail

    def submission(
        self, request: AnalysisRequest, message: Message, header: bytes, request_id: bytes
    ) -> Iterable[bytes]:
        known = self._registration
        assert known is not None
        if known.max_bytes is not None and message.size > known.max_bytes:
            raise MessageTooLarge(f"{self._url}: the scanner accepts at most {known.max_bytes} bytes")
        facts = _facts(request, known.properties)
        before = f'{facts[:-1]},"rawMessage":"'.encode("utf-8", "replace")
        length = len(before) + _base64_bytes(message.size) + len(_AFTER)
        lines = b"X-MTA-Hooks-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (request_id, length)
        return _chunks(b"".join((known.hook_head, header, lines, before)), message)

    def body_bytes(self, request: AnalysisRequest, message: Message) -> int:
        return len(_facts(request, frozenset(PROPERTIES))) + _base64_bytes(message.size)

    def result(self, answer: Answer) -> AnalysisResult:
        if answer.status == 204 and not answer.early:
            return AnalysisResult(Decision.DELIVER, verdict="accept")
        need_decision(self._url, answer, self._token)
        try:
            return self._read(read_unique(answer.body))
        except (ValueError, RecursionError) as exc:
            raise unreadable(self._url, answer, self._token) from exc

    def _read(self, found: Any) -> AnalysisResult:
        """Raises ValueError unless all of the answer is understood."""
        if not isinstance(found, dict) or found.keys() - {"set", "add", "delete"}:
            raise ValueError("not a list of changes")
        action: Any = "accept"
        response: tuple[int, str, Any] | None = None
        wanted = list(_changes(found.get("set"), {"path", "value"}))
        if len({str(change.get("path")) for change in wanted}) < len(wanted):
            raise ValueError("a path is set twice")
        for change in wanted:
            match change.get("path"):
                case "/action":
                    action = change.get("value")
                case "/response":
                    response = _response(change.get("value"))
                case path:
                    raise ValueError(f"{path} cannot be set")
        if list(_changes(found.get("delete"), {"path"})):
            raise ValueError("nothing can be deleted")
        wished = Wishes(self._settings.allowed, self._settings.prefix)
        for change in _changes(found.get("add"), {"path", "value", "index"}):
            field = change.get("value")
            if change.get("path") != "/message/headers" or not isinstance(field, dict) or field.keys() != _FIELD:
                raise ValueError("only header fields can be added")
            wished.add(field["name"], field["value"])
        if response is not None and action != "reject":
            raise ValueError("a response without a refusal")
        code, text, enhanced = response or (550, "", None)
        if action == "reject" and code < 500 and enhanced == _SATURATED:
            raise Saturated(f"{self._url}: the scanner has no capacity")
        wished.reply_text(text)
        if action == "reject":
            decision = Decision.BOUNCE if code >= 500 else Decision.UNDECIDED
        elif isinstance(action, str):
            decision = _DECISIONS.get(action, Decision.UNDECIDED)
        else:
            raise ValueError("no action")
        return AnalysisResult(decision, verdict=str(action)[:100], changes=wished.found())

    def has_forgotten_us(self, answer: Answer) -> bool:
        if self._registration is None or answer.status not in (404, 410):
            return False
        self._registration = None
        return True

    # The introduction, and the status after it

    def status(self, request_id: bytes) -> Iterable[bytes]:
        if self.is_ready and self._registration is not None:
            self._asked = _STATUS
            return (self._registration.status_head,)
        self._registration = None
        if self._offer is None:
            self._asked = _OFFER
            return (self._head("GET", f"{urlsplit(self._url).path}{DISCOVERY}") + b"\r\n",)
        self._asked = _REGISTRATION
        wanted_ms = int(self._settings.timeout_s * 1000)
        body = json.dumps(
            {
                "name": "scanbridge",
                "version": self._settings.version,
                "timeoutMs": min(wanted_ms, self._offer.timeout_ms or wanted_ms),
                "serialization": "json",
                "inbound": {"stages": [STAGE], "properties": PROPERTIES},
                "outbound": None,
            }
        ).encode()
        lines = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        return (self._head("POST", self._offer.register_at), lines, body)

    def read_status(self, answer: Answer) -> QueueStatus | None:
        if self._asked is _STATUS:
            if answer.status in (404, 410) or self._registration is None:
                self._registration = None
                return None
            need_status(self._url, answer)
            return QueueStatus.GREEN
        offer, self._offer = self._offer, None  # after an error, we start from the beginning
        try:
            if self._asked is _OFFER or offer is None:
                need_status(self._url, answer)
                self._offer = self._read_offer(read_json(answer.body))
                return None
            need_status(self._url, answer, 201)
            self._registration = self._read_registration(read_json(answer.body), offer)
        except (ValueError, RecursionError) as exc:
            raise ScanMalformed(f"{self._url}: {self._asked} cannot be read: {exc!s:.100}") from exc
        if not self.is_ready:
            self._registration = None
            raise ScanUnavailable(f"{self._url}: the registration has already ended")
        return QueueStatus.GREEN

    def _read_offer(self, found: Any) -> _Offer:
        endpoints, limits = _member(found, "endpoints"), found.get("limits") or {}
        stages = _member(_member(found, "capabilities"), "inbound").get("stages")
        if found.get("version") != VERSION or not isinstance(stages, list) or STAGE not in stages:
            raise ValueError(f"version {VERSION} with the stage {STAGE} is required")
        if not isinstance(limits, dict):
            raise ValueError("limits is not an object")
        largest, timeout = limits.get("maxMessageSize"), limits.get("timeoutMs")
        return _Offer(
            self._path(endpoints.get("registration")),
            largest if type(largest) is int and largest > 0 else None,
            timeout if type(timeout) is int and timeout > 0 else None,
        )

    def _read_registration(self, found: Any, offer: _Offer) -> _Registration:
        inbound = _member(_member(found, "negotiated"), "inbound")
        identity, properties = found.get("registrationId"), inbound.get("properties")
        if not isinstance(identity, str) or not _ID.fullmatch(identity) or found.get("status") != "active":
            raise ValueError("it is not active, or has no id")
        if inbound.get("stages") != [STAGE] or not isinstance(properties, list):
            raise ValueError("its stages or properties are not those that were requested")
        agreed = frozenset(name for name in properties if name in PROPERTIES)
        if not agreed >= _NEEDED:
            raise ValueError("the scanner does not request the mail and its envelope")
        ours = f"X-MTA-Hooks-Registration: {identity}\r\n".encode()
        places = found.get("endpoints")
        state = places.get("status") if isinstance(places, dict) else None
        asked = self._path(state) if state else f"{urlsplit(self._url).path}{DISCOVERY}"
        hook = self._head("POST", self._path(found.get("hookEndpoint"))) + b"Content-Type: application/json\r\n" + ours
        return _Registration(
            hook, self._head("GET", asked) + ours + b"\r\n", agreed, offer.max_bytes, time.monotonic() + _lasts_s(found)
        )

    def _head(self, method: str, path: str) -> bytes:
        fields = f"Authorization: Bearer {self._token}\r\nAccept: application/json\r\n"
        return (request_line(method, self._origin, path) + fields).encode("latin-1")

    def _path(self, place: Any) -> str:
        """The path of an endpoint, which must be on this host. Raises ValueError."""
        if not isinstance(place, str) or re.search(r"[^\x21-\x7e]", place) or not place:
            raise ValueError("an endpoint is not a URL")
        whole = urlsplit(urljoin(f"{self._url}/", place))
        ours = urlsplit(self._url)
        if (whole.scheme, whole.hostname, whole.port) != (ours.scheme, ours.hostname, ours.port) or whole.username:
            raise ValueError("an endpoint is on another server")
        return f"{whole.path}?{whole.query}" if whole.query else whole.path


_AFTER = b'"}'
_FIELD = {"name", "value"}
_SATURATED = "4.3.2"


def _facts(request: AnalysisRequest, properties: frozenset[str]) -> str:
    """The JSON object of a mail without its content; bytes that are not UTF-8 become `?` when it is encoded."""
    border = request.border
    told = {
        "/stage": STAGE,
        "/action": "accept",
        "/timestamp": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "/protocol": {"version": VERSION},
        "/envelope": {
            "from": {"address": border.envelope_from or None, "parameters": {}},
            "to": [{"address": address, "parameters": {}} for address in border.envelope_recipients],
        },
        "/queue": {"id": request.queue_id},
        "/client": {"ip": border.remote_address, "ehlo": border.sender_helo, "ptr": request.client_name},
    }
    return json.dumps({name[1:]: fact for name, fact in told.items() if name in properties}, ensure_ascii=False)


def _base64_bytes(size: int) -> int:
    return (size + 2) // 3 * 4


def _chunks(head: bytes, message: Message) -> Iterator[bytes]:
    yield head
    rest = b""
    for chunk in message.chunks():
        data = rest + chunk if rest else chunk
        end = len(data) - len(data) % 3
        rest = data[end:]
        yield b2a_base64(data if not rest else data[:end], newline=False)
    yield b2a_base64(rest, newline=False) + _AFTER


def _changes(found: Any, keys: set[str]) -> Iterator[dict[str, Any]]:
    if found is None:
        return
    if not isinstance(found, list):
        raise ValueError("not a list")
    for change in found:
        if not isinstance(change, dict) or change.keys() - keys:
            raise ValueError("not a change")
        yield change


def _response(found: Any) -> tuple[int, str, Any]:
    """Code, text and enhanced code of a refusal."""
    if not isinstance(found, dict) or found.keys() - {"code", "enhancedCode", "message"}:
        raise ValueError("not a response")
    code, text = found.get("code", 550), found.get("message", "")
    if type(code) is not int or not 400 <= code < 600 or not isinstance(text, str):
        raise ValueError("not a refusal")
    return code, text, found.get("enhancedCode")


def _member(found: Any, name: str) -> dict[str, Any]:
    inner = found.get(name) if isinstance(found, dict) else None
    if not isinstance(inner, dict):
        raise ValueError(f"no {name}")
    return inner


def _lasts_s(registration: dict[str, Any]) -> float:
    """After how long to register again.

    Both times are those of the host's clock. If ours is ahead, each registration seems to have ended; if it is behind,
    to last longer than it does. A host may return a registration that it made some time ago.
    """
    if registration.get("expiresAt") is None:
        return float("inf")
    end = _moment(registration["expiresAt"])
    left_s = end - time.time()
    with suppress(ValueError):
        lasts_s = end - _moment(registration.get("createdAt"))
        left_s = left_s if _RENEW_S < left_s < lasts_s else lasts_s
    return left_s - _RENEW_S


def _moment(text: Any) -> float:
    if not isinstance(text, str):
        raise ValueError("expiresAt is not a time")
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
