"""Late decisions: a scan may take an hour, an SMTP transaction may not.

When a mail's deadline passes, its client receives 451, but the scan continues. Its decision is stored, and
when the client sends the same mail again, it is answered immediately; while the scan still runs, it is
answered with another 451, and never scanned a second time. Until the scan ends, the mail holds its slot
in admission, because the scanner is working on it, but not its content, which has been uploaded.

One thread performs all store operations in order; mail never waits for a write. Most mail costs
only the check of an empty set. If this is wrong, one mail gets another's decision; therefore the
key is a strong hash of everything that the sender chose and the scanner saw.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol, TypeVar

from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import Saturated, ScanError
from bridge.filter.late.fingerprint import envelope_hash, fingerprint
from bridge.filter.late.store import Entry, LateStore, LateStoreError, MemoryStore
from bridge.mail.envelope import Envelope
from bridge.mail.message import Message
from bridge.runtime.lasting import lasting
from bridge.runtime.threads import Executor

log = logging.getLogger(__name__)

T = TypeVar("T")


class LateStatus(StrEnum):
    """How late decisions affected one mail, for log and metrics."""

    HIT = "hit"  # answered with a stored decision
    RUNNING = "running"  # another 451: its scan still runs
    AWAITED = "awaited"  # its deadline passed, its scan continues


class LateScanEnd(StrEnum):
    """How a scan ended that continued after its deadline."""

    KEPT = "kept"  # its decision is stored until the mail is sent again
    FAILED = "failed"  # no decision


class RunningScan(Protocol):
    """A scan whose deadline has passed: to be awaited or abandoned."""

    async def result(self) -> AnalysisResult: ...

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LateSettings:
    max_age_s: float = 86400.0
    max_entries: int = 100_000
    scan_limit_s: float = 3600.0
    refresh_s: float = 1.0  # how soon one worker learns of another worker's late mail
    overlap_s: float = 5.0  # read again each time: clocks and commits of several processes are not in order
    purge_s: float = 60.0  # also how often other machines learn that a scan is still awaited
    reopen_s: float = 10.0  # pause before a store that is unavailable is opened again
    lookup_limit_s: float = 2.0  # if the store takes longer, the mail is scanned
    write_limit_s: float = 1.0  # longest wait of a 451 until the store knows of the scan
    close_limit_s: float = 5.0
    spare_entries: int = 10_000  # kept in memory while the store fails
    hash_envelope: Callable[[str | None, Envelope], bytes] = envelope_hash
    hash_mail: Callable[[str | None, Envelope, Message], Awaitable[bytes]] = fingerprint

    @property
    def alive_s(self) -> float:
        """A machine that has not confirmed its running scans for this long no longer awaits them."""
        return 3 * self.purge_s


class LateDecisions:
    """Shared by all listeners. `start`; `look_up` and `follow` for each mail; `stop`."""

    def __init__(
        self, settings: LateSettings, store: LateStore, on_end: Callable[[LateScanEnd], None] = lambda end: None
    ) -> None:
        self.settings = settings
        self._store = store
        self._spare = MemoryStore()  # for entries that the store did not accept
        self._on_end = on_end
        self._owner = ""
        self._envelopes: set[bytes] = set()  # hashes of all envelopes in the store; some stale ones do no harm
        self._new_envelopes: set[bytes] = set()  # added since they were last read from the store
        self._stamp = 0  # the store's stamp when they were last read
        self._running: dict[bytes, bytes] = {}  # the mail's fingerprint -> its envelope's hash
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = Executor("late", 1)
        self._is_open = False
        self._is_failing = False
        self._is_stopped = False
        self._refresher: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Scans that continue after their deadline."""
        return len(self._running)

    def is_empty(self) -> bool:
        """Whether there is nothing to look up: the usual case."""
        return self._is_stopped or (not self._envelopes and self._store.stamp() == self._stamp)

    async def start(self) -> None:
        """Open the store; until it can be opened, entries are kept in memory."""
        self._owner = _this_process()
        self._is_open = await self._in_thread(self._open)
        await self._read_all()
        self._refresher = asyncio.create_task(lasting(self._refresh, "late decisions"))

    async def look_up(
        self, tenant: str | None, envelope: Envelope, message: Message
    ) -> AnalysisResult | LateStatus | None:
        """The decision on this mail, RUNNING while its scan continues, None when nothing is known."""
        settings = self.settings
        try:
            async with asyncio.timeout(settings.lookup_limit_s):
                if self._store.stamp() != self._stamp:  # another worker has added an entry
                    await self._read_new(settings.overlap_s + settings.refresh_s)
                if settings.hash_envelope(tenant, envelope) not in self._envelopes:
                    return None
                key = await settings.hash_mail(tenant, envelope, message)
                if key in self._running:
                    return LateStatus.RUNNING
                entry = await self._in_thread(self._get, key)
        except TimeoutError:
            log.warning("late decisions: the store did not answer in time; scanning the mail")
            return None
        return self._known(entry, time.time())

    def _known(self, entry: Entry | None, now: float) -> AnalysisResult | LateStatus | None:
        if entry is None or entry.changed_at < now - self.settings.max_age_s:
            return None
        alive_since, latest = now - self.settings.alive_s, now + self.settings.scan_limit_s
        if entry.result is not None:
            return entry.result if entry.changed_at <= latest else None
        return LateStatus.RUNNING if _is_awaited(entry, alive_since, latest) else None

    async def follow(
        self,
        tenant: str | None,
        envelope: Envelope,
        message: Message,
        scan: RunningScan,
        release: Callable[[], None],
    ) -> None:
        """Wait for this scan in the background; `release` is called when it has ended, whatever its result.

        Returns when all workers can know of the scan, so that a client cannot send the mail again before that.
        """
        try:
            key = await self.settings.hash_mail(tenant, envelope, message)
        except BaseException:
            scan.abandon()
            release()
            raise
        if self._is_stopped or key in self._running:  # the same mail arrived twice: one scan is enough
            scan.abandon()
            release()
            return
        entry = Entry(key, self.settings.hash_envelope(tenant, envelope), time.time(), self._owner)
        self._running[key] = entry.envelope
        self._envelopes.add(entry.envelope)
        self._new_envelopes.add(entry.envelope)
        written = asyncio.wrap_future(self._thread.submit(self._put, entry))
        task = asyncio.create_task(self._await(entry, scan, release))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([written], timeout=self.settings.write_limit_s)

    async def _await(self, entry: Entry, scan: RunningScan, release: Callable[[], None]) -> None:
        result: AnalysisResult | None = None
        try:
            async with asyncio.timeout(self.settings.scan_limit_s):
                result = await scan.result()
        except (ScanError, Saturated) as exc:
            log.warning("late scan failed: %s", exc)
        except TimeoutError:
            log.warning("late scan did not finish within %g s; giving up", self.settings.scan_limit_s)
        finally:
            scan.abandon()
            release()
            self._end(entry, result)

    def _end(self, entry: Entry, result: AnalysisResult | None) -> None:
        """Store a decision; without one, the mail is scanned again when it returns."""
        if result is not None and result.decision is not Decision.UNDECIDED:
            self._thread.submit(self._put, replace(entry, changed_at=time.time(), owner="", result=result))
            self._on_end(LateScanEnd.KEPT)
        else:
            self._thread.submit(self._remove, entry.key)
            self._on_end(LateScanEnd.FAILED)
        self._running.pop(entry.key, None)  # a look-up from now on asks the store, after the write above

    def give_up(self) -> None:
        """End running scans now, without a decision."""
        for task in self._tasks:
            task.cancel()

    async def stop(self, limit_s: float) -> None:
        """Give running scans this long to end, then store everything and close. A second call does nothing."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        self.give_up()
        if self._refresher is not None:
            self._refresher.cancel()
        await asyncio.gather(*self._tasks, *filter(None, [self._refresher]), return_exceptions=True)
        try:
            async with asyncio.timeout(self.settings.close_limit_s):
                await self._in_thread(self._store.close)
        except TimeoutError:
            log.warning("late decisions: the store did not close in time")
        self._thread.shutdown(wait=False)

    async def _refresh(self) -> None:
        """Read what other processes have stored, and remove what is too old."""
        purged = read = opened = time.monotonic()
        while True:
            await asyncio.sleep(self.settings.refresh_s)
            now = time.monotonic()
            if not self._is_open and now - opened >= self.settings.reopen_s:
                opened = now
                self._is_open = await self._in_thread(self._open)
            if now - purged >= self.settings.purge_s:
                purged = now
                await self._in_thread(self._purge)
                await self._read_all()
            elif self._store.shared:
                await self._read_new(now - read + self.settings.overlap_s)
            read = now

    async def _read_new(self, seconds: float) -> None:
        """Read what was stored in the last seconds."""
        stamp = self._store.stamp()
        found = await self._in_thread(self._read_envelopes, time.time() - seconds)
        if found is not None:
            self._envelopes |= found
            self._stamp = stamp

    async def _read_all(self) -> None:
        self._new_envelopes = set()
        self._stamp = self._store.stamp()
        found = await self._in_thread(self._read_envelopes, 0.0)
        if found is not None:
            self._envelopes = found | self._new_envelopes | set(self._running.values())

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    # In the thread. A failing store costs a second scan, never a mail.

    def _open(self) -> bool:
        return self._try(self._store.open)

    def _put(self, entry: Entry) -> None:
        if self._try(self._store.put, entry):
            self._spare.remove(entry.key)
            return
        self._spare.put(entry)
        self._spare.purge(0.0, self.settings.spare_entries)

    def _get(self, key: bytes) -> Entry | None:
        found: list[Entry | None] = [self._spare.get(key)]
        if found[0] is None:
            self._try(lambda: found.append(self._store.get(key)))
        return found[-1]

    def _remove(self, key: bytes) -> None:
        self._spare.remove(key)
        self._try(self._store.remove, key)

    def _read_envelopes(self, since: float) -> set[bytes] | None:
        found: list[set[bytes]] = []
        self._try(lambda: found.append(self._store.envelopes(since)))
        return found[0] | self._spare.envelopes(since) if found else None

    def _purge(self) -> None:
        now, settings = time.time(), self.settings
        before, latest = now - settings.max_age_s, now + settings.scan_limit_s
        self._spare.purge(before, settings.spare_entries, latest)
        if self._running:
            self._try(self._store.touch, self._owner, now)
        self._try(self._store.purge, before, settings.max_entries, latest)

    def _try(self, work: Callable[..., object], *arguments: object) -> bool:
        """Returns whether it worked; a lasting failure is logged once."""
        try:
            work(*arguments)
        except LateStoreError as exc:
            if not self._is_failing:
                log.error("late decisions: the store failed (%s); new entries are kept only in memory", exc)
            self._is_failing = True
            return False
        if self._is_failing:
            log.info("late decisions: the store is working again")
        self._is_failing = False
        return True


def _this_process() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def _is_awaited(entry: Entry, alive_since: float, latest: float) -> bool:
    """Whether the process that awaits the scan still exists; on another machine: whether it confirmed that recently.

    A time after `latest` comes from a clock that was wrong: it would be recent for as long as the clock was ahead.
    """
    try:
        host, pid, started = entry.owner.rsplit("/", 2)
        if host == socket.gethostname():
            return _started(int(pid)) == started
    except ValueError:  # not written by us
        return False
    return alive_since < entry.changed_at <= latest


def _started(pid: int) -> str:
    """When a process was started, to recognise a reused process id; "" if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
