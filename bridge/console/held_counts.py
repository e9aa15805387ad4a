"""What the pages of the quarantine remember: how many mails there are, and when its index was last repaired."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from anyio import to_thread

from bridge.console.roles import Tenants
from bridge.quarantine.quarantine import Quarantine

_MAX_TOTALS, _QUICK_S = 1000, 0.05
_REPAIR_S = 3600.0  # how often the index is compared with the store


@dataclass(slots=True)
class HeldCounts:
    _totals: dict[Tenants, tuple[float, int]] = field(default_factory=dict)  # until when, and how many
    _repaired_at: float = -_REPAIR_S
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def total(self, quarantine: Quarantine, tenants: Tenants) -> int:
        """How many mails there are. Counting a large quarantine takes a while; the number may be a little old then."""
        known = self._totals.get(tenants)
        if known is not None and time.monotonic() < known[0]:
            return known[1]
        began = time.monotonic()
        number = await to_thread.run_sync(quarantine.count, tenants, abandon_on_cancel=True)
        now = time.monotonic()
        if len(self._totals) >= _MAX_TOTALS:
            self._totals.clear()
        self._totals[tenants] = (now + 50 * (now - began - _QUICK_S), number)
        return number

    def repair_sometimes(self, quarantine: Quarantine) -> None:
        """In the background: the index lacks a mail if it failed while the mail was stored."""
        now = time.monotonic()
        if now - self._repaired_at >= _REPAIR_S:
            self._repaired_at = now
            task = asyncio.create_task(asyncio.to_thread(quarantine.repair))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
