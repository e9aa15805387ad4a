"""Late decisions use what the tests of the filter, of real mail servers and of the service's databases have."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "filter"), str(TESTS / "interop")]
sys.path.append(str(TESTS / "service"))  # its conftest has a kit beside it
_spec = importlib.util.spec_from_file_location("late_servers", TESTS / "service" / "conftest.py")
assert _spec is not None and _spec.loader is not None
_servers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_servers)
postgresql = _servers.postgresql
fragile_postgresql = _servers.fragile_postgresql


@pytest.fixture
def server_database(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database on a PostgreSQL server of our own."""
    url: str = _servers.fresh_database(request.getfixturevalue("postgresql"))
    return url
