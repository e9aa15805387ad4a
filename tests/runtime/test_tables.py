"""The tables of a component, in a database that fails."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text

from bridge.runtime.database import Database, Step
from bridge.runtime.tables import Schema, Tables, TablesFailed
from bridge.testing import until
from tests.postgresql import fresh_database

COUNT = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")


def _fails(connection: Connection) -> None:
    connection.execute(text("SELECT 1 / 0"))


def _schema(*steps: Step) -> Schema:
    return Schema("things", steps, "things_version", 99, TablesFailed)


def _others(tables: Tables) -> int:
    with tables.reading() as connection:
        return int(connection.execute(COUNT).scalar_one())


def test_a_failed_migration_leaves_no_connection_open(postgresql: str) -> None:
    place = Database(fresh_database(postgresql))
    broken, good = Tables(place, _schema(_fails)), Tables(place, _schema())
    for _ in range(3):
        with pytest.raises(TablesFailed, match="division by zero"), broken.writing():
            pass
    until(lambda: _others(good) == 0, "the server to end closed connections")
    good.close()


def test_tables_open_again_after_they_were_closed(postgresql: str) -> None:
    tables = Tables(Database(fresh_database(postgresql)), _schema())
    for _ in range(2):
        until(lambda: _others(tables) == 0, "the server to end closed connections")
        tables.close()
