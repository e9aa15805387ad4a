"""Keeps the index in memory in step with the database, including changes by other processes.

Writes of this process trigger a poll immediately; changes by other processes are found by polling
every half second. If the database becomes unavailable, or does not answer, the index stays as it is and scans
continue. If it has never been available, it is unknown what is blocked: `loaded` is False, and no mail may be decided.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

from bridge.runtime.threads import Threads
from bridge.service.database_calls import DatabaseCalls, no_answer
from bridge.service.keys import KeyRing
from bridge.service.lists.index import ListIndex
from bridge.service.lists.store import REMOVALS_KEPT_S, Change, ListStore
from bridge.service.polling import next_poll
from bridge.service.store import Store, StoreUnavailable

POLL_INTERVAL_S = 0.5
EXPIRE_INTERVAL_S = 3600.0
_STOP_S = 5.0  # at the stop: for a reading that has begun
BATCH = 1000  # changes applied before the event loop runs other tasks

T = TypeVar("T")

log = logging.getLogger("bridge.service")


class ListFollower:
    def __init__(
        self,
        store: Store,
        lists: ListStore,
        keys: KeyRing,
        allowing: frozenset[str],
        calls: DatabaseCalls | None = None,
    ) -> None:
        self._allowing = allowing
        self._store = store
        self._lists = lists
        self._keys = keys
        self.index = ListIndex(lists.definitions.values(), allowing)
        self._seen = 0
        self._seen_at = 0.0
        self._expired_at = time.monotonic()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._answer_s = (calls or DatabaseCalls()).answer_s
        self._thread = Threads("lists", 1)
        self._running: asyncio.Future[Any] | None = None
        self._trouble = ""
        self.loaded = False
        self.current = False

    async def start(self) -> None:
        """Raises StoreUnavailable, unless it is temporary: then loading is retried until it succeeds.

        Waits for a database that does not answer, and logs that it does.
        """
        try:
            await self._load_all()
        except StoreUnavailable as exc:
            if not exc.temporary:
                raise
            self._lost(exc)
        self._task = asyncio.create_task(self._follow(), name="lists")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._running is not None:
            await asyncio.wait([self._running], timeout=_STOP_S)
            if not self._running.cancel() and not self._running.cancelled():
                self._running.exception()  # nobody else asks for it
        self._thread.close()

    def wake(self) -> None:
        """Poll now, because this process has written something."""
        self._wake.set()

    async def _follow(self) -> None:
        while True:
            await next_poll(self._wake, POLL_INTERVAL_S)
            try:
                if not self.loaded or time.monotonic() - self._seen_at > REMOVALS_KEPT_S / 2:
                    await self._load_all()
                await self._apply(await self._in_thread(self._poll, self._answer_s))
            except Exception as exc:  # not only storage: a task that ends here would leave the lists unchanged forever
                self._lost(exc)
            else:
                if self._trouble:
                    log.info("lists: database readable again")
                self._trouble = ""
                self.current = True

    async def _load_all(self) -> None:
        self.index = await self._in_thread(self._load, self._answer_s)
        self.loaded = self.current = True

    def _lost(self, exc: Exception) -> None:
        """Log each reason once, not twice a second."""
        why = str(exc) if isinstance(exc, StoreUnavailable) else type(exc).__name__
        meanwhile = "using the lists in memory" if self.loaded else "scanning no mail until it is readable"
        if why != self._trouble:
            log.error("lists: cannot read the database, %s: %s", meanwhile, why)
        self._trouble = why
        self.current = False

    async def _apply(self, changes: list[Change]) -> None:
        """Runs in the event loop, so that no scan sees a half-changed set; in small batches."""
        for i, change in enumerate(changes):
            (self.index.add if change.present else self.index.remove)(change.scope, change.name, change.entry)
            if i % BATCH == BATCH - 1:
                await asyncio.sleep(0)

    async def _in_thread(self, work: Callable[[], T], answer_s: float | None = None) -> T:
        """Wait until the work ends, because there is only one thread.

        After `answer_s`, the lists count as unreadable until then.
        """
        running = self._running = self._thread.run(work)
        if not (await asyncio.wait([running], timeout=answer_s))[0]:
            self._lost(no_answer())
        return await asyncio.shield(running)

    def _load(self) -> ListIndex:
        self._store.open()
        self._keys.refresh()
        now = self._lists.now()
        index = ListIndex(self._lists.definitions.values(), self._allowing)
        for scope, name, entry in self._lists.everything():
            index.add(scope, name, entry)
        self._seen, self._seen_at = now, time.monotonic()
        return index

    def _poll(self) -> list[Change]:
        self._keys.refresh()
        now = self._lists.now()
        changes = self._lists.changes(self._seen, now) if now > self._seen else []
        is_older = now < self._seen  # a copy of the database was restored: its numbers are reused
        self._seen, self._seen_at = now, -math.inf if is_older else time.monotonic()
        if self._seen_at - self._expired_at > EXPIRE_INTERVAL_S:
            self._expired_at = self._seen_at
            self._lists.expire_removals()
        return changes
