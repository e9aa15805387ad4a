"""Work that many callers want at the same time, done once for all of them.

For work that costs more than asking for it, such as a query to other machines: however many callers wait, only one
query is in progress. If this is wrong, a client without any rights can make us send requests at will.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedCall(Generic[T]):
    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._running: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        """The result of the work that is under way, else of new work. Raises what the work raises."""
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._work())
            self._running.add_done_callback(_noticed)
        return await asyncio.shield(self._running)

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _noticed(task: asyncio.Task[Any]) -> None:
    """If all callers are gone by then, no one else retrieves the exception, and asyncio would log it."""
    if not task.cancelled():
        task.exception()
