"""The daemon's background tasks: they all have one owner, which ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from bridge.runtime.lasting import lasting


class BackgroundTasks:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.own(task)
        return task

    def keep(self, work: Callable[[], Coroutine[None, None, None]], name: str) -> asyncio.Task[None]:
        """For a loop that must not end: an unexpected error is logged, and it starts again."""
        return self.start(lasting(work, name))

    def own(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel what still runs, and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
