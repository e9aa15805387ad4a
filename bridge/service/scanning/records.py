"""Analysis records: which decision each ggrid got, written to the database in the background.

A scan puts its record in a queue and does not wait; once a second the queue is written in one
transaction. If the database is unavailable, the queue fills up and then drops the oldest records,
which is counted: a record is worth less than a mail. Records contain no addresses and no content.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete
from sqlalchemy.exc import DataError, IntegrityError

from bridge.api.scanning import AnalysisResult
from bridge.runtime.database import insert_into
from bridge.service.database_calls import DatabaseCalls
from bridge.service.store import STORAGE_ERRORS, Store, analysis

WRITE_INTERVAL_S = 1.0
EXPIRE_INTERVAL_S = 3600.0
MAX_WAITING = 20_000
BATCH = 2000

log = logging.getLogger("bridge.service")


class RecordWriter:
    def __init__(self, store: Store, retention_s: float, calls: DatabaseCalls | None = None) -> None:
        self._store = store
        self._calls = calls or DatabaseCalls()
        self._retention_s = retention_s
        self._waiting: deque[dict[str, Any]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._expired_at = float("-inf")
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
        self._task = asyncio.create_task(self._write_periodically(), name="records")

    async def stop(self) -> None:
        """Write the remaining records, as far as the database answers."""
        self._stopping.set()
        if self._task is None:
            return
        _, late = await asyncio.wait([self._task], timeout=self._calls.answer_s)
        if late:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._waiting or late:
            log.error("records: the database is not available; stopping before all records have been written")

    async def _write_periodically(self) -> None:
        while not self._stopping.is_set():
            try:
                async with asyncio.timeout(WRITE_INTERVAL_S):
                    await self._stopping.wait()
            except TimeoutError:
                pass
            await self._flush()
        await self._flush()  # records added during the last write

    async def _flush(self) -> None:
        """Write the records that are queued now; those added meanwhile wait.

        Under load the queue is never empty, and one transaction per record would be expensive.
        """
        left = len(self._waiting)
        while left > 0:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, left))]
            left -= BATCH
            try:
                await self._calls.ask(self._write, batch)
            except (DataError, IntegrityError) as exc:  # the records themselves: another attempt would fail too
                self._lose(batch, exc)
            except STORAGE_ERRORS as exc:
                self._waiting.extendleft(reversed(batch))
                if not self._failing:
                    log.error("records: cannot write to the database: %s", type(exc).__name__)
                self._failing = True
                return
            except Exception as exc:  # without this, one record would end the writing of all
                self._lose(batch, exc)
            self._failing = False

    def _lose(self, batch: list[dict[str, Any]], exc: Exception) -> None:
        log.error("records: %d lost because they could not be stored: %s", len(batch), type(exc).__name__)
        self.dropped += len(batch)

    def _write(self, batch: list[dict[str, Any]]) -> None:
        with self._store.writing() as connection:
            # Two workers may have analysed the same mail, if one could not report in time; the first record stays.
            connection.execute(insert_into(connection, analysis).on_conflict_do_nothing(), batch)
            if time.monotonic() - self._expired_at > EXPIRE_INTERVAL_S:
                self._expired_at = time.monotonic()
                oldest = datetime.now(UTC) - timedelta(seconds=self._retention_s)
                connection.execute(delete(analysis).where(analysis.c.completed < oldest.isoformat()))
