"""What only the history in PostgreSQL does."""

from __future__ import annotations

import psycopg

from bridge.history.postgresql import PostgresHistory
from bridge.runtime.database import Database
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
