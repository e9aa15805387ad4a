"""A PostgreSQL server that stops in the middle: its connections stay open, but nobody answers."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from bridge.runtime.database import Database
from tests.postgresql import fresh_database


def test_a_statement_waited_for_a_frozen_server_for_ever(fragile_postgresql: Any) -> None:
    """A command never ended, and the daemon recorded nothing more until a restart, though the server was back."""
    engine = Database(fresh_database(fragile_postgresql.url)).engine(connections=1, statement_s=0.2, longer_s=0.1)
    failure = pytest.raises(OperationalError, match="the server does not answer")
    with engine.connect() as connection, fragile_postgresql.frozen(), failure:
        connection.execute(text("SELECT 1"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 2")).scalar_one() == 2
    engine.dispose()


def test_the_server_keeps_the_limit_while_it_can(fragile_postgresql: Any) -> None:
    """Its own error says more, and the connection can be used again."""
    engine = Database(fresh_database(fragile_postgresql.url)).engine(connections=1, statement_s=0.2, longer_s=60.0)
    with engine.connect() as connection, pytest.raises(OperationalError, match="statement timeout"):
        connection.execute(text("SELECT pg_sleep(60)"))
    engine.dispose()
