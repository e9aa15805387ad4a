"""Rows of the history as the tests need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.history.entry import Kind, MailEntry, Row
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryStore

NOON = 1_800_000_000.0  # a full hour

_KIND = Kind("mx", "", "", "relay", "deliver", "clean", "policy.deliver", "", "", "", "", "", "", "http://scanner")
_ROW = Row(
    *(NOON, "ID", "SESSION", "192.0.2.7", "mx.sender.example", "a@sender.example", "b@example.org", 1000),
    *("<1@sender.example>", "hello", "250 2.0.0 Ok", "GGRID", 0.001, 0.25, 0.002, "QUEUED", "NEXT", "", 1, None),
)


def mail(number: int = 0, **values: Any) -> tuple[Kind, Row]:
    """The mail of this second; every value can be chosen."""
    defaults = {"at": NOON + number, "id": f"ID{number:04d}"}
    row = _ROW._replace(**defaults | {name: value for name, value in values.items() if name in Row._fields})
    return _KIND._replace(**{name: value for name, value in values.items() if name in Kind._fields}), row


_opened: list[SqliteHistory] = []


def sqlite_history(directory: Path, **options: Any) -> SqliteHistory:
    """Closed after the test (see `conftest.py`): Python 3.13 warns of a connection that is not."""
    _opened.append(SqliteHistory(directory, **options))
    return _opened[-1]


def close_histories() -> None:
    while _opened:
        _opened.pop().close()


def add(store: HistoryStore, *mails: tuple[Kind, Row]) -> None:
    """One after the other, as they come."""
    for each in mails:
        store.append([each])


def ids(found: list[MailEntry]) -> list[str]:
    return [entry.row.id for entry in found]


def find(store: HistoryStore, **query: Any) -> list[str]:
    return ids(store.find(HistoryQuery(**query)))
