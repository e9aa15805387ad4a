"""How the service's followers of the database wait: for the next poll, or until this process has written something."""

from __future__ import annotations

import asyncio


async def next_poll(wake: asyncio.Event, interval_s: float) -> None:
    """Returns when `wake` is set, and clears it, or after the interval."""
    try:
        async with asyncio.timeout(interval_s):
            await wake.wait()
    except TimeoutError:
        pass
    wake.clear()
