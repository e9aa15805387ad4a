"""Calls to the database from the event loop: in threads of their own, and never for longer than a limit.

A server that hangs, or a table that somebody has locked, keeps a thread until that ends. In the event loop's own few
threads, such calls would also hold up what else runs there, such as the replacement of an inspecting process, and would
keep the service from stopping. Changes get only some of the threads: they wait for each other at the lock of `clock`,
and readers need not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from bridge.runtime.threads import Threads
from bridge.service.store import StoreUnavailable

ANSWER_S = 20.0
_THREADS, _OF_CHANGES = 12, 4

T = TypeVar("T")


class DatabaseCalls:
    """Both methods raise what the work raises, and StoreUnavailable if it takes too long.

    Work that took too long may still be completed afterwards.
    """

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self.answer_s = answer_s
        self._threads = Threads("database", _THREADS)
        self._changing = asyncio.Semaphore(_OF_CHANGES)

    async def ask(self, work: Callable[..., T], *arguments: Any) -> T:
        async with self._limit():
            return await asyncio.wrap_future(self._submit(partial(work, *arguments)))

    async def change(self, work: Callable[..., T], *arguments: Any) -> T:
        async with self._limit():
            await self._changing.acquire()  # until the thread is free again, even if nobody waits for it any more
            try:
                running = self._submit(partial(work, *arguments))
            except BaseException:
                self._changing.release()
                raise
            loop = asyncio.get_running_loop()
            running.add_done_callback(lambda _: self._release(loop))
            return await asyncio.wrap_future(running)

    def close(self) -> None:
        self._threads.close()

    @asynccontextmanager
    async def _limit(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.answer_s) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise no_answer() from None

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        try:
            return self._threads.submit(work)
        except (OSError, RuntimeError) as exc:  # too much work is waiting, or no thread could be started
            raise StoreUnavailable(f"the database cannot be queried: {exc}", temporary=True) from exc

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called in the thread."""
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._changing.release)


def no_answer() -> StoreUnavailable:
    return StoreUnavailable("the database does not answer", temporary=True)
