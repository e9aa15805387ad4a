"""One host of the scanner: its idle connections, its load and latency, and its health as far as we know it.

Decides nothing about mail; `client.py` chooses among hosts by what is recorded here.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import frexp
from urllib.parse import urlsplit

from bridge.api.scanning import AnalysisResult, QueueStatus
from bridge.errors import MessageTooLarge, NoRoom, Saturated, ScanMalformed, ScanRefused
from bridge.runtime.host_addresses import MAX_CONNECTION_AGE_S, NameLookup
from bridge.scanner.bounded_result import bounded
from bridge.scanner.circuit import Circuit, Event, State
from bridge.scanner.dialect import MakeDialect
from bridge.scanner.dialects.email_scanning import EmailScanning
from bridge.scanner.discovery import DiscoverySettings, Place
from bridge.scanner.http import Answer, DeadlinePassed, ScannerConnection, SharedByConnections

log = logging.getLogger(__name__)

_MAX_ANSWER = 1024 * 1024
_MAX_IDLE_S = 4.0  # below the five seconds after which common servers close an idle connection
_LOST_AFTER = 3  # consecutive status requests without an answer
_SILENT_AFTER = 2
_LATENCY_MEMORY_S = 10.0  # after that a slow host gets another try
# Python 3.11: looking up an enum member takes 0.3 us (`bridge/scanner/circuit.py`).
_SUCCESS = Event.SUCCESS


@dataclass(frozen=True, slots=True)
class ScannerSettings:
    urls: tuple[str, ...]
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    connect_timeout_s: float = 5.0
    status_interval_s: float = 5.0
    resubmit: bool = False  # a mail that was sent completely may be sent to another host as well
    max_request_bytes: int | None = None  # for a service that counts the form around the mail as well
    tenant_uid: str | None = None  # for mail that belongs to no other tenant; `try_scan` sends such a mail
    dialect: MakeDialect = EmailScanning
    discovery: DiscoverySettings | None = None  # the hosts behind `urls` are found in DNS


def configured(url: str) -> Place:
    """A host whose address the system looks up for each connection."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Place(url, url, parts.hostname, port, (parts.hostname,))


