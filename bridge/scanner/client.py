"""Scanner: the scanning service as seen from us.

`submit` turns one mail into one decision, or into one of a few named errors, within one total
deadline. A host that cannot be reached is passed over; a request that was sent whole is never
sent again elsewhere (unless the operator allows it), because the mail may have been scanned. The
service's own word (status, 429, 503) is remembered here, so that admission can refuse before a mail
travels, and a circuit per host remembers who failed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import ssl
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Never, Protocol

from bridge.api.scanning import AnalysisRequest, AnalysisResult, QueueStatus
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
from bridge.runtime.value import value
from bridge.scanner.answers import read_result, read_status
from bridge.scanner.circuit import Event, State
from bridge.scanner.host import Host, ScannerSettings
from bridge.scanner.http import Answer, AnswerTooLarge, ConnectionLost, DeadlinePassed, HttpConnection, LateAnswer

__all__ = ["Host", "LateScan", "Scanner", "ScannerSettings"]

log = logging.getLogger(__name__)

# Our own, not the module's: whoever seeds or watches that one is not disturbed by us.
_dice = random.Random()  # noqa: S311 - spreads load, keeps no secret


# Asked for each mail, and an enumeration takes its time to find a member.
_RED, _CLOSED, _SUCCESS = QueueStatus.RED, State.CLOSED, Event.SUCCESS
_PRESSED = (QueueStatus.YELLOW, QueueStatus.RED)


class Request(Protocol):
    """What a host is asked."""

    def to(self, host: Host) -> Iterable[bytes]:
        """Its bytes, made anew for each try."""


class Scanner:
    """All hosts of the service."""

    def __init__(self, settings: ScannerSettings) -> None:
        self._settings = settings
        self.hosts = [Host(url, settings) for url in settings.urls]

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Asyncio's own word for it is a system call each time."""
        return asyncio.get_running_loop()

    @property
    def in_flight(self) -> int:
        return sum(host.in_flight for host in self.hosts)

    def is_saturated(self) -> bool:
        """Whether every host that can serve has said that it has no room. Asked twice per mail: mostly quick."""
        full = False
        for host in self.hosts:
            if host.status is _RED or (host.saturated_until and host.saturated_until > self._loop.time()):
                full = True
            elif host.circuit.state is _CLOSED:
                return False
        return full

    def is_yellow(self) -> bool:
        """Whether every host asks for less."""
        for host in self.hosts:  # noqa: SIM110 - asked for each mail, and a generator takes its time
            if host.status not in _PRESSED:
                return False
        return True

    async def submit(
        self,
        request: AnalysisRequest,
        message: Message,
        deadline: float,
        keep_late: bool = False,
        header: bytes = b"",
    ) -> AnalysisResult:
        """One mail to one host, with a `header` of the caller's. `deadline` is on the event loop's clock.

        Raises ScanError, Saturated.

        With `keep_late`, a ScanTimeout may carry the scan that goes on: whoever catches it must await
        or abandon that.
        """
        problem: ScanError | Saturated | None = None
        loop = self._loop
        submission = _Submission(request, message, header)
        for host in self._by_preference():
            is_probe = host.begin()
            began = loop.time()
            try:
                answer = await self._exchange(host, submission, deadline)
                now = loop.time()
                host.took(now - began, now)
                return _learn(host, answer, now)
            except _NotReached as exc:
                host.learn(Event.UNREACHABLE, loop.time())
                log.warning("scanner %s could not be reached: %s", host.url, exc)
                problem = ScanUnavailable(f"{host.url}: {exc}")
            except DeadlinePassed as exc:
                _give_up(host, exc.late, keep_late)
            except (ScanUnavailable, ScanMalformed, Saturated) as exc:
                if not isinstance(exc, Saturated):
                    host.learn(Event.FAILURE, loop.time())
                if not self._settings.resubmit:
                    raise
                problem = exc
            finally:
                host.end(is_probe)
        raise problem or ScanUnavailable("every scanner host has failed just now")

    def _by_preference(self) -> list[Host]:
        """Those whose circuit admits a mail: with room, then a probe, then the least busy, then the quickest."""
        if len(self.hosts) == 1 and self.hosts[0].circuit.state is _CLOSED:
            return self.hosts
        now = self._loop.time()
        hosts = [host for host in self.hosts if host.circuit.admits(now)]
        if len(hosts) > 1:
            hosts.sort(
                key=lambda h: (
                    h.is_saturated(now),
                    h.circuit.state is State.CLOSED,
                    h.silent,
                    h.in_flight,
                    h.slowness(now),
                    _dice.random(),
                )
            )
        return hosts

    async def _exchange(self, host: Host, request: Request, deadline: float, fresh: bool = False) -> Answer:
        """Over an idle connection if there is one. Raises _NotReached, DeadlinePassed, ScanError."""
        loop = self._loop
        now = loop.time()
        if now >= deadline:
            raise DeadlinePassed(None)
        connection = None if fresh else host.take_idle(now)
        reused = connection is not None
        if connection is None:
            connection = await self._connect(host, deadline)
        waiting = connection.ask(request.to(host), deadline)
        try:
            answer = await waiting
        except ConnectionLost as exc:
            if not reused or exc.answered:
                raise _lost(host, exc) from exc
        except AnswerTooLarge as exc:
            raise ScanMalformed(f"{host.url}: the answer is too large") from exc
        except DeadlinePassed:
            raise
        except BaseException:  # cancelled in the middle: this connection is of no use any more
            connection.close()
            raise
        else:
            host.give_back(connection, loop.time())
            return answer
        finally:
            connection.forget(waiting)
            del waiting  # it holds the error, whose traceback holds this frame
        # Most likely the server had closed the connection before it read us: once more.
        return await self._exchange(host, request, deadline, fresh=True)

    async def _connect(self, host: Host, deadline: float) -> HttpConnection:
        loop = self._loop
        limit = loop.time() + self._settings.connect_timeout_s
        try:
            async with asyncio.timeout_at(min(limit, deadline)):
                return await host.connect()
        except ssl.SSLCertVerificationError as exc:
            raise _NotReached(f"its certificate is not valid: {exc.verify_message}") from exc
        except TimeoutError:
            if deadline < limit:
                raise DeadlinePassed(None) from None
            raise _NotReached("no connection in time") from None
        except (OSError, ssl.SSLError) as exc:
            raise _NotReached(exc.strerror or type(exc).__name__) from exc

    async def status(self, host: Host, timeout_s: float) -> QueueStatus:
        """Ask one host how it is. Raises ScanError."""
        loop = self._loop
        try:
            answer = await self._exchange(host, _STATUS, loop.time() + timeout_s)
        except DeadlinePassed as exc:
            if exc.late is not None:
                exc.late.abandon()
            host.unanswered += 1
            raise ScanTimeout(f"{host.url}: no status in time") from None
        except _NotReached as exc:
            host.unanswered += 1
            host.learn(Event.UNREACHABLE, loop.time())
            raise ScanUnavailable(f"{host.url}: {exc}") from exc
        host.answered()
        host.date = answer.headers.get(b"date", b"")
        status = read_status(host.url, answer)
        host.learn(Event.STATUS, loop.time())
        return status

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
                self._free_slots_of(host)
            problem = trouble
            if (host.status, problem) != before:
                level = logging.WARNING if problem else logging.INFO
                log.log(level, "scanner %s is %s", host.url, host.status or f"unknown: {problem}")
            await asyncio.sleep(interval * _dice.uniform(0.8, 1.2))

    def _free_slots_of(self, host: Host) -> None:
        """A frozen host would keep the slots of its late scans from the others for as long as a scan may take.

        A single host keeps them: with its slots free, more mail would only wait for it in vain, where it now
        hears at MAIL that there is no room.
        """
        if host.awaited and host.is_lost and not all(other.silent for other in self.hosts):
            log.warning("scanner %s is silent: %d late scans are given up", host.url, len(host.awaited))
            host.give_up_late()

    def close(self) -> None:
        for host in self.hosts:
            host.close()


