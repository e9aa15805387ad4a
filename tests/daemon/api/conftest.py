"""Databases for the tests of the HTTP API."""

from __future__ import annotations

import pytest

from tests.postgresql import fresh_database


@pytest.fixture(params=["sqlite", "postgresql"])
def state_database(request: pytest.FixtureRequest) -> str:
    """The URL of an empty state database: files in the state directory, and our own PostgreSQL server."""
    if request.param == "sqlite":
        return "sqlite:///state.sqlite"
    return fresh_database(request.getfixturevalue("postgresql"))
