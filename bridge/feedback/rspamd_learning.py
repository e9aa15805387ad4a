"""rspamd learns a mail: `/learnspam` and `/learnham` of its controller.

The password is sent to the configured address and nowhere else: redirects are not followed, proxies from the
environment are not used. Answers are limited in size. Blocks, so callers in an event loop use a thread. rspamd itself
remembers what it has learned: the same report twice changes nothing, and after the opposite report it learns the mail
again.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import httpx2

from bridge.errors import BridgeError
from bridge.feedback.report import ReportKind
from bridge.mail.message import Message
from bridge.runtime.no_cookies import no_cookies
from bridge.runtime.reason import reason
from bridge.runtime.visible_text import visible

_PATHS = {ReportKind.SPAM: "/learnspam", ReportKind.HAM: "/learnham"}
_MAX_ANSWER = 64 * 1024
_CONNECT_S = 3.0  # many mails may be reported together, while people wait
_LEARNED_BEFORE = 208  # rspamd's answer to a mail that it knows
_RECOGNISED = "learn conditions denied"  # part of its answer to a mail that its statistics are sure about already


class LearningUnavailable(BridgeError):
    """Nothing can be learned now: the learner is unreachable, refuses the password, or reports an error."""


class LearningRefused(BridgeError):
    """Nothing can be learned from this mail, now or later: too few words, too large."""


@dataclass(frozen=True, slots=True)
class LearningSettings:
    url: str  # of the controller
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None  # for https
    timeout_s: float = 10.0
    max_size: int = 10 * 1024 * 1024


class Learning:
    def __init__(self, settings: LearningSettings) -> None:
        self._settings = settings
        headers = {"Accept-Encoding": "identity"}
        if settings.password is not None:
            headers["Password"] = settings.password
        self._http = httpx2.Client(
            cookies=no_cookies(),
            headers=headers,
            verify=settings.tls or True,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx2.Timeout(settings.timeout_s, connect=min(settings.timeout_s, _CONNECT_S)),
        )

    def close(self) -> None:
        self._http.close()

    def learn(self, kind: ReportKind, content: Message) -> bool:
        """False if rspamd already knew it. Raises LearningUnavailable, LearningRefused."""
        if content.size > self._settings.max_size:
            raise LearningRefused("the mail is larger than feedback.rspamd.max_size")
        url = f"{self._settings.url}{_PATHS[kind]}"
        status, phrase, body = exchange(self._http, url, content.chunks(), content.size, "rspamd")
        return _read(status, body, visible(phrase)[:200])


def exchange(
    http: httpx2.Client,
    url: str,
    content: Iterable[bytes],
    size: int,
    who: str,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str, bytes]:
    """Post it; returns the status, the reason phrase and the body of the answer. Raises LearningUnavailable."""
    with_length = {**(headers or {}), "Content-Length": str(size)}  # else it would be sent chunked
    try:
        with http.stream("POST", url, content=content, headers=with_length) as response:
            status, phrase, body = response.status_code, response.reason_phrase, b""
            if response.headers.get("content-encoding", "identity").lower() != "identity":
                problem = "the answer is compressed, although an uncompressed one was requested"
                raise LearningUnavailable(f"{who}: {problem}")
            for piece in response.iter_raw():
                body += piece
                if len(body) > _MAX_ANSWER:
                    raise LearningUnavailable(f"{who}: the answer is too long")
    except httpx2.HTTPError as exc:
        raise LearningUnavailable(f"{who} cannot be reached: {reason(exc)}") from exc
    return status, phrase, body


def _read(status: int, body: bytes, phrase: str) -> bool:
    said, is_success = _said(body)
    said = said or phrase  # of a 204, which has no body
    if status == _LEARNED_BEFORE or _RECOGNISED in said:
        return False
    if status == 200 and is_success:
        return True
    if status in (401, 403):
        raise LearningUnavailable("rspamd refuses the password: see feedback.rspamd.password_file")
    if 200 <= status < 300 or status == 400:  # an answer about this mail
        raise LearningRefused(f"rspamd cannot learn from this mail: {said or f'HTTP status {status}'}")
    raise LearningUnavailable(f"rspamd answered with HTTP status {status}" + (f": {said}" if said else ""))


def _said(body: bytes) -> tuple[str, bool]:
    """What rspamd says about an error, and whether it says that it has learned."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return "", False
    if not isinstance(answer, dict):
        return "", False
    return visible(str(answer.get("error") or ""))[:200], answer.get("success") is True
