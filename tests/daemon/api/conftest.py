"""Databases for the tests of the HTTP API."""

from __future__ import annotations

import pytest

from tests.postgresql import fresh_database


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def state_database(request: pytest.FixtureRequest) -> str:
    """The URL of an empty state database: files in the state directory, or our own PostgreSQL server.

    `make test` uses PostgreSQL only for tests that ask for it (`in_both_databases`).
    """
    if request.param == "sqlite":
        return "sqlite:///state.sqlite"
    return fresh_database(request.getfixturevalue("postgresql"))
