"""Scanner: the scanning service as seen from us.

`submit` turns one mail into one decision, or into one of a few named errors, within one total
deadline. If a host cannot be reached, the next one is tried; a request that was sent completely is
not sent to another host (unless the operator allows it), because the mail may have been scanned. What
the service reports about its load (status, 429, 503) is stored here, so that admission can refuse mail
before its content is sent; a circuit per host records failures.

If a host fails after it received some of a mail, the mail itself may be the cause, and its sender can send more
of them. Such a failure alone therefore says nothing about the host: a test mail (`probe_mail.py`), or other mail
that the host decided on meanwhile, shows whether it works. A mail that comes close to its deadline is settled in
the same way. If the host works, the failure belongs to the mail (`ScanFailed`). If this is wrong, one sender can
close the scanner for everybody, or have a mail delivered because it breaks the scanner.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import ssl
from collections.abc import Callable
from functools import cached_property, partial
from typing import Never

from bridge.api.scanning import AnalysisRequest, AnalysisResult, QueueStatus
from bridge.errors import (
    MessageTooLarge,
    Saturated,
    ScanError,
    ScanFailed,
    ScanMalformed,
    ScanRefused,
    ScanTimeout,
    ScanUnavailable,
)
from bridge.mail.message import Message
from bridge.runtime.value import value
from bridge.scanner.answers import BadGateway
from bridge.scanner.circuit import Event, State
from bridge.scanner.host import Host, ScannerSettings
from bridge.scanner.http import (
    Answer,
    AnswerTooLarge,
    ConnectionLost,
    DeadlinePassed,
    LateAnswer,
    ScannerConnection,
    WrongAnswer,
)
from bridge.scanner.late_scan import LateScan, ScanGoesOn
from bridge.scanner.probe_mail import probe_mail
from bridge.scanner.requests import STATUS, Request, Submission, new_id

__all__ = ["Host", "LateScan", "ScanGoesOn", "Scanner", "ScannerSettings"]

log = logging.getLogger(__name__)

# Our own generator, so that code which seeds the module's is not affected.
_dice = random.Random()  # noqa: S311 - spreads load, keeps no secret


_CHECK_LEAD = 1.1  # of the time that our own mail may take: it is sent so long before the deadline of a slow mail
_RETRY_S = 1.0  # between status requests to a host that refuses connections: its return is then seen at once
_MAX_STEPS = 4  # requests until a host that has to know us first reports its status
_PRESSED = (QueueStatus.YELLOW, QueueStatus.RED)


def _ignore(url: str) -> None:
    """Nobody wants to know."""


class Scanner:
    """All hosts of the service."""

    def __init__(self, settings: ScannerSettings) -> None:
        self._settings = settings
        self.hosts = [Host(url, settings) for url in settings.urls]

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Python 3.11: get_running_loop makes a system call (getpid) each time."""
        return asyncio.get_running_loop()

    @property
    def in_flight(self) -> int:
        return sum(host.in_flight for host in self.hosts)

    def is_saturated(self) -> bool:
        """Whether every available host has reported that it has no room. Called twice per mail."""
        full = False
        for host in self.hosts:
            if host.status is QueueStatus.RED or (host.saturated_until and host.saturated_until > self._loop.time()):
                full = True
            elif host.circuit.state is State.CLOSED:
                return False
        return full

    def is_yellow(self) -> bool:
        """Whether every host reports YELLOW or RED."""
        for host in self.hosts:  # noqa: SIM110 - called for each mail; a generator would be slower
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
        on_host: Callable[[str], None] = _ignore,
    ) -> AnalysisResult:
        """Send one mail to one host, with the caller's `header`. `deadline` is on the event loop's clock.

        `on_host` is called with the URL of each host that is asked.

        Raises ScanError, Saturated. With `keep_late` also ScanGoesOn, a ScanTimeout that carries the running
        scan: its catcher must await or abandon the scan.
        """
        problem: ScanError | Saturated | None = None
        doubts: list[_Doubt] = []  # hosts that got some of the mail and gave no decision
        loop = self._loop
        submission = Submission(request, message, header)
        limit = self._settings.max_request_bytes
        if limit is not None and (size := self.hosts[0].dialect.body_bytes(request, message)) > limit:
            raise MessageTooLarge(
                f"the request would have {size} bytes, more than the {limit} that the scanner accepts"
            )
        for host in self._by_preference():
            on_host(host.url)
            is_probe = host.begin()
            began, was_broken, was_silent = loop.time(), host.is_broken, host.silent
            may_go_on = True
            try:
                answer = await self._exchange(host, submission, deadline, is_mail=True)
                now = loop.time()
                host.took(now - began, now)
                return host.result_of(answer, now, began)
            except _NotReached as exc:
                host.learn(Event.UNREACHABLE, loop.time())
                host.failed(exc)
                log.warning("scanner %s could not be reached: %s", host.url, exc)
                problem = ScanUnavailable(f"{host.url}: {exc}")
                if exc.was_sent:
                    doubts.append(_Doubt(host, _Lost(str(problem), sent_whole=True), began, was_broken))
            except DeadlinePassed as exc:
                others_pass = bool(doubts) or host.decided_since > began
                is_slow = others_pass or not _is_down(host, began, was_broken, was_silent)
                _give_up(host, exc.late, keep_late, is_slow, others_pass)
            except (ScanUnavailable, ScanMalformed, ScanRefused) as exc:
                # Its traceback holds this frame, which holds the error: a reference cycle.
                problem, may_go_on = exc.with_traceback(None), self._may_go_on_after(exc)
                host.failed(exc)
                doubts.append(_Doubt(host, problem, began, was_broken))
                if host.decided_since <= began:
                    self._start_check(host, request.tenant_uid)
            except Saturated as exc:
                problem, may_go_on = exc, self._settings.resubmit
                if exc.retry_after_s and host.status not in _PRESSED:  # is it full, or was it this mail?
                    self._start_check(host, request.tenant_uid)
            finally:
                host.end(is_probe)
            if not may_go_on:
                break
            if len(doubts) > 1:  # a mail on which two hosts fail is not sent to a third
                failed = [doubt for doubt in doubts if isinstance(await self._blame(doubt, deadline), ScanFailed)]
                if len(failed) > 1:
                    break
                doubts = failed
        for doubt in doubts:
            error = await self._blame(doubt, deadline)
            if isinstance(error, ScanFailed):
                log.warning("scanner %s failed on one mail: %s", doubt.host.url, error)
                raise error
        raise problem or ScanUnavailable("every scanner host failed recently")

    def _may_go_on_after(self, error: ScanError) -> bool:
        """Whether another host may get the mail: it was not sent completely, or the operator allows it."""
        if isinstance(error, ScanRefused):
            return False
        return self._settings.resubmit or (isinstance(error, _Lost) and not error.sent_whole)

    async def _blame(self, doubt: _Doubt, deadline: float) -> ScanError:
        """The host's error if it fails on all mail, ScanFailed if the mail may be the cause."""
        host, error = doubt.host, doubt.error
        works = True if host.decided_since > doubt.began else await self._works(host, deadline)
        if isinstance(error, _Lost | BadGateway):
            # A mail that ends the scanner's process leaves a host behind that does not work, but did before.
            return error if doubt.was_broken and works is not True else ScanFailed(str(error))
        return error if works is False else ScanFailed(str(error))

    async def _works(self, host: Host, deadline: float) -> bool | None:
        """Whether the host decides on the test mail; None if that is not known in time."""
        check = host.check
        if check is None:
            return None
        await asyncio.wait({check}, timeout=max(0.0, deadline - self._loop.time()))
        return check.result() if check.done() and not check.cancelled() else None

    def _start_check(self, host: Host, tenant: str | None, limit_s: float = math.inf) -> None:
        """Send the host the test mail; one at a time."""
        if host.check is None or host.check.done():
            host.probe_tenant = tenant
            host.checked_at = self._loop.time()
            host.check = asyncio.create_task(self._check(host, tenant, limit_s))

    def _check_if_slow(self, host: Host, since: float, request: Request, limit_s: float) -> None:
        """A mail comes close to its deadline: is the host slow, or the mail?"""
        if host.decided_since <= since:
            self._start_check(host, request.tenant_uid, limit_s)

    async def _check(self, host: Host, tenant: str | None, limit_s: float) -> bool | None:
        loop = self._loop
        try:
            await self._scan_test_mail(host, tenant, min(self._settings.connect_timeout_s, limit_s))
        except (ScanTimeout, Saturated):
            return None
        except (ScanRefused, MessageTooLarge) as exc:
            host.is_broken = True
            host.failed(exc)
            return False
        except (_NotReached, ScanError) as exc:
            host.is_broken = True
            host.failed(exc)
            host.learn(Event.UNREACHABLE if isinstance(exc, _NotReached) else Event.FAILURE, loop.time())
            return False
        return True

    async def _scan_test_mail(self, host: Host, tenant: str | None, timeout_s: float) -> None:
        """Raises ScanError, Saturated, _NotReached."""
        loop = self._loop
        began = loop.time()
        request, message = probe_mail(tenant)
        answer = None
        try:
            answer = await self._exchange(host, Submission(request, message, b""), began + timeout_s)
        except DeadlinePassed as exc:
            if exc.late is not None:
                exc.late.abandon()
        finally:
            message.close()
        if answer is None:  # raised here: an error that another one caused would keep this frame, and the mail
            raise ScanTimeout(f"{host.url}: no decision on the test mail in time")
        host.result_of(answer, loop.time(), began)

    async def try_scan(self, host: Host, timeout_s: float) -> None:
        """Have one host decide on the test mail, as it would on any mail. Raises ScanError, Saturated."""
        try:
            await self._scan_test_mail(host, self._settings.tenant_uid, timeout_s)
        except _NotReached as exc:
            raise ScanUnavailable(f"{host.url}: {exc}") from exc

    def _by_preference(self) -> list[Host]:
        """Hosts whose circuit admits a mail: not refusing, with room, then probes, the least busy, the fastest."""
        if len(self.hosts) == 1 and self.hosts[0].circuit.state is State.CLOSED:
            return self.hosts
        now = self._loop.time()
        hosts = [host for host in self.hosts if host.circuit.admits(now)]
        if len(hosts) > 1:
            hosts.sort(
                key=lambda h: (
                    h.is_refusing,
                    h.is_saturated(now),
                    h.circuit.state is State.CLOSED,
                    h.silent,
                    h.in_flight,
                    h.slowness(now),
                    _dice.random(),
                )
            )
        return hosts

    async def _exchange(
        self,
        host: Host,
        request: Request,
        deadline: float,
        fresh: bool = False,
        is_mail: bool = False,
        renewed: bool = False,
    ) -> Answer:
        """One request over an idle connection if there is one. Raises _NotReached, DeadlinePassed, ScanError.

        A new connection has no earlier request whose answer could be taken for this one's.
        """
        loop = self._loop
        now = loop.time()
        if now >= deadline:
            raise DeadlinePassed(None)
        if not host.dialect.is_ready and request is not STATUS:
            await self._introduce(host, deadline)
        request_id = new_id()
        content = request.to(host, request_id)
        connection = None if fresh else host.take_idle(now)
        reused = connection is not None
        if connection is None:
            connection = await self._connect(host, deadline)
        check_s = min(self._settings.connect_timeout_s, (deadline - now) / 2)
        on_slow = partial(self._check_if_slow, host, now, request, check_s) if is_mail else None
        waiting = connection.ask(content, deadline, request_id, deadline - check_s * _CHECK_LEAD, on_slow)
        try:
            answer = await waiting
        except WrongAnswer:
            log.warning("scanner %s sent the answer to a different request; connection closed", host.url)
            if not reused:
                raise ScanMalformed(f"{host.url}: the answer belongs to another request") from None
        except ConnectionLost as exc:
            if not reused or exc.answered:
                raise _Lost(f"{host.url}: {exc}", exc.sent_whole) from exc
        except AnswerTooLarge as exc:
            raise ScanMalformed(f"{host.url}: the answer is too large") from exc
        except DeadlinePassed:
            raise
        except BaseException:  # cancelled midway: the connection cannot be used again
            connection.close()
            raise
        else:
            if reused and host.echoes and not answer.is_tied:
                log.warning("scanner %s gave an answer without our request id; connection closed", host.url)
                connection.close()
            else:
                host.give_back(connection, loop.time())
                if answer.status < 400 or renewed or not host.dialect.has_forgotten_us(answer):
                    return answer
                renewed = True
        finally:
            connection.forget(waiting)
            del waiting  # breaks a reference cycle: it holds the error, whose traceback holds this frame
        # Most likely the server closed the idle connection before it read the request, or has lost count of its
        # answers: try once more.
        try:
            return await self._exchange(host, request, deadline, True, is_mail, renewed)
        except _NotReached as exc:
            exc.was_sent = True  # or else the request was its end
            raise

    async def _connect(self, host: Host, deadline: float) -> ScannerConnection:
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
        """Request the status of one host. Raises ScanError."""
        deadline = self._loop.time() + timeout_s
        try:
            async with host.asking(deadline):
                status = await self._ask_status(host, deadline)
        except DeadlinePassed as exc:
            if exc.late is not None:
                exc.late.abandon()
            host.did_not_answer(self._loop.time())
            raise ScanTimeout(f"{host.url}: no status in time") from None
        except _NotReached as exc:
            host.did_not_answer(self._loop.time())
            host.learn(Event.UNREACHABLE, self._loop.time())
            raise ScanUnavailable(f"{host.url}: {exc}") from exc
        host.learn(Event.STATUS, self._loop.time())
        return status

    async def _ask_status(self, host: Host, deadline: float) -> QueueStatus:
        """Raises _NotReached, DeadlinePassed, ScanError. The caller holds `host.asking`."""
        for _ in range(_MAX_STEPS):
            answer = await self._exchange(host, STATUS, deadline)
            host.echoes = answer.is_tied  # the service may have been replaced by one that does not know our id
            host.answered(self._loop.time())
            host.date = answer.headers.get(b"date", b"")
            status = host.dialect.read_status(answer)
            if status is not None:
                return status
        raise ScanMalformed(f"{host.url}: it does not come to an end with our introduction")

    async def _introduce(self, host: Host, deadline: float) -> None:
        """Ask for the status, after which the host knows us. One mail does so for all that wait. Raises like it."""
        try:
            async with host.asking(deadline):
                if not host.dialect.is_ready:
                    await self._ask_status(host, deadline)
        except DeadlinePassed as exc:
            if exc.late is not None:  # an answer to the introduction is not one to the mail
                exc.late.abandon()
            raise DeadlinePassed(None) from None

    async def watch(self) -> None:
        """Poll the status of every host until cancelled, each with its own jitter."""
        await asyncio.gather(*(self._watch(host) for host in self.hosts))

    async def _watch(self, host: Host) -> None:
        interval = self._settings.status_interval_s
        problem = ""
        host.untried_since = self._loop.time()
        while True:
            before, trouble, pause_s = (host.status, problem), "", interval
            try:
                host.status = await self.status(host, timeout_s=interval)
            except (ScanError, Saturated) as exc:
                host.status, trouble = None, str(exc)
                self._free_slots_of(host)
                if host.silent and not isinstance(exc, ScanTimeout):  # which has already taken a while
                    pause_s = min(interval, _RETRY_S)
            if host.is_broken:
                self._start_check(host, host.probe_tenant)
            if host.untried_since is not None and host.decided_since > host.untried_since:
                host.untried_since = None
            problem = trouble
            host.status_problem = trouble.removeprefix(f"{host.url}: ")
            if (host.status, problem) != before:
                level = logging.WARNING if problem else logging.INFO
                log.log(level, "scanner %s is %s", host.url, host.status or f"unknown: {problem}")
            await asyncio.sleep(pause_s * _dice.uniform(0.8, 1.2))

    def _free_slots_of(self, host: Host) -> None:
        """Give up the late scans of a frozen host: they would occupy slots for as long as a scan may take.

        Not while all hosts are silent: with free slots, more mail would wait for them for nothing, while now it is
        refused at MAIL.
        """
        if host.awaited and host.is_lost and not all(other.silent for other in self.hosts):
            log.warning(
                "scanner %s does not answer status requests: giving up on %d late scans", host.url, len(host.awaited)
            )
            host.give_up_late()

    def close(self) -> None:
        for host in self.hosts:
            host.close()


