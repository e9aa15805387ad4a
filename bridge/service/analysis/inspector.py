"""Inspection in processes of its own: for what may hurt."""

from __future__ import annotations

from bridge.service.analysis.inspect import Inspection, Limits
from bridge.service.analysis.workers import Workers
from bridge.service.scanning.upload import StoredMail

MODULE = "bridge.service.analysis.inspector_process"


class Inspector:
    def __init__(self, processes: int, memory_bytes: int) -> None:
        self._workers = Workers(MODULE, processes, memory_bytes, {})

    async def inspect(self, mail: StoredMail, limits: Limits, timeout_s: float) -> Inspection:
        """Raises WorkerFailed. The time to wait for a free process does not count."""
        return await self._workers.ask(mail, limits.to_dict(), timeout_s, Inspection.from_dict)

    async def stop(self) -> None:
        await self._workers.stop()
