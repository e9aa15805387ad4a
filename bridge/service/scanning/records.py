"""Analysis records: what was decided about which ggrid, written behind the scan's back.

A scan leaves its record in a queue and goes on; once a second the queue is written in one
transaction. When the database is away the queue fills up and then drops the oldest, which is
counted: a record is worth less than a mail. Records hold no addresses and no content.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, insert

from bridge.api.scanning import AnalysisResult
from bridge.service.store import STORAGE_ERRORS, Store, analysis

WRITE_EVERY_S = 1.0
TIDY_EVERY_S = 3600.0
MAX_WAITING = 20_000
BATCH = 2000

log = logging.getLogger("bridge.service")


class Records:
    def __init__(self, store: Store, retention_s: float) -> None:
        self._store = store
        self._retention_s = retention_s
        self._waiting: deque[dict[str, Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._tidied_at = float("-inf")
        self._failing = False
        self._stopping = asyncio.Event()
        self.dropped = 0

    def add(self, result: AnalysisResult, tenant: str | None, score: float, size: int) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(
            {
                "ggrid": result.ggrid,
                "tenant": tenant or "",
                "created": result.created,
                "completed": result.completed,
                "decision": str(result.decision),
                "verdict": result.verdict,
                "tags": json.dumps(result.tags),
                "score": score,
                "size": size,
            }
        )

    async def start(self) -> None:
        self._task = asyncio.create_task(self._write_for_ever(), name="records")

    async def stop(self) -> None:
        """Write what is left; a write under way is finished, never abandoned with its connection."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    async def _write_for_ever(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(WRITE_EVERY_S):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            await self._flush()
        await self._flush()  # what came while the last write was under way

    async def _flush(self) -> None:
        """What is waiting now, and no more: under load there is always one more, and a transaction for each costs."""
        left = len(self._waiting)
        while left > 0:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, left))]
            left -= BATCH
            try:
                await asyncio.to_thread(self._write, batch)
            except STORAGE_ERRORS as exc:
                self._waiting.extendleft(reversed(batch))
                if not self._failing:
                    log.error("records: the database cannot be written: %s", type(exc).__name__)
                self._failing = True
                return
            self._failing = False

    def _write(self, batch: list[dict[str, Any]]) -> None:
        with self._store.writing() as connection:
            connection.execute(insert(analysis), batch)
            if time.monotonic() - self._tidied_at > TIDY_EVERY_S:
                self._tidied_at = time.monotonic()
                oldest = datetime.now(UTC) - timedelta(seconds=self._retention_s)
                connection.execute(delete(analysis).where(analysis.c.completed < oldest.isoformat()))
