"""The tables of a component, in a database that fails."""

from __future__ import annotations

import os
from threading import Thread

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, func, select, text

from bridge.runtime import database, schema_version
from bridge.runtime.database import Database
from bridge.runtime.schema_version import Step
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


def test_a_child_process_leaves_its_parents_connections_open(postgresql: str) -> None:
    """It closed them on the server when it ended, and the parent's next statement failed."""
    tables = Tables(Database(fresh_database(postgresql)), _schema())
    with tables.reading() as connection:
        mine = connection.execute(select(func.pg_backend_pid())).scalar_one()
    child = os.fork()
    if child == 0:
        try:
            tables.close()
            with tables.reading() as connection:
                other = connection.execute(select(func.pg_backend_pid())).scalar_one()
            tables.close()
            os._exit(0 if other != mine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with tables.reading() as connection:
        assert connection.execute(select(func.pg_backend_pid())).scalar_one() == mine
    tables.close()


def test_closing_does_not_wait_for_a_thread_that_opens(postgresql: str) -> None:
    """A daemon closes its tables in its event loop when it stops: with a server that hangs, it did not stop."""
    place = Database(fresh_database(postgresql))
    holder, tables = Tables(place, _schema()), Tables(place, _schema(), wait_s=300)
    with holder.writing():  # holds the lock that a migration needs
        opening = Thread(target=_others, args=(tables,), daemon=True)
        opening.start()
        until(lambda: _others(holder) == 2, "the thread to be connected")
        closing = Thread(target=tables.close, daemon=True)
        closing.start()
        until(lambda: not closing.is_alive(), "the tables to be closed")
        assert opening.is_alive()
    until(lambda: not opening.is_alive(), "the thread to end")
    tables.close()
    until(lambda: _others(holder) == 1, "the server to end closed connections")  # the other one of the holder
    holder.close()


def _before_the_rule(place: Database) -> None:
    """Tables as made by a version without `oldest_reader`."""
    engine = place.engine()
    with database.writing(engine) as connection:
        schema_version.migrate(connection, (_make,), "things_version")
        connection.execute(text("ALTER TABLE things_version DROP COLUMN oldest_reader"))
    engine.dispose()


def _make(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE things (id INTEGER PRIMARY KEY)"))


def _version(tables: Tables) -> list[tuple[int, ...]]:
    with tables.writing() as connection:
        connection.execute(text("INSERT INTO things SELECT count(*) FROM things"))
        return [tuple(row) for row in connection.execute(text("SELECT * FROM things_version"))]


def test_a_backup_that_reads_the_version_table_keeps_nobody_from_starting(postgresql: str) -> None:
    """pg_dump locks all tables for as long as it runs: an upgrade that changed nothing else waited for its end."""
    place = Database(fresh_database(postgresql))
    _before_the_rule(place)
    dump, tables = place.engine(), Tables(place, _schema(_make), wait_s=300)
    with dump.connect() as connection:
        connection.execute(text("LOCK TABLE things_version, things IN ACCESS SHARE MODE"))
        assert _version(tables) == [(1,)]
    dump.dispose()
    tables.close()
    assert _version(tables) == [(1, 1)], "the next start adds the column"
    tables.close()


def test_a_role_that_owns_no_table_can_use_them(postgresql: str) -> None:
    """One with rights on rows only could, until an upgrade wanted to add a column that it can do without."""
    place = Database(url := fresh_database(postgresql))
    _before_the_rule(place)
    engine = place.engine()
    with database.writing(engine) as connection:
        connection.execute(text("CREATE ROLE rows_only LOGIN"))
        connection.execute(text("GRANT ALL ON ALL TABLES IN SCHEMA public TO rows_only"))
    other = Database(url.replace("tester@", "rows_only@"))
    tables, newer = Tables(other, _schema(_make)), Tables(other, _schema(_make, _fails))
    assert _version(tables) == [(1,)]
    with pytest.raises(TablesFailed, match="division by zero"), newer.writing():
        pass
    tables.close()
    with database.writing(engine) as connection:
        connection.execute(text("DROP OWNED BY rows_only"))
        connection.execute(text("DROP ROLE rows_only"))
    engine.dispose()


def test_only_writers_in_turn_wait_for_each_other(postgresql: str) -> None:
    place = Database(fresh_database(postgresql))
    first, second = Tables(place, _schema()), Tables(place, _schema(), wait_s=0.5)
    with second.writing():
        pass
    with first.writing():
        with second.writing(in_turn=False) as connection:
            assert connection.execute(select(1)).scalar_one() == 1
        with pytest.raises(TablesFailed, match="statement timeout"), second.writing():
            pass
    first.close()
    second.close()


@pytest.mark.parametrize("is_server", [False, True], ids=["sqlite", "postgresql"])
def test_a_row_is_replaced_by_its_key(is_server: bool, postgresql: str) -> None:
    place = Database(fresh_database(postgresql) if is_server else "sqlite://")
    things = Table("things", MetaData(), Column("id", Integer, primary_key=True), Column("word", Text))
    names = Table("names", MetaData(), Column("name", Text, primary_key=True))
    tables = Tables(place, _schema(things.create, names.create))
    for word in ("one", "two"):
        with tables.writing(in_turn=False) as connection:
            connection.execute(database.replace_in(connection, things), [{"id": 1, "word": word}])
            connection.execute(database.replace_in(connection, names), [{"name": "x"}])
    with tables.reading() as connection:
        assert connection.execute(select(things)).all() == [(1, "two")]
        assert connection.execute(select(names)).all() == [("x",)]
    tables.close()
