"""What the pages of the quarantine remember: how many mails there are, and when its index was last repaired."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from anyio import to_thread

from bridge.console.kept_results import KeptResults
from bridge.console.roles import Tenants
from bridge.quarantine.quarantine import Quarantine

_MAX_TOTALS, _QUICK_S = 1000, 0.05
_REPAIR_S = 3600.0  # how often the index is compared with the store


@dataclass(slots=True)
class HeldCounts:
    _totals: KeptResults[Tenants, int] = field(default_factory=lambda: KeptResults(_MAX_TOTALS))
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

    def repair_sometimes(self, quarantine: Quarantine) -> None:
        """In the background: the index lacks a mail if it failed while the mail was stored."""
        now = time.monotonic()
        if now - self._repaired_at >= _REPAIR_S:
            self._repaired_at = now
            task = asyncio.create_task(asyncio.to_thread(quarantine.repair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
