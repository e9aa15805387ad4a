"""The history in a directory of SQLite files: segments of mails, and one file with what happened to them later."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bridge.history import segment_files, segment_merge, segments
from bridge.history.entry import Kind, LaterEvent, MailEntry, Row
from bridge.history.query import By, HistoryQuery, Sum, Top
from bridge.history.segment_search import SegmentSearch
from bridge.history.segments import BUSY_S, MAX_BYTES, MAX_ROWS, SegmentWriter
from bridge.history.store import MAX_LATER, Found, HistoryError
from bridge.runtime import durable_files
from bridge.runtime.storable import storable, storable_row

_LATER = "later.db"
_COLUMNS = 'at, id, event, "by", text'
_SCHEMA = """
CREATE TABLE IF NOT EXISTS later (at REAL, id TEXT, event TEXT, "by" TEXT, text TEXT);
CREATE INDEX IF NOT EXISTS later_id ON later (id);
"""


class SqliteHistory:
    """A `HistoryStore`. Only what writes mails owns a slot; commands read, and note what happened later."""

    def __init__(
        self, directory: Path, max_rows: int = MAX_ROWS, busy_s: float = BUSY_S, max_bytes: int = MAX_BYTES
    ) -> None:
        self._directory = directory
        self._busy_s = busy_s
        self._writer = SegmentWriter(directory, max_rows, busy_s, max_bytes=max_bytes)
        self._search = SegmentSearch(directory)

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        self._writer.append(rows)

    def note(self, events: Sequence[LaterEvent]) -> None:
        with self._later() as connection:
            values = [storable_row((event.at, event.id, event.event, event.by, event.text)) for event in events]
            connection.executemany(f"INSERT INTO later ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)", values)  # noqa: S608

    def settle(self) -> None:
        self._writer.settle()

    def maintain(self, before: float, max_size: int | None) -> tuple[int, int]:
        """Deletes first: the disk may be full. Another daemon may do the same with this directory: one at a time."""
        try:
            durable_files.make_directory(self._directory)
            with segments.slot_lock(self._directory / "upkeep.lock") as lock:
                return self._maintain(before, max_size) if lock >= 0 else (0, 0)
        except (sqlite3.Error, OSError) as exc:
            raise HistoryError(f"{self._directory}: {exc}") from exc

    def _maintain(self, before: float, max_size: int | None) -> tuple[int, int]:
        deleted = segment_files.delete_old(self._directory, before, max_size)
        with self._later() as connection:
            connection.execute("DELETE FROM later WHERE at < ?", (before,))
        segments.finish_abandoned(self._directory)
        segment_merge.merge_days(self._directory, time.time())
        return deleted

    def size(self) -> int:
        return segment_files.total_size(self._directory)

    def close(self) -> None:
        self._writer.close()

    def find(self, query: HistoryQuery) -> list[MailEntry]:
        return self._search.find(query)

    def find_within(self, query: HistoryQuery, seconds: float) -> Found:
        return self._search.find_within(query, seconds)

    def count(self, by: By, query: HistoryQuery) -> list[Sum]:
        return self._search.count(by, query)

    def top(self, by: By, query: HistoryQuery, most: int) -> Top:
        return self._search.top(by, query, most)

    def oldest(self) -> float | None:
        return self._search.oldest()

    def later(self, ids: Sequence[str]) -> list[LaterEvent]:
        if not (self._directory / _LATER).exists():
            return []
        found = []
        with self._later() as connection:
            for mail in ids:
                query = f"SELECT {_COLUMNS} FROM later WHERE id = ? ORDER BY at DESC LIMIT ?"  # noqa: S608
                found += connection.execute(query, (storable(mail), MAX_LATER)).fetchall()
        return sorted((LaterEvent(*values) for values in found), key=lambda event: event.at)[-MAX_LATER:]

    @contextmanager
    def _later(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        path = self._directory / _LATER
        try:
            durable_files.make_directory(self._directory)
            durable_files.refuse_planted_database(path)
            durable_files.refuse_full_database(path)
            durable_files.make_private(path)
            durable_files.give_to_owner(path)
            with closing(sqlite3.connect(path, timeout=self._busy_s)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.executescript(_SCHEMA)
                with connection:
                    yield connection
        except (sqlite3.Error, OSError) as exc:
            raise HistoryError(f"{path.name}: {exc}") from exc
