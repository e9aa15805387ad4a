"""Databases for the tests of late decisions."""

from __future__ import annotations

import pytest

from tests.postgresql import fresh_database


@pytest.fixture
def server_database(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database on our own PostgreSQL server."""
    return fresh_database(request.getfixturevalue("postgresql"))