class LateScan:
    """A scan that goes on after the deadline of its mail. It must be awaited or abandoned."""

    def __init__(self, host: Host, late: LateAnswer) -> None:
        self._host = host
        self._late: LateAnswer | None = late
        host.in_flight += 1
        host.awaited.add(late.connection)

    async def result(self) -> AnalysisResult:
        """The decision, when it comes. Raises ScanError, Saturated."""
        late, host, loop = self._late, self._host, asyncio.get_running_loop()
        assert late is not None
        try:
            answer = await late.answer()
            host.give_back(late.connection, loop.time())
            return _learn(host, answer, loop.time())
        except ConnectionLost as exc:
            host.learn(Event.FAILURE, loop.time())
            raise ScanUnavailable(f"{host.url}: {exc}") from exc
        except AnswerTooLarge as exc:
            raise ScanMalformed(f"{host.url}: the answer is too large") from exc
        finally:
            self._end()

    def abandon(self) -> None:
        """Nobody wants it any more. Harmless when it is over."""
        if self._late is not None:
            self._late.abandon()
            self._end()

    def _end(self) -> None:
        if self._late is not None:
            self._host.awaited.discard(self._late.connection)
            self._late = None
            self._host.in_flight -= 1


class _NotReached(Exception):
    """The request did not get to this host: another may be asked."""