class Host:
    """One base URL, or one of the hosts that its name stands for."""

    def __init__(self, place: Place, settings: ScannerSettings) -> None:
        parts = urlsplit(place.base_url)
        self.place = place
        self.url = place.url
        self.dialect = settings.dialect(place.base_url, settings.token)
        self.tls = settings.tls if parts.scheme == "https" else None
        self.in_flight = 0
        self.status: QueueStatus | None = None  # None: unknown
        self.unanswered = 0  # consecutive status requests without an answer
        self.silent_since = 0.0  # when the first of them ended
        self._asked_at: float | None = None  # when the last status request ended
        self.status_problem = ""  # what the last status request failed with
        self.scan_problem = ""  # what the last scan failed with, if none has succeeded since
        self._has_status = False  # it has answered a status request before
        self.awaited: set[ScannerConnection] = set()  # connections on which a late answer is expected
        self.saturated_until = 0.0
        self.saturated_at = 0.0
        self.certificate: bytes | None = None  # of the last connection, as DER
        self.date = b""  # the Date field of its last status answer
        self.circuit = Circuit(settings.status_interval_s)
        self.decided_since = 0.0  # of the mails it has decided on, when the last one was sent
        self.echoes = False  # its answers carry our request id
        self.is_broken = False  # it failed on the test mail, and has decided on none since
        self.check: asyncio.Task[bool | None] | None = None  # whether it decides on the test mail
        self.checked_at = 0.0  # when that mail was sent
        self.probe_tenant: str | None = None
        self.untried_since: float | None = None  # since then no mail has shown whether it scans
        self._latency_s = 0.0  # a running average
        self._latency_at = 0.0
        self._idle: list[ScannerConnection] = []
        self._shared: SharedByConnections | None = None
        self._names = NameLookup()
        self._reached = ""  # the last address that accepted a connection
        self._closed = False
        self._asking = asyncio.Lock()

    def begin(self) -> bool:
        """A mail is about to be sent; returns whether it is the circuit's probe. The caller must call `end`."""
        self.in_flight += 1
        return self.circuit.begin()

    def end(self, is_probe: bool) -> None:
        self.in_flight -= 1
        if is_probe:
            self.circuit.release()

    def learn(self, event: Event, now: float) -> None:
        """Feed the circuit; log when it opens or closes."""
        before = self.circuit.state
        self.circuit.feed(event, now)
        after = self.circuit.state
        if after is not before and State.CLOSED in (before, after):
            level = logging.INFO if after is State.CLOSED else logging.WARNING
            log.log(level, "scanner %s: its circuit is %s", self.url, after)

    @property
    def silent(self) -> bool:
        return self.unanswered > 0

    @property
    def is_lost(self) -> bool:
        """Most likely frozen: it used to answer status requests and has stopped."""
        return self._has_status and self.unanswered >= _LOST_AFTER

    @property
    def is_refusing(self) -> bool:
        """It refused the test mail, or does not know our token: other hosts get the mail, if there are any."""
        return (self.is_broken and self.scan_problem[:1] == "4") or "(401)" in self.status_problem

    @property
    def outage(self) -> tuple[str, str]:
        """Why no mail is scanned here, as far as we know, and which policy case applies; empty if mail is scanned."""
        if "(401)" in self.status_problem:  # with 403, the token may still have the permission to scan
            return self.status_problem, "refused"
        is_back = self.circuit.state is State.CLOSED or (self.circuit.state is State.HALF_OPEN and not self.silent)
        if self.is_broken or not is_back:
            case = "refused" if self.is_refusing else "unreachable"
            problem = self.status_problem if self.silent else self.scan_problem
            return problem or self.scan_problem or "it failed recently", case
        if self.unanswered >= _SILENT_AFTER and self.decided_since < self.silent_since:
            return self.status_problem, "deadline"
        return "", ""

    def age_s(self, now: float) -> float | None:
        """The age of what we know: of the last status request or the last mail it decided on. None without either."""
        known = max(self._asked_at or 0.0, self.decided_since)
        return max(now - known, 0.0) if known else None

    def result_of(self, answer: Answer, now: float, began: float) -> AnalysisResult:
        """The decision in an answer to a mail that was sent at `began`. Updates the circuit, except on a failure.

        Raises ScanError, Saturated.
        """
        if answer.is_tied:
            self.echoes = True
        elif self.echoes and answer.status == 200:
            raise ScanMalformed(f"{self.url}: the decision does not contain the request id, although earlier ones did")
        try:
            result = bounded(self.dialect.result(answer))
        except (MessageTooLarge, ScanRefused, NoRoom):
            self.learn(Event.ALIVE, now)
            raise
        except Saturated as exc:
            self.learn(Event.ALIVE, now)
            self.saturated_at, self.saturated_until = now, now + (exc.retry_after_s or 0.0)
            raise
        self.learn(_SUCCESS, now)
        self.is_broken, self.scan_problem = False, ""
        if self.saturated_until and began >= self.saturated_at:
            self.saturated_until = 0.0
        if began > self.decided_since:
            self.decided_since = began
        return result

    def failed(self, problem: object) -> None:
        """A scan failed; the text may begin with our URL."""
        self.scan_problem = str(problem).removeprefix(f"{self.url}: ")

    def did_not_answer(self, now: float) -> None:
        """A status request was not answered in time, or there was no connection."""
        self._asked_at = now
        if not self.unanswered:
            self.silent_since = now
        self.unanswered += 1

    def answered(self, now: float) -> None:
        """A status request was answered, with whatever status."""
        self._asked_at = now
        self.unanswered = 0
        self._has_status = True

    @asynccontextmanager
    async def asking(self, deadline: float) -> AsyncIterator[None]:
        """For status requests, one at a time: each may be a step of an introduction. Raises DeadlinePassed."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._asking.acquire()
        except TimeoutError:
            raise DeadlinePassed(None) from None
        try:
            yield
        finally:
            self._asking.release()

    def give_up_late(self) -> None:
        """Close the connections of scans whose deadline has passed; they end with ConnectionLost."""
        for connection in list(self.awaited):
            connection.close()

    def is_saturated(self, now: float) -> bool:
        return self.status is QueueStatus.RED or self.saturated_until > now

    def took(self, seconds: float, now: float) -> None:
        """Record the latency of one answered mail."""
        self._latency_s = seconds if now - self._latency_at > _LATENCY_MEMORY_S else (3 * self._latency_s + seconds) / 4
        self._latency_at = now

    def slowness(self, now: float) -> int:
        """Comparable between hosts, in powers of two, so that hosts of similar speed share the mail."""
        return -1000 if now - self._latency_at > _LATENCY_MEMORY_S else frexp(self._latency_s)[1]

    def take_idle(self, now: float) -> ScannerConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and now - connection.idle_since < _MAX_IDLE_S:
                return connection
            connection.close()
        return None

    def give_back(self, connection: ScannerConnection, now: float) -> None:
        if connection.reusable and not self._closed and now - connection.opened_at < MAX_CONNECTION_AGE_S:
            connection.idle_since = now
            self._idle.append(connection)
        else:
            connection.close()

    def is_at(self, place: Place | None) -> bool:
        """Whether it is the same host, although its addresses and weight may have changed."""
        return place is not None and (place.name, place.base_url) == (self.place.name, self.place.base_url)

    async def connect(self, timeout_s: float) -> ScannerConnection:
        """To the first address that accepts; each gets an equal share of the time. Raises OSError, ssl.SSLError."""
        *others, last = sorted(self.place.addresses, key=lambda address: address != self._reached)
        part_s = timeout_s / len(self.place.addresses)
        for address in others:
            with suppress(OSError):  # which includes SSLError and TimeoutError; the last one's error is reported
                async with asyncio.timeout(part_s):
                    return await self._reach(address, part_s)
        return await self._reach(last, part_s)

    async def _reach(self, address: str, limit_s: float) -> ScannerConnection:
        connection = await self._names.connect(address, self._connect, limit_s, ScannerConnection.close)
        self._reached = address  # the next time, this one is tried first
        return connection

    async def _connect(self, address: str) -> ScannerConnection:
        loop = asyncio.get_running_loop()
        shared = self._shared = self._shared or SharedByConnections()
        transport, connection = await loop.create_connection(
            lambda: ScannerConnection(_MAX_ANSWER, shared),
            address,
            self.place.port,
            ssl=self.tls,
            server_hostname=self.place.name if self.tls else None,
        )
        if self.tls is not None:
            self.certificate = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return connection

    @property
    def is_drained(self) -> bool:
        return not self.in_flight and not self.awaited

    def close(self) -> None:
        """Close idle connections. Mail in progress may finish; its connection is closed afterwards."""
        if self.check is not None:
            self.check.cancel()
        self.retire()

    def retire(self) -> None:
        """Stop keeping idle connections: this host gets no more mail."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
