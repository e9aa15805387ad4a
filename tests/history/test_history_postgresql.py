"""What only the history in PostgreSQL does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg

from bridge.daemon import history_place
from bridge.history.postgresql import PostgresHistory
from bridge.history.query import HistoryQuery
from bridge.runtime.database import Database
from tests.config.config_kit import changed, load
from tests.history.history_kit import mail
from tests.postgresql import fresh_database

_UNSORTED = """
SELECT coalesce(sum(gin_clean_pending_list(indexrelid)), 0) FROM pg_index
JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam
WHERE amname = 'gin' AND indisvalid AND relkind = 'i'
"""


def test_new_entries_of_the_indexes_are_sorted_in(postgresql: str) -> None:
    """Otherwise, every search reads all of them: with ten million mails, one for six words took 127 ms."""
    url = fresh_database(postgresql)
    history = PostgresHistory(Database(url))
    with psycopg.connect(url) as connection:
        for maintained, unsorted in ((False, True), (True, False)):
            history.append([mail(number) for number in range(100)])
            if maintained:
                history.maintain(0.0, None)
            (pages,) = connection.execute(_UNSORTED).fetchone() or (0,)
            assert (pages > 0) == unsorted
    history.close()


def test_a_changed_password_was_used_only_after_a_restart(tmp_path: Path, fragile_postgresql: Any) -> None:
    """Once the server had closed the daemon's connections, entries were lost, although a reload had succeeded."""
    url, file = fresh_database(fragile_postgresql.url), tmp_path / "password"
    file.write_text("the-first-password")
    own_url = url.replace("tester@", "rotated@")
    conf = load(changed(state_database=own_url, state_database_password_file=str(file)))
    with psycopg.connect(url, autocommit=True) as admin, fragile_postgresql.needs_password("rotated"):
        admin.execute("CREATE ROLE rotated SUPERUSER LOGIN PASSWORD 'the-first-password'")
        history = history_place.history(conf, tmp_path)
        history.append([mail(1)])

        def change(password: str) -> None:
            admin.execute(f"ALTER ROLE rotated PASSWORD '{password}'".encode())
            admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = 'rotated'")

        file.write_text("the-second-password")
        change("the-second-password")
        history.append([mail(2)])
        file.unlink()  # the password that was read at the start is the best guess then
        change("the-first-password")
        history.append([mail(3)])
        assert len(history.find(HistoryQuery())) == 3
        history.close()