def _lost(host: Host, exc: ConnectionLost) -> _NotReached | ScanUnavailable:
    """What a lost connection means: only if nothing was read at the other end may another host be asked."""
    if not exc.sent_whole and not exc.answered:
        return _NotReached(str(exc))
    return ScanUnavailable(f"{host.url}: {exc}")


def _give_up(host: Host, late: LateAnswer | None, keep_late: bool) -> Never:
    """The deadline has passed."""
    if late is not None and not keep_late:
        late.abandon()
        late = None
    raise ScanTimeout("no answer before the deadline", LateScan(host, late) if late else None) from None


def _learn(host: Host, answer: Answer, now: float) -> AnalysisResult:
    """The decision in an answer, or the error it means; the host's circuit learns what is no failure."""
    try:
        result = read_result(host.url, answer, host.token)
    except (MessageTooLarge, ScanRefused):
        host.learn(Event.ALIVE, now)
        raise
    except Saturated as exc:
        host.learn(Event.ALIVE, now)
        host.saturated_until = now + (exc.retry_after_s or 0.0)
        raise
    host.learn(_SUCCESS, now)
    return result


@value
class _Submission:
    """One mail as a request. Its bytes are made when they are sent: in memory they would wait for the scanner too."""

    request: AnalysisRequest
    message: Message
    header: bytes  # of the caller's

    def to(self, host: Host) -> Iterator[bytes]:
        boundary = next(_boundaries)
        head = (
            b'--%b\r\nContent-Disposition: form-data; name="parameters"\r\nContent-Type: application/json\r\n\r\n'
            b'%b\r\n--%b\r\nContent-Disposition: form-data; name="email"; filename="mail.eml"\r\n'
            b"Content-Type: message/rfc822\r\n\r\n"
        ) % (boundary, _parameters(self.request), boundary)
        tail = b"\r\n--%b--\r\n" % boundary
        lines = b"Content-Type: multipart/form-data; boundary=%b\r\nContent-Length: %d\r\n\r\n"
        lines %= (boundary, len(head) + self.message.size + len(tail))
        yield b"".join((host.submit_head, self.header, lines, head))
        yield from self.message.chunks()
        yield tail


def _draw() -> Iterator[bytes]:
    """Boundaries: random, so no sender can put one into a mail. Drawn by the hundred: it is a system call."""
    while True:
        drawn = os.urandom(100 * 18).hex().encode("ascii")
        yield from (drawn[start : start + 36] for start in range(0, len(drawn), 36))


_boundaries = _draw()


class _Status:
    def to(self, host: Host) -> Iterable[bytes]:
        return (host.status_head,)


_STATUS = _Status()


def _parameters(request: AnalysisRequest) -> bytes:
    """Strict JSON: bytes of a HELO that are no UTF-8 came as lone surrogates, which many readers refuse."""
    text = request.to_json()
    if text.find(b"\\ud") < 0:
        return text
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
