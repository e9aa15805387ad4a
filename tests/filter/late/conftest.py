"""Late decisions use what the tests of the filter, of real mail servers and of the service's databases have."""

from __future__ import annotations

import pytest

from tests.postgresql import fragile_postgresql, fresh_database, postgresql  # noqa: F401  fixtures


@pytest.fixture
def server_database(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database on a PostgreSQL server of our own."""
    return fresh_database(request.getfixturevalue("postgresql"))
