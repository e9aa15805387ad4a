"""The metrics of digests.

Digests are sent by other processes (`scanbridge digest`), so the numbers come from their database. The first worker
reads it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import history_place
from bridge.digests.counts import Counts, DigestCounts
from bridge.digests.database import FILE, DigestStore
from bridge.errors import BridgeError
from bridge.observe.metrics import DIGESTS, Metrics
from bridge.runtime.database import Database

log = logging.getLogger(__name__)

_LOOK_S = 15.0

Rows = Iterable[tuple[tuple[str, ...], float]]


def digest_store(conf: Config, state: Path) -> DigestStore:
    """In SQLite it is a separate file, so that mail never waits for its locks. Raises ConfigError."""
    server = history_place.has_server(conf)
    return DigestStore(history_place.server(conf) if server else Database.file(state / FILE))


class DigestNumbers:
    """`watch` runs until cancelled."""

    def __init__(self, state: Path, metrics: Metrics, is_ours: Callable[[], bool]) -> None:
        self._state = state
        self._is_ours = is_ours
        self._counts: Counts | None = None  # None: digests are off, or another worker reads
        self._since = time.time()
        self._problem = ""
        self._store: DigestStore | None = None
        self._stored_by: Config | None = None  # the configuration that the store belongs to
        metrics.digests.read = self._sent
        metrics.digests_run_age.read = self._run_age
        metrics.digests_requests.read = self._requests

    async def watch(self, config: Callable[[], Config], place: Callable[[], str]) -> None:
        """`config` and `place` (of the quarantine) return the current values."""
        while True:
            try:
                is_ours = self._is_ours() and config().digests.is_on
                self._counts = await asyncio.to_thread(self._read, config(), place()) if is_ours else None
                self._problem = ""
            except BridgeError as exc:
                self._note(str(exc))
            except Exception:  # the next turn may succeed
                log.exception("digests: unexpected error")
            await asyncio.sleep(_LOOK_S)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _read(self, conf: Config, place: str) -> Counts:
        """In a thread."""
        if self._store is None or self._stored_by is not conf:
            self.close()
            self._store, self._stored_by = digest_store(conf, self._state), conf
        return DigestCounts(self._store, place).read() if self._store.exists() else Counts()

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            log.warning("digests: the counts for the metrics cannot be read: %s", problem)
        self._problem = problem

    def _sent(self) -> Rows:
        counts = self._counts
        if counts is None:
            return []
        return zip(((result,) for result in DIGESTS), (counts.sent, counts.failed, counts.refused), strict=True)

    def _run_age(self) -> Rows:
        """If there was no run, the time since the daemon started: a process that never ran is noticed as well."""
        if self._counts is None:
            return []
        return [((), max(0.0, time.time() - (self._counts.run_at or self._since)))]

    def _requests(self) -> Rows:
        return [] if self._counts is None else [((), self._counts.requests_waiting)]
