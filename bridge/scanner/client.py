"""Scanner: the scanning service as seen from us.

`submit` turns one mail into one decision, or into one of a few named errors, within one total
deadline. A host that cannot be reached is passed over; a request that was sent whole is never
sent again elsewhere, because the mail may have been scanned. The service's own word (status,
429, 503) is remembered here, so that admission can refuse before a mail travels.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bridge.api.failure import Failure
from bridge.api.scanning import (
    STATUS_PATH,
    SUBMIT_PATH,
    AnalysisRequest,
    AnalysisResult,
    QueueStatus,
    queue_status_from_json,
)
from bridge.errors import (
    MessageTooLarge,
    Saturated,
    ScanError,
    ScanMalformed,
    ScanRefused,
    ScanTimeout,
    ScanUnavailable,
)
from bridge.mail.message import Message
from bridge.scanner.http import Answer, AnswerTooLarge, ConnectionLost, HttpConnection

log = logging.getLogger(__name__)

Body = Callable[[], Iterable[bytes]]  # gives the content anew each time it is called

_MAX_ANSWER = 1024 * 1024
_MAX_IDLE_S = 4.0  # below the five seconds after which common servers close an idle connection
_SHUN_S = 2.0  # a host that could not be reached is asked last for this long
_MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True, slots=True)
class ScannerSettings:
    urls: tuple[str, ...]
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    connect_timeout_s: float = 5.0
    status_interval_s: float = 5.0


class Host:
    """One base URL: its idle connections, how busy it is, what it last said of itself."""

    def __init__(self, url: str, settings: ScannerSettings) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.url = url
        self.name = parts.hostname
        self.port = parts.port or (443 if parts.scheme == "https" else 80)
        self.tls = settings.tls if parts.scheme == "https" else None
        self.in_flight = 0
        self.status: QueueStatus | None = None  # None: not known
        self.shunned_until = 0.0
        self.saturated_until = 0.0
        self._idle: list[HttpConnection] = []
        host = f"[{self.name}]" if ":" in self.name else self.name
        common = f"Host: {host}:{self.port}\r\nAuthorization: Bearer {settings.token}\r\nAccept: application/json\r\n"
        self.submit_head = f"POST {parts.path}{SUBMIT_PATH} HTTP/1.1\r\n{common}".encode("latin-1")
        self.status_head = f"POST {parts.path}{STATUS_PATH} HTTP/1.1\r\n{common}Content-Length: 0\r\n\r\n".encode(
            "latin-1"
        )

    def take_idle(self, now: float) -> HttpConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now - connection.idle_since < _MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def give_back(self, connection: HttpConnection, now: float) -> None:
        if connection.reusable:
            connection.idle_since = now
            self._idle.append(connection)
        else:
            connection.close()

    async def connect(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: HttpConnection(_MAX_ANSWER),
            self.name,
            self.port,
            ssl=self.tls,
            server_hostname=self.name if self.tls else None,
        )
        return connection

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Scanner:
    """All hosts of the service."""

    def __init__(self, settings: ScannerSettings) -> None:
        self._settings = settings
        self.hosts = [Host(url, settings) for url in settings.urls]

    @property
    def in_flight(self) -> int:
        return sum(host.in_flight for host in self.hosts)

    def is_saturated(self) -> bool:
        """Whether every host has said that it has no room. Asked twice per mail: the usual answer is quick."""
        for host in self.hosts:
            if host.status is QueueStatus.RED:
                continue
            if not host.saturated_until or host.saturated_until <= asyncio.get_running_loop().time():
                return False
        return True

    def is_yellow(self) -> bool:
        """Whether no host says that all is well with it, and each says something."""
        return all(host.status in (QueueStatus.YELLOW, QueueStatus.RED) for host in self.hosts)

    async def submit(self, request: AnalysisRequest, message: Message, deadline: float) -> AnalysisResult:
        """One mail to one host. `deadline` is on the event loop's clock. Raises ScanError, Saturated."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._submit(request, message)
        except TimeoutError:
            raise ScanTimeout("no answer before the deadline") from None

    async def _submit(self, request: AnalysisRequest, message: Message) -> AnalysisResult:
        problem: ScanError | Saturated = ScanUnavailable("no scanner")
        boundary, head, tail = _multipart(request)
        length = len(head) + message.size + len(tail)
        for host in self._by_preference():
            host.in_flight += 1
            try:
                lines = b"Content-Type: multipart/form-data; boundary=%b\r\nContent-Length: %d\r\n\r\n"
                start = host.submit_head + lines % (boundary, length) + head
                return _read_result(host, await self._exchange(host, start, message.chunks, tail))
            except _NotReached as exc:
                log.warning("scanner %s could not be reached: %s", host.url, exc)
                host.shunned_until = asyncio.get_running_loop().time() + _SHUN_S
                problem = ScanUnavailable(f"{host.url}: {exc}")
            finally:
                host.in_flight -= 1
        raise problem

    def _by_preference(self) -> list[Host]:
        """Reachable ones first, then those with room, then the least busy."""
        if len(self.hosts) == 1:
            return self.hosts
        now = asyncio.get_running_loop().time()
        return sorted(
            self.hosts,
            key=lambda h: (
                h.shunned_until > now,
                h.status is QueueStatus.RED or h.saturated_until > now,
                h.in_flight,
                random.random(),  # noqa: S311 - only spreads equals
            ),
        )

    async def _exchange(self, host: Host, head: bytes, chunks: Body, tail: bytes = b"", fresh: bool = False) -> Answer:
        """Over an idle connection if there is one. Raises _NotReached, ScanUnavailable, ScanMalformed."""
        loop = asyncio.get_running_loop()
        connection = None if fresh else host.take_idle(loop.time())
        reused = connection is not None
        if connection is None:
            connection = await self._connect(host)
        try:
            answer = await connection.exchange(head, chunks(), tail)
        except ConnectionLost as exc:
            if reused and not exc.answered:  # most likely the server closed it before it read us: once more
                return await self._exchange(host, head, chunks, tail, fresh=True)
            if not exc.sent_whole and not exc.answered:
                raise _NotReached(str(exc)) from exc
            raise ScanUnavailable(f"{host.url}: {exc}") from exc
        except AnswerTooLarge as exc:
            raise ScanMalformed(f"{host.url}: the answer is too large") from exc
        except BaseException:  # cancelled in the middle: this connection is of no use any more
            connection.close()
            raise
        host.give_back(connection, loop.time())
        return answer

    async def _connect(self, host: Host) -> HttpConnection:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                return await host.connect()
        except ssl.SSLCertVerificationError as exc:
            raise _NotReached(f"its certificate is not valid: {exc.verify_message}") from exc
        except TimeoutError:
            raise _NotReached("no connection in time") from None
        except (OSError, ssl.SSLError) as exc:
            raise _NotReached(exc.strerror or type(exc).__name__) from exc

    async def status(self, host: Host, timeout_s: float) -> QueueStatus:
        """Ask one host how it is. Raises ScanError."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._exchange(host, host.status_head, lambda: ())
        except TimeoutError:
            raise ScanTimeout(f"{host.url}: no status in time") from None
        except _NotReached as exc:
            raise ScanUnavailable(f"{host.url}: {exc}") from exc
        if answer.status in (401, 403):
            raise ScanRefused(f"{host.url}: the token is refused ({answer.status})")
        if answer.status != 200:
            raise ScanUnavailable(f"{host.url}: status answered {answer.status}")
        try:
            return queue_status_from_json(answer.body)
        except (ValueError, RecursionError) as exc:
            raise ScanMalformed(f"{host.url}: the status cannot be read") from exc

    async def watch(self) -> None:
        """Poll the status of every host for ever, each at its own pace."""
        await asyncio.gather(*(self._watch(host) for host in self.hosts))

    async def _watch(self, host: Host) -> None:
        interval = self._settings.status_interval_s
        problem = ""
        while True:
            before, trouble = (host.status, problem), ""
            try:
                host.status = await self.status(host, timeout_s=interval)
            except (ScanError, Saturated) as exc:
                host.status, trouble = None, str(exc)
            problem = trouble
            if (host.status, problem) != before:
                level = logging.WARNING if problem else logging.INFO
                log.log(level, "scanner %s is %s", host.url, host.status or f"unknown: {problem}")
            await asyncio.sleep(interval * random.uniform(0.8, 1.2))  # noqa: S311 - jitter

    def close(self) -> None:
        for host in self.hosts:
            host.close()


class _NotReached(Exception):
    """The request did not get to this host: another may be asked."""


def _multipart(request: AnalysisRequest) -> tuple[bytes, bytes, bytes]:
    """Boundary, head and tail of the body. The boundary is random per mail, so no sender can put it into one."""
    boundary = os.urandom(18).hex().encode("ascii")
    head = (
        b'--%b\r\nContent-Disposition: form-data; name="parameters"\r\nContent-Type: application/json\r\n\r\n'
        b'%b\r\n--%b\r\nContent-Disposition: form-data; name="email"; filename="mail.eml"\r\n'
        b"Content-Type: message/rfc822\r\n\r\n"
    ) % (boundary, _parameters(request), boundary)
    return boundary, head, b"\r\n--%b--\r\n" % boundary


def _parameters(request: AnalysisRequest) -> bytes:
    """Strict JSON: bytes of a HELO that are no UTF-8 came as lone surrogates, which many readers refuse."""
    text = request.to_json()
    if b"\\ud" not in text:
        return text
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")


def _read_result(host: Host, answer: Answer) -> AnalysisResult:
    """The decision in an answer, or the error it means."""
    if answer.status == 200:
        if answer.early:
            raise ScanMalformed(f"{host.url}: a decision before the mail was there")
        if answer.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ScanMalformed(f"{host.url}: a compressed answer was not asked for")
        try:
            return AnalysisResult.from_json(answer.body)
        except (ValueError, RecursionError) as exc:
            raise ScanMalformed(f"{host.url}: the answer cannot be read") from exc
    failure = _failure(answer)
    text = f"{host.url}: {answer.status} {failure.error} {failure.message}".strip()[:300]
    if answer.status == 413:
        raise MessageTooLarge(text)
    if answer.status in (401, 403):
        raise ScanRefused(text)
    retry_after = _retry_after(answer)
    if answer.status == 429 or (answer.status == 503 and retry_after is not None):
        wait = min(retry_after or 0.0, _MAX_RETRY_AFTER_S)
        host.saturated_until = asyncio.get_running_loop().time() + wait
        raise Saturated(text, wait)
    if answer.status >= 500:
        raise ScanUnavailable(text)
    if answer.status >= 400:
        raise ScanRefused(text)
    raise ScanMalformed(text)


def _failure(answer: Answer) -> Failure:
    try:
        return Failure.from_json(answer.body)
    except RecursionError:  # brackets without end
        return Failure("")


def _retry_after(answer: Answer) -> float | None:
    """Seconds; a date is taken as one second, since nobody's clock is trusted here."""
    value = answer.headers.get(b"retry-after")
    if value is None:
        return None
    return float(value) if value.isdigit() and len(value) < 9 else 1.0
