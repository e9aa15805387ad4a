"""rspamd learns a mail: `/learnspam` and `/learnham` of its controller.

The password is sent to the configured address and nowhere else: redirects are not followed, proxies from the
environment are not used. Answers are limited in size. Blocks, so callers in an event loop use a thread. rspamd itself
remembers what it has learned: the same report twice changes nothing, and after the opposite report it learns the mail
again.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
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
WHOLE_S = 300.0  # for one report; the timeouts of the client begin again with each byte
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
    whole_s: float = WHOLE_S
    max_size: int = 10 * 1024 * 1024


class Learning:
    def __init__(self, settings: LearningSettings) -> None:
        self._settings = settings
        headers = {"Accept-Encoding": "identity"}
        if settings.password is not None:
            headers["Password"] = settings.password
        timeout = httpx2.Timeout(settings.timeout_s, connect=min(settings.timeout_s, _CONNECT_S))
        self._connector = connector(headers, settings.tls, [settings.url], timeout, settings.whole_s)

    def learn(self, kind: ReportKind, content: Message) -> bool:
        """False if rspamd already knew it. Raises LearningUnavailable, LearningRefused."""
        if content.size > self._settings.max_size:
            raise LearningRefused("the mail is larger than feedback.rspamd.max_size")
        url = f"{self._settings.url}{_PATHS[kind]}"
        status, phrase, body = exchange(self._connector, url, content.chunks(), content.size, "rspamd")
        return _read(status, body, visible(phrase)[:200])


@dataclass(frozen=True, slots=True)
class Connector:
    """What makes a client for one exchange, and how long that may take."""

    make: Callable[[], httpx2.AsyncClient]
    whole_s: float


def connector(
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None,
    urls: Sequence[str],
    timeout: httpx2.Timeout,
    whole_s: float,
) -> Connector:
    """Reading the system's certificates takes time, so it is done once."""
    if tls is None:
        is_encrypted = any(url.startswith("https:") for url in urls)
        tls = ssl.create_default_context() if is_encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    def make() -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            cookies=no_cookies(),
            headers=headers,
            verify=tls,
            trust_env=False,
            follow_redirects=False,
            timeout=timeout,
        )

    return Connector(make, whole_s)


def exchange(
    connector: Connector,
    url: str,
    content: Iterable[bytes],
    size: int,
    who: str,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str, bytes]:
    """Post it; returns the status, the reason phrase and the body of the answer. Raises LearningUnavailable."""
    with_length = {**(headers or {}), "Content-Length": str(size)}  # else it would be sent chunked
    try:
        return asyncio.run(_exchange(connector, url, content, who, with_length))
    except TimeoutError as exc:
        raise LearningUnavailable(f"{who}: no whole answer within {connector.whole_s:g} s") from exc
    except httpx2.HTTPError as exc:
        raise LearningUnavailable(f"{who} cannot be reached: {reason(exc)}") from exc


async def _exchange(
    connector: Connector, url: str, content: Iterable[bytes], who: str, headers: Mapping[str, str]
) -> tuple[int, str, bytes]:
    """Raises TimeoutError and httpx2.HTTPError, too."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in content:
            yield piece

    async with (
        asyncio.timeout(connector.whole_s),
        connector.make() as http,
        http.stream("POST", url, content=pieces(), headers=headers) as response,
    ):
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise LearningUnavailable(f"{who}: the answer is compressed, although an uncompressed one was requested")
        body = b""
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > _MAX_ANSWER:
                raise LearningUnavailable(f"{who}: the answer is too long")
        return response.status_code, response.reason_phrase, body


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
