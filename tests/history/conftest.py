"""Databases for the tests of the history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.history.postgresql import PostgresHistory
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryStore
from bridge.runtime.database import Database
from tests.history.history_kit import close_histories
from tests.postgresql import fresh_database


@pytest.fixture(autouse=True)
def _closed_histories() -> Iterator[None]:
    yield
    close_histories()


@pytest.fixture(params=["live", "finished", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HistoryStore]:
    """An empty history: in segments of any number of mails, in segments of three mails, and in PostgreSQL."""
    made: HistoryStore
    if request.param == "postgresql":
        made = PostgresHistory(Database(fresh_database(request.getfixturevalue("postgresql"))))
    else:
        made = SqliteHistory(tmp_path / "history", max_rows=3 if request.param == "finished" else 40_000)
    yield made
    made.close()


@pytest.fixture
def another_store(request: pytest.FixtureRequest, store: HistoryStore, tmp_path: Path) -> Iterator[HistoryStore]:
    """Another process's view of the same history."""
    made: HistoryStore
    if isinstance(store, PostgresHistory):
        made = PostgresHistory(store.where)
    else:
        made = SqliteHistory(tmp_path / "history", max_rows=3)
    yield made
    made.close()
