"""Loops that must not end: an error that nobody thought of costs a round, not the loop."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bridge.daemon.tasks import BackgroundTasks
from bridge.runtime.lasting import lasting


async def test_work_begins_again_after_an_unexpected_error(caplog: pytest.LogCaptureFixture) -> None:
    """A background task that raised was gone for good, and nobody noticed."""
    rounds = 0

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        if rounds < 4:
            raise OSError("no file descriptor")

    with caplog.at_level(logging.ERROR):
        await lasting(work, "count", 0.0)
    assert rounds == 4
    assert [record.message for record in caplog.records] == ["count: unexpected error; starting again in 0 s"] * 3


async def test_a_background_loop_ends_when_it_is_cancelled() -> None:
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    tasks = BackgroundTasks()
    task = tasks.keep(work, "loop")
    await started.wait()
    await tasks.close()
    assert task.cancelled()
