"""Restart and reload under continuous mail, on a socket that another process holds, as systemd does.

No connection is refused: while no bridge runs, clients wait in the socket's queue. No mail is lost, and since nothing
is killed here, none arrives twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.restart_kit import CLIENTS, Load, managed
from tests.long_cases import few


@pytest.mark.parametrize("workers", few([2, 1], 1))
def test_nothing_is_refused_lost_or_doubled(tmp_path: Path, workers: int) -> None:
    """After a reload and a restart, every mail with a 250 has arrived exactly once."""
    with managed(tmp_path, workers) as (manager, arrived):
        load = Load(manager.port)
        for disturb in (manager.reload, manager.restart):
            load.more()
            disturb()
        load.more()
        load.end()
        assert manager.bridge.process.poll() is None
    assert not load.errors
    assert load.cut >= CLIENTS  # the restart closed their sessions
    assert load.accepted.keys() <= arrived.keys(), "accepted and not arrived"
    assert set(arrived.values()) == {1} == set(load.accepted.values())
