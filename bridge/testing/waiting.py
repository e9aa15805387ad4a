"""Waiting for what another thread, process or task does, with a limit and without fixed sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

# For a test of a deadline that must pass after something has begun: on a busy machine, a short one passes too early.
# Such a test tries these in turn until the thing has begun in time.
DEADLINES_S = (0.1, 1.0, 10.0)


def until(condition: Callable[[], T], what: str, limit_s: float = 120.0) -> T:
    """Wait until `condition` returns something true, and return it: for what another thread or process does.

    It looks less often the longer it takes: a condition that asks a server keeps that server from its work.
    """
    start = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - start
        assert waited_s < limit_s, f"waited {limit_s:g} s for {what}"
        time.sleep(min(max(0.005, waited_s / 20), 0.05))
    return found


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that another process may be writing: not the last one while its end is missing."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


async def eventually(condition: Callable[[], T], what: str, limit_s: float = 120.0) -> T:
    """The same in a coroutine: other tasks of the event loop run while it waits."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {limit_s:g} s for {what}"
        await asyncio.sleep(0.005)
    return found
