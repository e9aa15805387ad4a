"""Upkeep of the quarantine in the background: remove unfinished files and old mail, and count what is there.

With several workers, one of them does this for all, and with several bridges that share object storage and PostgreSQL,
one of them. A quarantine that cannot be reached is logged and never stops the daemon.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from pathlib import Path

from bridge.daemon.running import Running
from bridge.errors import StoreError
from bridge.quarantine.purge_guard import PurgeGuard
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.usage import Usage
from bridge.runtime.counted import counted

log = logging.getLogger(__name__)

COUNT_INTERVAL_S = 60.0
_REMOTE_FACTOR = 10  # object storage: each listing may cost money
_COUNT_SHARE = 20  # counting takes at most one twentieth of the time
_TURN_S = 1.0  # how soon another worker takes over counting when the first one is gone
_FIRST_PURGE_S = 10.0  # after the busy time of the start
_PURGE_INTERVAL_S = 3600.0
_DUE = 0.9  # of an interval: what another bridge did longer ago is due again
_PROBE_BYTES = 4096  # one block: a disk without a free block has room for nothing


class QuarantineUpkeep:
    def __init__(self, running: Running) -> None:
        self._running = running
        self._worker = running.core.worker
        self._usage: Usage | None = None
        self._guard = PurgeGuard()
        self.problem = ""  # why no mail can be stored, as of the last count

    @property
    def usage(self) -> Usage | None:
        """The last count; None until there is one, and in workers that do not count."""
        return self._usage

    @property
    def _directory(self) -> Path:
        return self._running.core.state / self._running.config.quarantine.directory

    @property
    def _quarantine(self) -> Quarantine:
        return self._running.components.quarantine

    async def reconcile(self) -> None:
        """Object storage may be slow or down when the daemon starts, and mail does not wait for it."""
        if not self._quarantine.is_remote or not self._worker.is_first:
            return
        try:
            if (left := await self._quarantine.reconcile()) > 0:
                log.info("quarantine: removed %s left by an earlier run", counted(left, "unfinished object"))
        except StoreError as exc:
            log.error("quarantine: cannot be used (%s); mail that would be quarantined is answered with 451", exc)

    async def purge_regularly(self) -> None:
        """Remove mail beyond its retention, once an hour."""
        await asyncio.sleep(_FIRST_PURGE_S)
        while True:
            try:
                if self._worker.is_first:
                    await self._purge()
            except StoreError as exc:
                log.error("quarantine: old mail could not be removed: %s", exc)
            await asyncio.sleep(_PURGE_INTERVAL_S)

    async def _purge(self) -> None:
        # Bridges that share a store each have an hourly timer: the one that purged last does so again.
        retention_s = self._running.config.quarantine.retention
        await self._quarantine.purge(retention_s, _PURGE_INTERVAL_S * _DUE, self._guard)

    async def count_regularly(self) -> None:
        due = 0.0
        while True:
            began = time.monotonic()
            if not self._worker.is_first:
                self._usage, self.problem, due = None, "", 0.0
            elif began >= due:
                self._usage = await self._count()
                due = began + self._pause_s(time.monotonic() - began)
            await asyncio.sleep(_TURN_S)

    def _pause_s(self, took_s: float) -> float:
        interval_s = COUNT_INTERVAL_S * (_REMOTE_FACTOR if self._quarantine.is_remote else 1)
        return max(interval_s, took_s * _COUNT_SHARE)

    async def _count(self) -> Usage | None:
        try:
            usage = await self._quarantine.usage(self._pause_s(0.0) * _DUE)
        except StoreError as exc:
            log.warning("quarantine: the stored mail could not be counted: %s", exc)
            self.problem = str(exc)
            return None
        limit = self._running.config.quarantine.max_size
        if limit is not None and usage.size_bytes >= limit:
            self.problem = f"quarantine.max_size has been reached: {usage.size_bytes} of {limit} bytes"
        elif self._quarantine.is_remote:
            self.problem = ""
        else:
            self.problem = await asyncio.to_thread(_not_writable, self._directory)
        return usage


def _not_writable(directory: Path) -> str:
    """Why no file can be written there; "" if one can."""
    try:
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
    except OSError as exc:
        return f"{directory} cannot be written to: {exc.strerror}"
    return ""


def clean(quarantine: Quarantine) -> None:
    """Before the first mail: remove files that an earlier run did not finish. Object storage is reconciled later."""
    if not quarantine.is_remote and (left := quarantine.clean()) > 0:
        log.info("quarantine: removed %s left by an earlier run", counted(left, "unfinished file"))
