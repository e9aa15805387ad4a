from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.runtime.database import Database
from tests.events.events_kit import Receiver, receiving
from tests.postgresql import fresh_database


@pytest.fixture
def anyio_backend() -> str:
    """Delivery has a thread with Python's own event loop."""
    return "asyncio"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.fixture
def file(tmp_path: Path) -> Database:
    return Database.file(tmp_path / "events.sqlite")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return Database.file(tmp_path / "events.sqlite")
    return Database(fresh_database(request.getfixturevalue("postgresql")))
