"""What the pages keep about the quarantine: how many mails there are, and when its index was last repaired."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from anyio import to_thread

from bridge.console.kept_results import KeptResults
from bridge.console.roles import Tenants
from bridge.errors import BridgeError
from bridge.quarantine.quarantine import Quarantine

_MAX_TOTALS, _QUICK_S = 1000, 0.05
_RECENT_S, _RECENT_WAIT_S = 2.0, 0.2  # how old a recent number may be, and how long a page waits for a newer one
_REPAIR_S = 3600.0  # how often the index is compared with the store


@dataclass(slots=True)
class HeldCounts:
    _totals: KeptResults[Tenants, int] = field(default_factory=lambda: KeptResults(_MAX_TOTALS))
    _recent: int | None = None
    _recent_at: float = -_RECENT_S
    _counting: asyncio.Task[None] | None = None
    _repaired_at: float = -_REPAIR_S
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def total(self, quarantine: Quarantine, tenants: Tenants) -> int:
        """How many mails there are. Counting a large quarantine takes a while; the number may be a little old then."""
        if (fresh := self._totals.fresh(tenants)) is not None:
            return fresh
        began = time.monotonic()
        number = await to_thread.run_sync(quarantine.count, tenants, abandon_on_cancel=True)
        self._totals.keep(tenants, number, 50 * (time.monotonic() - began - _QUICK_S))
        return number

    async def recent(self, quarantine: Quarantine) -> int | None:
        """The mails of all tenants, for pages that refresh themselves: counted at most every two seconds, and nobody
        waits for a slow database. None before the first count, and if counting failed."""
        if self._counting is None or (self._counting.done() and time.monotonic() - self._recent_at > _RECENT_S):
            self._counting = asyncio.create_task(self._count_all(quarantine))
        await asyncio.wait({self._counting}, timeout=_RECENT_WAIT_S)
        return self._recent

    async def _count_all(self, quarantine: Quarantine) -> None:
        try:
            self._recent = await self.total(quarantine, None)
        except BridgeError:
            self._recent = None
        self._recent_at = time.monotonic()

    def repair_sometimes(self, quarantine: Quarantine) -> None:
        """In the background: the index lacks a mail if it failed while the mail was stored."""
        now = time.monotonic()
        if now - self._repaired_at >= _REPAIR_S:
            self._repaired_at = now
            task = asyncio.create_task(asyncio.to_thread(quarantine.repair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
