"""Scanner: the scanning service as seen from us.

`submit` turns one mail into one decision, or into one of a few named errors, within one total
deadline. If a host cannot be reached, the next one is tried; a request that was sent completely is
not sent to another host (unless the operator allows it), because the mail may have been scanned. What
the service reports about its load (status, 429, 503) is stored here, so that admission can refuse mail
before its content is sent; a circuit per host records failures.

If a host fails on a mail, `mail_or_host.py` settles whether the host or the mail is to blame.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import cached_property, partial
from typing import Never

from bridge.api.scanning import AnalysisRequest, AnalysisResult, QueueStatus
from bridge.errors import (
    MessageTooLarge,
    NoRoom,
    Saturated,
    ScanError,
    ScanFailed,
    ScanMalformed,
    ScanRefused,
    ScanTimeout,
    ScanUnavailable,
)
from bridge.mail.message import Message
from bridge.runtime.lasting import lasting
from bridge.scanner.circuit import Event, State
from bridge.scanner.discovery import Discovery
from bridge.scanner.exchange import Exchange, HostNotReached, Lost, NotReached
from bridge.scanner.host import Host, ScannerSettings, configured
from bridge.scanner.http import DeadlinePassed, LateAnswer
from bridge.scanner.late_scan import LateScan, ScanGoesOn
from bridge.scanner.mail_or_host import Attempt, Doubt, Trials
from bridge.scanner.requests import Submission

__all__ = ["Host", "LateScan", "ScanGoesOn", "Scanner", "ScannerSettings"]

log = logging.getLogger(__name__)

# A separate generator, so that code that seeds the module's own does not affect it.
_dice = random.Random()  # noqa: S311 - spreads load, keeps no secret


_RETRY_S = 1.0  # between status requests to a host that refuses connections or gets only probes
_WEIGHT_0 = 0.1  # RFC 2782: a small chance compared with records that have a weight
_PRESSED = (QueueStatus.YELLOW, QueueStatus.RED)
# Python 3.11: looking up an enum member takes 0.3 us (`bridge/scanner/circuit.py`).
_RED, _CLOSED = QueueStatus.RED, State.CLOSED


def _ignore(url: str) -> None:
    """For callers that do not need to know."""


class Scanner:
    """All hosts of the service."""

    def __init__(self, settings: ScannerSettings) -> None:
        """Raises ConfigError if a library is missing."""
        self._settings = settings
        given = settings.discovery
        self.discoveries = [Discovery(url, given) for url in settings.urls] if given is not None else []
        self.hosts = [] if self.discoveries else [Host(configured(url), settings) for url in settings.urls]
        self._retired: list[Host] = []  # no longer in DNS, but with mail in progress
        self._first_look: asyncio.Task[float] | None = None
        self._dialect = settings.dialect(settings.urls[0], settings.token)
        self._exchange = Exchange(settings.connect_timeout_s)
        self._trials = Trials(self._exchange, settings.connect_timeout_s)

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        """Python 3.11: get_running_loop makes a system call (getpid) each time."""
        return asyncio.get_running_loop()

    @property
    def in_flight(self) -> int:
        return sum(host.in_flight for host in (*self.hosts, *self._retired))

    def is_saturated(self) -> bool:
        """Whether every available host has reported that it has no room. Called twice per mail."""
        full = False
        for host in self.hosts:
            if host.status is _RED or (host.saturated_until and host.saturated_until > self._loop.time()):
                full = True
            elif host.circuit.state is _CLOSED:
                return False
        return full

    def is_yellow(self) -> bool:
        """Whether every host reports YELLOW or RED."""
        for host in self.hosts:
            if host.status not in _PRESSED:
                return False
        return bool(self.hosts)

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
        if self._settings.max_request_bytes is not None:
            self._check_size(request, message, self._settings.max_request_bytes)
        if not self.hosts:
            await self._discover_first(deadline)
        submission = Submission(request, message, header)
        problem: ScanError | Saturated | None = None
        doubts: list[Doubt] = []
        for host in self._by_preference():
            on_host(host.url)
            is_probe = host.begin()
            if is_probe:
                host.probe_tenant = request.tenant_uid
            attempt = Attempt(host, self._loop.time(), host.is_broken, host.silent)
            try:
                answer = await self._exchange.ask(host, submission, deadline, self._trials.start_if_slow)
                now = self._loop.time()
                host.took(now - attempt.began, now)
                return host.result_of(answer, now, attempt.began)
            except DeadlinePassed as exc:
                _give_up(attempt, exc.late, keep_late, others_pass=bool(doubts))
            except (NotReached, ScanUnavailable, ScanMalformed, ScanRefused, Saturated) as exc:
                # Its traceback holds this frame, which holds the error: a reference cycle.
                error = exc.with_traceback(None)
                problem = self._learn_from(attempt, error, request.tenant_uid, doubts)
            finally:
                host.end(is_probe)
            if not self._may_go_on_after(error):
                break
            if len(doubts) > 1:  # a mail on which two hosts fail is not sent to a third
                doubts = [doubt for doubt in doubts if await self._is_mail_to_blame(doubt, deadline)]
                if len(doubts) > 1:
                    break
        for doubt in doubts:
            blamed = await self._trials.blame(doubt, deadline)
            if isinstance(blamed, ScanFailed):
                log.warning("scanner %s failed on one mail: %s", doubt.attempt.host.url, blamed)
                raise blamed
        raise problem or self._no_host()

    def _no_host(self) -> ScanUnavailable:
        if self.hosts:
            return ScanUnavailable("every scanner host failed recently")
        found = "; ".join(f"{known.url}: {known.problem}" for known in self.discoveries)
        return ScanUnavailable(f"no scanner host has been found yet: {found}")

    def _check_size(self, request: AnalysisRequest, message: Message, limit: int) -> None:
        """Raises MessageTooLarge."""
        if (size := self._dialect.body_bytes(request, message)) > limit:
            raise MessageTooLarge(
                f"the request would be {size} bytes long, more than the {limit} that the scanner accepts"
            )

    def _learn_from(
        self, attempt: Attempt, error: NotReached | ScanError | Saturated, tenant: str | None, doubts: list[Doubt]
    ) -> ScanError | Saturated:
        """Note what a failure says about the host, and whether the mail may be the cause. Returns the final error."""
        host = attempt.host
        if isinstance(error, NotReached):
            host.learn(Event.UNREACHABLE, self._loop.time())
            host.failed(error)
            log.warning("scanner %s could not be reached: %s", host.url, error)
            problem = HostNotReached(host, error)
            if error.was_sent:
                doubts.append(Doubt(attempt, Lost(str(problem), sent_whole=True)))
            return problem
        if isinstance(error, Saturated):
            is_known = isinstance(error, NoRoom) or host.status in _PRESSED
            if error.retry_after_s and not is_known:  # is the host full, or was this mail the reason?
                self._trials.start(host, tenant)
            return error
        host.failed(error)
        doubts.append(Doubt(attempt, error))
        if host.decided_since <= attempt.began:
            self._trials.start(host, tenant)
        return error

    def _may_go_on_after(self, error: NotReached | ScanError | Saturated) -> bool:
        """Whether another host may get the mail: it was not sent completely, or the operator allows it."""
        if isinstance(error, NotReached):
            return True
        if isinstance(error, ScanRefused):
            return False
        return self._settings.resubmit or (isinstance(error, Lost) and not error.sent_whole)

    async def _is_mail_to_blame(self, doubt: Doubt, deadline: float) -> bool:
        return isinstance(await self._trials.blame(doubt, deadline), ScanFailed)

    async def try_scan(self, host: Host, timeout_s: float) -> None:
        """Have one host decide on the test mail, as it would on any mail. Raises ScanError, Saturated."""
        try:
            await self._trials.scan(host, self._settings.tenant_uid, timeout_s)
        except NotReached as exc:
            raise HostNotReached(host, exc) from exc

    async def status(self, host: Host, timeout_s: float) -> QueueStatus:
        """Request the status of one host. Raises ScanError, Saturated."""
        return await self._exchange.status(host, timeout_s)

    def _by_preference(self) -> list[Host]:
        """Hosts whose circuit admits a mail: not refusing, with room, then probes, the least busy, the fastest."""
        if len(self.hosts) == 1 and self.hosts[0].circuit.state is _CLOSED:
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
                    h.place.priority,
                    h.in_flight / (h.place.weight or _WEIGHT_0),
                    h.slowness(now),
                    _dice.expovariate(h.place.weight or _WEIGHT_0),
                )
            )
        return hosts

    async def watch(self) -> None:
        """Poll the status of every host until cancelled, each with its own jitter; look for hosts in DNS."""
        if not self.discoveries:
            await asyncio.gather(*(self._watch_lastingly(host) for host in self.hosts))
            return
        watched: dict[Host, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                pause_s = await self.discover()
                for host in watched.keys() - self.hosts:
                    watched.pop(host).cancel()
                new = [host for host in self.hosts if host not in watched]
                watched |= {host: group.create_task(self._watch_lastingly(host)) for host in new}
                await asyncio.sleep(pause_s * _dice.uniform(0.9, 1.0))

    async def discover(self) -> float:
        """Look for hosts in DNS; returns the seconds until the next lookup. Mail in progress is not affected."""
        pauses = await asyncio.gather(*(known.look() for known in self.discoveries))
        places = {place.url: place for known in self.discoveries for place in known.places}
        for host in self.hosts:
            if not host.is_at(places.get(host.url)):
                log.info("scanner %s is no longer in DNS; mails in progress: %d", host.url, host.in_flight)
                host.retire()
                self._retired.append(host)
        self._retired = [host for host in self._retired if not host.is_drained]
        kept = {host.url: host for host in self.hosts if host.is_at(places.get(host.url))}
        for url, place in places.items():
            if url not in kept:
                log.info("scanner %s found in DNS", url)
                kept[url] = Host(place, self._settings)
            kept[url].place = place  # its priority, weight and addresses may have changed
        self.hosts = list(kept.values())
        return min(pauses)

    async def _discover_first(self, deadline: float) -> None:
        """Until DNS has answered once, mail waits for DNS as it waits for a connection."""
        if self._first_look is None or self._first_look.done():
            self._first_look = asyncio.create_task(self.discover())
        wait_s = min(self._settings.connect_timeout_s, deadline - self._loop.time())
        await asyncio.wait({self._first_look}, timeout=max(0.0, wait_s))

    async def _watch_lastingly(self, host: Host) -> None:
        """An unexpected answer from one host must not end the watch of all hosts."""
        await lasting(partial(self._watch, host), f"status of scanner {host.url}")

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
            is_returning = host.circuit.state is not _CLOSED and not (host.silent or host.is_broken)
            if is_returning:
                pause_s = min(interval, _RETRY_S)
            if host.is_broken or (is_returning and host.circuit.is_probing):  # all other mail waits for the result
                self._trials.start(host, host.probe_tenant)
            if host.untried_since is not None and host.decided_since > host.untried_since:
                host.untried_since = None
            problem = trouble
            host.status_problem = trouble.removeprefix(f"{host.url}: ")
            if (host.status, problem) != before:
                level = logging.WARNING if problem else logging.INFO
                log.log(level, "scanner %s: its status is %s", host.url, host.status or f"unknown: {problem}")
            await asyncio.sleep(pause_s * _dice.uniform(0.8, 1.2))

    def _free_slots_of(self, host: Host) -> None:
        """Give up the late scans of a frozen host: they would occupy slots for as long as a scan may take.

        Not while all hosts are silent: with free slots, more mail would wait for an answer that never comes; without
        them, it is refused at MAIL.
        """
        if host.awaited and host.is_lost and not all(other.silent for other in self.hosts):
            log.warning(
                "scanner %s does not answer status requests: giving up on %d late scans", host.url, len(host.awaited)
            )
            host.give_up_late()

    def close(self) -> None:
        if self._first_look is not None:
            self._first_look.cancel()
        for host in (*self.hosts, *self._retired):
            host.close()


def _give_up(attempt: Attempt, late: LateAnswer | None, keep_late: bool, others_pass: bool) -> Never:
    """The deadline has passed: keep waiting in the background if the caller wants that and it is possible."""
    host, text = attempt.host, "no answer before the deadline"
    others_pass = others_pass or host.decided_since > attempt.began
    is_slow = others_pass or not attempt.host_is_down
    if late is not None and keep_late:
        raise ScanGoesOn(text, is_slow, others_pass, LateScan(host, late)) from None
    if late is not None:
        late.abandon()
    raise ScanTimeout(text, is_slow, others_pass) from None
