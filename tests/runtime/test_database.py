"""SQLite files that several processes share."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import event, text

from bridge.runtime.database import Database, writing
from tests.postgresql import fresh_database

_WRITE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("INSERT INTO t VALUES (2)")
connection.commit()
connection.close()
"""


def test_a_further_connection_leaves_the_locks_of_the_others_alone(tmp_path: Path) -> None:
    """Else a process that ends removes the journal under us: what it wrote is never seen, what we write is lost."""
    path = tmp_path / "one.sqlite"
    engine = Database.file(path).engine()
    with writing(engine) as connection:
        connection.execute(text("CREATE TABLE t (n INTEGER)"))
        connection.execute(text("INSERT INTO t VALUES (1)"))
    with engine.connect() as first, engine.connect() as second:
        assert first.execute(text("SELECT n FROM t")).scalars().all() == [1]
        assert second.execute(text("SELECT n FROM t")).scalars().all() == [1]
    subprocess.run([sys.executable, "-c", _WRITE, str(path)], check=True)
    with writing(engine) as connection:
        connection.execute(text("INSERT INTO t VALUES (3)"))
        assert connection.execute(text("SELECT n FROM t ORDER BY n")).scalars().all() == [1, 2, 3]
    other = sqlite3.connect(path)
    assert other.execute("SELECT n FROM t ORDER BY n").fetchall() == [(1,), (2,), (3,)]
    other.close()
    engine.dispose()


def test_a_new_file_is_for_our_eyes_only(tmp_path: Path) -> None:
    engine = Database.file(tmp_path / "new.sqlite").engine()
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    engine.dispose()
    assert (tmp_path / "new.sqlite").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("is_server", [False, True])
def test_a_connection_returned_after_the_end_is_closed(tmp_path: Path, is_server: bool, postgresql: str) -> None:
    """A thread may still read while another one closes the database, or may begin just after that."""
    place = Database(fresh_database(postgresql)) if is_server else Database.file(tmp_path / "one.sqlite")
    engine = place.engine()
    closed: list[object] = []
    event.listen(engine, "close", lambda opened, _entry: closed.append(opened))
    with engine.connect() as reading:
        engine.dispose()
        assert reading.execute(text("SELECT 1")).scalar() == 1
        assert not closed
    assert len(closed) == 1
    with engine.connect() as late:
        assert late.execute(text("SELECT 1")).scalar() == 1
    assert len(closed) == 2