class _NotReached(Exception):
    """No connection to this host: another one may be tried. `was_sent`: an earlier one was lost with the mail."""

    was_sent = False


class _Lost(ScanUnavailable):
    """The connection was lost while the mail was sent, or after that."""

    def __init__(self, text: str, sent_whole: bool) -> None:
        super().__init__(text)
        self.sent_whole = sent_whole


@value
class _Doubt:
    """A host that failed on a mail: is it the host, or the mail?"""

    host: Host
    error: ScanError
    began: float  # when the mail was sent
    was_broken: bool  # the host was known not to work before that


def _is_down(host: Host, began: float, was_broken: bool, was_silent: bool) -> bool:
    """Whether a host that did not answer a mail in time is known not to work, whatever the mail.

    It failed on the test mail, or it was known to be down before it got the mail. If nothing is known, the mail
    may be the reason: on a quiet host, or beside other slow mail of the same sender.
    """
    check = host.check
    works = None
    if check is not None and host.checked_at >= began and check.done() and not check.cancelled():
        works = check.result()
    return works is False or (works is None and (was_broken or (was_silent and host.silent)))


def _give_up(host: Host, late: LateAnswer | None, keep_late: bool, is_slow: bool, others_pass: bool) -> Never:
    """The deadline has passed: keep waiting in the background if the caller wants that and it is possible."""
    text = "no answer before the deadline"
    if late is not None and keep_late:
        raise ScanGoesOn(text, is_slow, others_pass, LateScan(host, late)) from None
    if late is not None:
        late.abandon()
    raise ScanTimeout(text, is_slow, others_pass) from None
