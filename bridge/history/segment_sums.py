"""Counting the mails of a segment.

By a property of its kinds, from the sums of each hour that a finished segment has. By a property of the mails, there
may be as many sums as mails: those are added up in a file by SQLite, because a million of them in Python would stop all
other threads for seconds. Values are never part of a statement.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any

from bridge.history.query import By, HistoryQuery, Sum, Top
from bridge.history.segment_conditions import conditions, on_kinds
from bridge.history.sums import labels_of
from bridge.runtime.storable import storable

OF_MAIL: tuple[By, ...] = ("client", "sender", "recipient")
_MAILS = "mail JOIN kind ON kind.number = mail.kind"
_HOURS = "hourly JOIN kind ON kind.number = hourly.kind"
_OF_KIND: tuple[By, ...] = ("action", "decision", "rule", "tag", "listener", "tenant")

Statement = tuple[str, dict[str, Any]]


def sums(by: By, query: HistoryQuery, live: bool) -> Statement:
    asked = conditions(query, live)
    where, values = asked.by_any_index, asked.values
    hour = "CAST(mail.at / 3600 AS INTEGER)"
    label = {"hour": hour, "day": f"{hour} / 24", "tag": "kind.tags", "recipient": "mail.recipients"}.get(
        by, f"kind.{by}" if by in _OF_KIND else f"mail.{by}"
    )
    counted = "sum(mail.mails), sum(mail.size * mail.mails)"
    chosen = f"SELECT rowid FROM mail WHERE {where}"  # noqa: S608
    mails = f"{_MAILS} WHERE mail.rowid IN ({chosen})" if where != "1" else _MAILS
    return f"SELECT {label}, {counted} FROM {mails} GROUP BY 1", values  # noqa: S608


def hourly_sums(by: By, query: HistoryQuery) -> Statement:
    found, values = on_kinds(query)
    label = {"hour": "hour", "day": "hour / 24", "tag": "kind.tags"}.get(by, f"kind.{by}")
    where = " AND ".join(found) or "1"
    values = {name: storable(value) for name, value in values.items()}
    return f"SELECT {label}, sum(hourly.mails), sum(hourly.size) FROM {_HOURS} WHERE {where} GROUP BY 1", values  # noqa: S608


def has_key(query: HistoryQuery) -> bool:
    """Whether the query is about more than kinds and times."""
    return bool(
        query.id or query.what or query.attempt or query.sender is not None or query.recipient or query.address
        or query.client or query.words
    )  # fmt: skip


class SumsFile:
    """Sums of several segments, in a file that is removed at the end."""

    def __enter__(self) -> SumsFile:
        self._directory = tempfile.TemporaryDirectory(prefix="scanbridge-")
        self._path = Path(self._directory.name) / "sums"
        with closing(sqlite3.connect(self._path)) as connection:
            connection.execute("CREATE TABLE sums (label TEXT PRIMARY KEY, mails INTEGER, size INTEGER) WITHOUT ROWID")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.cleanup()

    def add(self, connection: sqlite3.Connection, by: By, query: HistoryQuery, live: bool) -> list[Any]:
        """Adds the sums of this connection's segment. Nothing in the segment is locked."""
        connection.execute("ATTACH ? AS sums", (str(self._path),))
        connection.execute("PRAGMA sums.journal_mode=OFF")
        connection.execute("PRAGMA sums.synchronous=OFF")
        connection.execute("PRAGMA sums.cache_size=-16000")  # KiB
        text, values = sums(by, query, live)
        found = f"WITH found (label, mails, size) AS ({text})"
        has_several = "instr(label, char(10))" if by == "recipient" else "0"
        is_counted = "label != ''" if by == "recipient" else "1"
        connection.execute("BEGIN")
        single = f"SELECT label, mails, size FROM found WHERE NOT {has_several} AND {is_counted}"  # noqa: S608
        connection.execute(f"{found} INSERT INTO sums.sums {single} {_ADD}", values)
        if by == "recipient":
            several = connection.execute(f"{found} SELECT * FROM found WHERE {has_several}", values)  # noqa: S608
            each = ((label, mails, size) for value, mails, size in several for label in labels_of(by, value))
            connection.executemany(f"INSERT INTO sums.sums VALUES (?, ?, ?) {_ADD}", each)  # noqa: S608
        connection.execute("COMMIT")
        return []

    def top(self, most: int) -> Top:
        with closing(sqlite3.connect(self._path)) as connection:
            number, mails, size = connection.execute("SELECT count(*), total(mails), total(size) FROM sums").fetchone()
            largest = connection.execute("SELECT * FROM sums ORDER BY mails DESC, label LIMIT ?", (most,)).fetchall()
        found = [Sum(*row) for row in largest]
        left_mails = int(mails) - sum(total.mails for total in found)
        return Top(found, number - len(found), Sum("", left_mails, int(size) - sum(total.size for total in found)))


_ADD = "ON CONFLICT (label) DO UPDATE SET mails = mails + excluded.mails, size = size + excluded.size"
