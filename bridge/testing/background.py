"""An event loop in a thread, for tests that are plain functions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar, cast

import uvloop

T = TypeVar("T")


class Background:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 120.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        self.run(_end_tasks())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(60)
        self.loop.close()


async def _end_tasks() -> None:
    """Sessions whose peer has hung up end on their own; the others are cancelled."""
    tasks = asyncio.all_tasks() - {cast("asyncio.Task[None]", asyncio.current_task())}
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=0.5)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    for _ in range(5):  # a closed or aborted transport goes away in one of the next turns of the loop
        await asyncio.sleep(0)
