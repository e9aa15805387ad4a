"""Reading one page of a segment: by which index, and how much of it.

A segment has no statistics, and what SQLite then assumes is often wrong: it read all mail of a tenant to find that none
came from a network. So the entries of each index in question are counted first, up to a limit, which takes
microseconds, and the index with the fewest is used. If each has many, the page is probably among the newest mails: they
are looked at in their order before the whole segment is searched.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from bridge.history.entry import Kind, Row
from bridge.history.query import HistoryQuery
from bridge.history.segment_conditions import Condition, Conditions, conditions

_MANY = 4000  # entries of an index: about five milliseconds
_NEWEST = 3000  # mails
_COLUMNS = ", ".join([*(f'mail."{name}"' for name in Row._fields), *(f"kind.{name}" for name in Kind._fields)])
_ORDER = "ORDER BY at DESC, id DESC"
_IN_TIME = "mail INDEXED BY mail_at"


def read_page(connection: sqlite3.Connection, query: HistoryQuery, live: bool) -> list[Any]:
    """Columns of a row and of its kind, in no order: of all mails that match, the newest up to the limit."""
    asked = conditions(query, live)
    if live:
        return _chosen(connection, query, asked, f"mail WHERE {asked.text} {_ORDER}")
    if asked.has_key:  # each has an index; the plus keeps SQLite from reading all mails in their order instead
        return _chosen(connection, query, asked, f"mail WHERE {asked.text} ORDER BY +at DESC, +id DESC")
    if not query.limit:
        return _chosen(connection, query, asked, f"mail WHERE {asked.by_any_index}")
    indexed = [other for other in asked.others if other.by_index]
    if not indexed:
        return _read_by(connection, query, asked, None)
    entries, best = min(((_count(connection, asked, other), other) for other in indexed), key=lambda pair: pair[0])
    if entries == 0:  # true of most segments: without a second search, a subject of six words takes 0.6 times as long
        return []
    if entries >= _MANY:
        found = _newest(connection, query, asked)
        if len(found) >= query.limit:
            return found
    return _read_by(connection, query, asked, best)


def _count(connection: sqlite3.Connection, asked: Conditions, other: Condition) -> int:
    text = f"SELECT count(*) FROM ({other.entries} LIMIT {_MANY})"  # noqa: S608
    return int(connection.execute(text, asked.values).fetchone()[0])


def _newest(connection: sqlite3.Connection, query: HistoryQuery, asked: Conditions) -> list[Any]:
    times = " AND ".join(asked.times) or "1"
    text = f"SELECT at FROM {_IN_TIME} WHERE {times} ORDER BY at DESC LIMIT 1 OFFSET {_NEWEST}"  # noqa: S608
    oldest = connection.execute(text, asked.values).fetchone()
    since = f" AND at > {oldest[0]!r}" if oldest is not None else ""
    return _chosen(connection, query, asked, f"{_IN_TIME} WHERE {asked.text}{since} {_ORDER}")


def _read_by(
    connection: sqlite3.Connection, query: HistoryQuery, asked: Conditions, best: Condition | None
) -> list[Any]:
    """By one index; None: in the order of time."""
    texts = [*asked.times, *(other.by_index if other is best else other.text for other in asked.others)]
    source = best.source if best is not None else _IN_TIME
    return _chosen(connection, query, asked, f"{source} WHERE {' AND '.join(texts) or '1'} {_ORDER}")


def _chosen(connection: sqlite3.Connection, query: HistoryQuery, asked: Conditions, text: str) -> list[Any]:
    """Rows are wide, so those of the page are chosen before they are read."""
    limit = f" LIMIT {query.limit:d}" if query.limit else ""
    chosen = f"SELECT rowid FROM {text}{limit}"  # noqa: S608
    whole = f"SELECT {_COLUMNS} FROM mail JOIN kind ON kind.number = mail.kind WHERE mail.rowid IN ({chosen})"  # noqa: S608
    return connection.execute(whole, asked.values).fetchall()
