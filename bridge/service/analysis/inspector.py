"""Inspection in separate processes, for large mail and archives: a crash there harms nothing else."""

from __future__ import annotations

from typing import Any

from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.worker_pool import WorkerPool

MODULE = "bridge.service.analysis.inspector_process"


class Inspector:
    def __init__(self, processes: int, memory_bytes: int, setup: dict[str, Any] | None = None) -> None:
        """`setup`: the YARA rules, if there are any."""
        self._workers = WorkerPool(MODULE, processes, memory_bytes, setup or {})

    async def start(self) -> None:
        """Start a process now rather than with the first mail. Raises WorkerFailed."""
        await self._workers.start()

    async def inspect(self, mail: StoredMail, limits: Limits, timeout_s: float) -> Inspection:
        """Raises WorkerFailed. `timeout_s` does not include the wait for a free process."""
        return await self._workers.ask(mail, limits.to_dict(), timeout_s, Inspection.from_dict)

    async def stop(self) -> None:
        await self._workers.stop()
