"""The console's quarantine pages while a search is slow: others wait for it, instead of "Not available"."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from bridge.cli.console import wiring
from bridge.config.model import Config
from bridge.quarantine.index import BUSY_S, Index, IndexFailed
from bridge.runtime import yaml_file
from bridge.runtime.database import Database
from tests.postgresql import fresh_database


def configuration(directory: Path) -> Config:
    config: dict[str, Any] = {
        "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:10025"}],
        "relay": {"next_hop": "smtp://127.0.0.1:10026"},
        "state_directory": str(directory / "state"),
        "console": {},
    }
    (directory / "token").write_text("0123456789abcdef0123456789abcdef")
    file = directory / "bridge.yml"
    file.write_text(yaml_file.dump(config))
    return yaml_file.load(file, Config, file.read_text())


def test_one_slow_search_made_all_other_pages_of_the_quarantine_fail(tmp_path: Path) -> None:
    """The console had the patience of the daemon, for whom a mail's reply waits: half a second."""
    quarantine = wiring.sources(configuration(tmp_path), tmp_path / "bridge.yml").quarantine
    assert quarantine._index is not None
    counts: list[int] = []
    other = threading.Thread(target=lambda: counts.append(quarantine.count()))
    with quarantine._index._transaction():
        other.start()
        other.join(3 * BUSY_S)
        assert other.is_alive(), "it waits"
    other.join(60)
    assert counts == [0]
    asyncio.run(quarantine.close())


def test_a_search_that_was_cancelled_kept_everybody_out_of_the_quarantine(postgresql: str) -> None:
    """The server answers others; only a statement that stores something is not tried again at once."""
    place = Database(fresh_database(postgresql))
    Index(place).count(None)  # creates the tables
    index = Index(place, "", 10.0, statement_s=2.0)
    for writes in (False, True):
        with pytest.raises(IndexFailed, match="timeout"), index._transaction(writes=writes) as connection:
            connection.execute(text("SELECT pg_sleep(300)"))
        if not writes:
            assert index.count(None) == 0
    with pytest.raises(IndexFailed, match="failed recently"):
        index.count(None)
    index.close()
