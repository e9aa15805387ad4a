"""What was done to a mail later, as the history notes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.cli.later_notes import RELEASED, LaterNotes
from bridge.config.model import Config
from bridge.history.sqlite import SqliteHistory
from bridge.runtime import yaml_file
from tests.daemon.process_kit import write_config
from tests.history.history_kit import mail


@pytest.mark.parametrize("addresses", ["full", "domain", "hashed"])
def test_the_address_of_a_user_who_released_a_mail_was_not_hidden(tmp_path: Path, addresses: str) -> None:
    """Recipients were hidden as `log.addresses` says, and those of them who released their own mail were not."""
    path, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", log={"addresses": addresses})
    state = tmp_path / "state"
    state.mkdir(exist_ok=True)
    store = SqliteHistory(state / "history")
    store.append([mail(1)])
    notes = LaterNotes(yaml_file.load(path, Config), state)
    for by in ("user jane@example.org", "console:jane@example.org", "root"):
        notes.note(RELEASED, "ID0001", by, ("jane@example.org",), "250 <jane@example.org> ok")
    found = store.later(["ID0001"])
    store.close()
    assert len(found) == 3 and found[2].by == "root" and found[0].by.startswith("user ")
    shown = [f"{event.by} {event.text}" for event in found]
    assert all(("jane" in text) == (addresses == "full") for text in shown)
