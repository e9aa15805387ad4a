"""One timer looks at all connections: what one of them does must not matter to the others."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bridge.runtime.connection_timer import ConnectionTimer
from bridge.testing import eventually


class Connection:
    def __init__(self, *, fails: bool = False, cannot_be_cut: bool = False) -> None:
        self.checks = 0
        self.is_cut = False
        self._fails = fails
        self._cannot_be_cut = cannot_be_cut

    def check_deadlines(self) -> None:
        self.checks += 1
        if self._fails:
            raise RuntimeError("broken state")

    def cut(self) -> None:
        self.is_cut = True
        if self._cannot_be_cut:
            raise RuntimeError("broken transport")


@pytest.mark.parametrize("cannot_be_cut", [False, True])
async def test_a_connection_that_cannot_be_checked_is_closed_and_the_others_are_visited(
    cannot_be_cut: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One broken connection stayed open, and the deadlines of those behind it were never checked again."""
    timer = ConnectionTimer(asyncio.get_running_loop(), 0.001)
    broken = [Connection(fails=True, cannot_be_cut=cannot_be_cut) for _ in range(10)]
    healthy = [Connection() for _ in range(10)]
    with caplog.at_level(logging.ERROR):
        for connection in (*broken, *healthy):
            timer.add(connection)
        await eventually(lambda: all(connection.checks > 3 for connection in healthy), "all deadlines to be checked")
    assert all(connection.is_cut and connection.checks == 1 for connection in broken)
    assert not any(connection.is_cut for connection in healthy)
    assert len(caplog.records) == len(broken) * (2 if cannot_be_cut else 1)
