"""Late decisions: the service may take an hour, SMTP may not.

When the deadline of a mail passes, its client reads 451, but the scan goes on. Its decision is kept,
and when the same mail comes back it is answered at once; while the scan still runs, with another 451,
never with a second scan. A mail in this state holds its slot in admission, because the scanner has it,
but not its content, which is uploaded already.

Everything that touches the store happens in one thread, in order; mail never waits for a write. Most
mail costs a look at an empty set. What breaks if this is wrong: one mail gets another's decision, so
the key is a strong hash of everything the scanner saw that the sender chose.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import RunningScan, Saturated, ScanError
from bridge.filter.late.fingerprint import fingerprint, mark
from bridge.filter.late.store import Entry, LateStore, LateStoreError, MemoryStore
from bridge.mail.envelope import Envelope
from bridge.mail.message import Message

log = logging.getLogger(__name__)

T = TypeVar("T")

_REFRESH_S = 1.0  # how soon one worker learns of another's late mail
_OVERLAP_S = 5.0  # clocks and commits of several processes are never quite in order
_PURGE_S = 60.0  # also how often other machines are told that a scan is still waited for
_ALIVE_S = 3 * _PURGE_S  # a machine that does not say so for this long waits for nothing
_REOPEN_S = 10.0  # a store that is away is asked for again after so long
_SPARE_ENTRIES = 10_000
_ASK_S = 2.0  # a store that takes longer is passed over: the mail is scanned
_WRITE_S = 1.0  # so long the 451 waits for the store to know of the scan
_CLOSE_S = 5.0


class Late(StrEnum):
    """What late decisions had to do with one mail, for log and metrics."""

    HIT = "hit"  # answered with a decision that was kept
    RUNNING = "running"  # 451 again: its scan still runs
    AWAITED = "awaited"  # its deadline passed, its scan goes on


class Scan(StrEnum):
    """How a scan that went on ended."""

    KEPT = "kept"  # its decision waits for the mail to come back
    FAILED = "failed"  # no decision


@dataclass(frozen=True, slots=True)
class LateSettings:
    max_age_s: float = 86400.0
    max_entries: int = 100_000
    scan_limit_s: float = 3600.0


class LateDecisions:
    """Shared by all listeners. `start`, then `look_up` and `follow` per mail, then `stop`."""

    def __init__(
        self, settings: LateSettings, store: LateStore, on_end: Callable[[Scan], None] = lambda scan: None
    ) -> None:
        self._settings = settings
        self._store = store
        self._spare = MemoryStore()  # for what the store would not take
        self._on_end = on_end
        self._owner = ""
        self._marks: set[bytes] = set()  # of every envelope the store may know; a few too many do no harm
        self._stamp = 0  # the store's, when its marks were last read
        self._new_marks: set[bytes] = set()  # since they were last read from the store
        self._running: dict[bytes, bytes] = {}  # key: mark
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = ThreadPoolExecutor(1, "late")
        self._is_open = False
        self._failing = False
        self._stopped = False
        self._refresher: asyncio.Task[None] | None = None

    @property
    def running(self) -> int:
        """Scans that nobody waits for now."""
        return len(self._running)

    def is_empty(self) -> bool:
        """Whether there is nothing to look up: the usual case."""
        return self._stopped or (not self._marks and self._store.stamp() == self._stamp)

    async def start(self) -> None:
        """Open the store; while one cannot be opened, memory stands in for it."""
        self._owner = _this_process()
        self._is_open = await self._in_thread(self._open)
        await self._reread()
        self._refresher = asyncio.create_task(self._refresh())

    async def look_up(self, tenant: str | None, envelope: Envelope, message: Message) -> AnalysisResult | Late | None:
        """The decision on this very mail, RUNNING while it is being made, None when nothing is known."""
        try:
            async with asyncio.timeout(_ASK_S):
                if self._store.stamp() != self._stamp:  # another worker has put something in
                    await self._read_new(_OVERLAP_S + _REFRESH_S)
                if mark(tenant, envelope) not in self._marks:
                    return None
                key = await fingerprint(tenant, envelope, message)
                if key in self._running:
                    return Late.RUNNING
                entry = await self._in_thread(self._get, key)
        except TimeoutError:
            log.warning("late decisions: no answer from the store in time")
            return None
        now = time.time()
        if entry is None or entry.changed_at < now - self._settings.max_age_s:
            return None
        if entry.result is not None:
            return entry.result
        return Late.RUNNING if _is_waited_for(entry, now) else None

    async def follow(
        self,
        tenant: str | None,
        envelope: Envelope,
        message: Message,
        scan: RunningScan,
        release: Callable[[], None],
    ) -> None:
        """Wait for this scan in the background. `release` is called when it has ended, however.

        Returns when all workers can know of it: the client has not got its 451 before that.
        """
        try:
            key = await fingerprint(tenant, envelope, message)
        except BaseException:
            scan.abandon()
            release()
            raise
        entry = Entry(key, mark(tenant, envelope), time.time(), self._owner)
        if self._stopped or key in self._running:  # the same mail twice at once: one of the two scans is enough
            scan.abandon()
            release()
            return
        self._running[key] = entry.mark
        self._marks.add(entry.mark)
        self._new_marks.add(entry.mark)
        written = asyncio.wrap_future(self._thread.submit(self._put, entry))
        task = asyncio.create_task(self._await(entry, scan, release))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.wait([written], timeout=_WRITE_S)

    async def _await(self, entry: Entry, scan: RunningScan, release: Callable[[], None]) -> None:
        result: AnalysisResult | None = None
        try:
            async with asyncio.timeout(self._settings.scan_limit_s):
                result = await scan.result()
        except (ScanError, Saturated) as exc:
            log.warning("a scan that went on after its deadline failed: %s", exc)
        except TimeoutError:
            log.warning("a scan that went on after its deadline was given up")
        finally:
            scan.abandon()
            release()
            self._end(entry, result)

    def _end(self, entry: Entry, result: AnalysisResult | None) -> None:
        """Keep what decides something; after anything else the next try is scanned anew."""
        if result is not None and result.decision is not Decision.UNDECIDED:
            self._thread.submit(self._put, replace(entry, changed_at=time.time(), owner="", result=result))
            self._on_end(Scan.KEPT)
        else:
            self._thread.submit(self._remove, entry.key)
            self._on_end(Scan.FAILED)
        self._running.pop(entry.key, None)  # who looks now asks the store, behind the write

    def give_up(self) -> None:
        """Running scans end now, without a decision."""
        for task in self._tasks:
            task.cancel()

    async def stop(self, limit_s: float) -> None:
        """Running scans may end within the time; what is known is on disk when this returns. Once is enough."""
        if self._stopped:
            return
        self._stopped = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        self.give_up()
        if self._refresher is not None:
            self._refresher.cancel()
        await asyncio.gather(*self._tasks, *filter(None, [self._refresher]), return_exceptions=True)
        try:
            async with asyncio.timeout(_CLOSE_S):
                await self._in_thread(self._store.close)
        except TimeoutError:
            log.warning("late decisions: the store did not close in time")
        self._thread.shutdown(wait=False)

    async def _refresh(self) -> None:
        """Learn what other processes put into the store, and remove what is too old."""
        purged = read = opened = time.monotonic()
        while True:
            await asyncio.sleep(_REFRESH_S)
            now = time.monotonic()
            if not self._is_open and now - opened >= _REOPEN_S:
                opened = now
                self._is_open = await self._in_thread(self._open)
            if now - purged >= _PURGE_S:
                purged = now
                await self._in_thread(self._purge)
                await self._reread()
            elif self._store.shared:
                await self._read_new(now - read + _OVERLAP_S)
            read = now

    async def _read_new(self, seconds: float) -> None:
        """What was put into the store in the last seconds."""
        stamp = self._store.stamp()
        found = await self._in_thread(self._read_marks, time.time() - seconds)
        if found is not None:
            self._marks |= found
            self._stamp = stamp

    async def _reread(self) -> None:
        self._new_marks = set()
        self._stamp = self._store.stamp()
        found = await self._in_thread(self._read_marks, 0.0)
        if found is not None:
            self._marks = found | self._new_marks | set(self._running.values())

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    # In the thread. A store that fails costs a second scan, never a mail.

    def _open(self) -> bool:
        return self._try(self._store.open)

    def _put(self, entry: Entry) -> None:
        if self._try(self._store.put, entry):
            self._spare.remove(entry.key)
            return
        self._spare.put(entry)
        self._spare.purge(0.0, _SPARE_ENTRIES)

    def _get(self, key: bytes) -> Entry | None:
        found: list[Entry | None] = [self._spare.get(key)]
        if found[0] is None:
            self._try(lambda: found.append(self._store.get(key)))
        return found[-1]

    def _remove(self, key: bytes) -> None:
        self._spare.remove(key)
        self._try(self._store.remove, key)

    def _read_marks(self, since: float) -> set[bytes] | None:
        found: list[set[bytes]] = []
        self._try(lambda: found.append(self._store.marks(since)))
        return found[0] | self._spare.marks(since) if found else None

    def _purge(self) -> None:
        before = time.time() - self._settings.max_age_s
        self._spare.purge(before, _SPARE_ENTRIES)
        if self._running:
            self._try(self._store.touch, self._owner, time.time())
        self._try(self._store.purge, before, self._settings.max_entries)

    def _try(self, work: Callable[..., object], *arguments: object) -> bool:
        """Whether it worked; a trouble that lasts is said once."""
        try:
            work(*arguments)
        except LateStoreError as exc:
            if not self._failing:
                log.error("late decisions: the store fails, what is new is kept only in memory: %s", exc)
            self._failing = True
            return False
        if self._failing:
            log.info("late decisions: the store works again")
        self._failing = False
        return True


def _this_process() -> str:
    return f"{socket.gethostname()}/{os.getpid()}/{_started(os.getpid())}"


def _is_waited_for(entry: Entry, now: float) -> bool:
    """Whether the process that waits for a scan is still there; another machine's must have said so of late."""
    try:
        host, pid, started = entry.owner.rsplit("/", 2)
        if host == socket.gethostname():
            return _started(int(pid)) == started
    except ValueError:  # nothing we wrote
        return False
    return entry.changed_at > now - _ALIVE_S


def _started(pid: int) -> str:
    """When a process began, so that a number used again is no mistake; "" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
