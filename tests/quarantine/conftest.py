from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.runtime.database import Database
from tests.postgresql import fresh_database
from tests.quarantine.quarantine_kit import made
from tests.quarantine.s3_kit import ObjectServer


@pytest.fixture(autouse=True)
def close_messages() -> Iterator[None]:
    """As the intake does when a mail is done."""
    yield
    while made:
        made.pop().close()


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    server = ObjectServer(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty state database, SQLite and PostgreSQL."""
    if request.param == "sqlite":
        return Database.file(tmp_path / "state.sqlite")
    return Database(fresh_database(request.getfixturevalue("postgresql")))
