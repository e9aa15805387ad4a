"""The difference between a file and a list, on disk: a million entries take a few MB of memory.

In an SQLite database that has no name, and that the system removes with the process. Knows neither files nor the
service, only entries and their comments. Synchronous; may be used by several threads.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from bridge.api.lists import ListEntry
from bridge.runtime.storable import storable

_CACHE_KIB = 8192
_BATCH = 500
_SCHEMA = """
CREATE TABLE wanted (entry TEXT PRIMARY KEY, comment TEXT) WITHOUT ROWID;
CREATE TABLE present (entry TEXT PRIMARY KEY, comment TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE refused (entry TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE change (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, comment TEXT NOT NULL);
"""
# In the order of `Kind`: the changes of one kind follow each other.
_DIFFERENCES = {
    "delete": "SELECT p.entry, '' FROM present p LEFT JOIN wanted w USING (entry) WHERE w.entry IS NULL",
    "update": "SELECT w.entry, w.comment FROM wanted w JOIN present p USING (entry) WHERE w.comment != p.comment",
    "add": "SELECT w.entry, coalesce(w.comment, '') FROM wanted w LEFT JOIN present p USING (entry) "
    "WHERE p.entry IS NULL",
}


class Kind(StrEnum):
    DELETE = "delete"
    UPDATE = "update"  # in the list, but with another comment
    ADD = "add"


@dataclass(frozen=True, slots=True)
class _Range:
    first: int = 0
    count: int = 0


class DiskDifference:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)  # no name: a temporary file
        self._db.executescript(
            f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{_CACHE_KIB};"
        )
        self._db.executescript(_SCHEMA)
        self._ranges = dict.fromkeys(Kind, _Range())

    def want(self, rows: Sequence[tuple[str, str | None]]) -> None:
        """Entries of the file; the last one wins. A comment of None keeps the one in the list."""
        self._insert("INSERT OR REPLACE INTO wanted VALUES (?, ?)", rows)

    def find(self, entries: Iterable[ListEntry]) -> None:
        """Entries of the list."""
        rows = [(storable(each.entry), storable(each.comment)) for each in entries]
        self._insert("INSERT OR REPLACE INTO present VALUES (?, ?)", rows)

    def find_again(self) -> None:
        """The list will be read again from its beginning."""
        with self._lock:
            self._db.execute("DELETE FROM present")

    @property
    def wanted(self) -> int:
        return self._count("SELECT count(*) FROM wanted")

    def compare(self) -> None:
        with self._lock:
            self._db.execute("DELETE FROM change")
            for kind in Kind:
                first = self._number("SELECT coalesce(max(number), 0) + 1 FROM change")
                sql = f"INSERT INTO change (entry, comment) {_DIFFERENCES[kind]} ORDER BY 1"
                count = self._db.execute(sql).rowcount
                self._ranges[kind] = _Range(first, count)

    def count(self, kind: Kind) -> int:
        return self._ranges[kind].count

    def page(self, kind: Kind, start: int, limit: int) -> list[ListEntry]:
        """Some changes of a kind, by name; `start` is the number of changes before them."""
        found = self._ranges[kind]
        begin = found.first + start
        end = min(begin + limit, found.first + found.count)
        sql = "SELECT entry, comment FROM change WHERE number >= ? AND number < ? ORDER BY number"
        with self._lock:
            return [ListEntry(*row) for row in self._db.execute(sql, (begin, end))]

    def changes(self, kind: Kind) -> Iterator[ListEntry]:
        """All changes of a kind. The database can be used in between."""
        for start in range(0, self.count(kind), _BATCH):
            yield from self.page(kind, start, _BATCH)

    def still_different(self, refused: Iterable[str], *, prune: bool) -> tuple[int, str]:
        """How many entries differ now, apart from those that were refused, and one of them."""
        self._insert("INSERT OR IGNORE INTO refused VALUES (?)", [(storable(entry),) for entry in refused])
        number, example = 0, ""
        for kind in Kind:
            if kind is Kind.DELETE and not prune:
                continue
            sql = f"FROM ({_DIFFERENCES[kind]}) WHERE entry NOT IN (SELECT entry FROM refused)"  # noqa: S608 - our own text
            with self._lock:
                number += (count := self._number(f"SELECT count(*) {sql}"))
                if count and not example:
                    example = str(self._db.execute(f"SELECT entry {sql} LIMIT 1").fetchone()[0])
        return number, example

    def close(self) -> None:
        with self._lock:
            self._db.close()

    def _insert(self, sql: str, rows: Sequence[tuple[str | None, ...]]) -> None:
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany(sql, rows)
            self._db.execute("COMMIT")

    def _count(self, sql: str) -> int:
        with self._lock:
            return self._number(sql)

    def _number(self, sql: str) -> int:
        return int(self._db.execute(sql).fetchone()[0])
