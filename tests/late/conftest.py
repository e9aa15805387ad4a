"""Late decisions use what the tests of the filter, of real mail servers and of the service's databases have."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "filter"), str(TESTS / "interop")]

from postgresql import fragile_postgresql, fresh_database, postgresql  # noqa: E402, F401  fixtures


@pytest.fixture
def server_database(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database on a PostgreSQL server of our own."""
    return fresh_database(request.getfixturevalue("postgresql"))
