"""Threads for work that may never end: a disk that hangs, a name server that does not answer.

The standard library waits for its threads when the process ends, so one such call would keep a stopped daemon from
ending. These are daemon threads: callers await the results that they need, and unfinished work is dropped at exit. Each
kind of work has its own few threads, so that a disk that hangs does not delay name lookups.

While all threads of a kind hang, their callers give up one after the other, and their work stays in the queue until a
thread finds that it is no longer wanted. So the queue has a limit: beyond it, work is refused immediately.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

POOL_SIZE = min(32, (os.cpu_count() or 1) + 4)  # threads: as many as the event loop would have
MAX_WAITING = 10_000  # jobs; far more than there are mails in processing

_Item = tuple[Callable[[], Any], "Future[Any]"]


class Threads:
    """Up to `size` daemon threads, started on demand. `max_waiting`: None for work whose callers never give up."""

    def __init__(self, name: str, size: int = POOL_SIZE, max_waiting: int | None = MAX_WAITING) -> None:
        self._name = name
        self._size = size
        self._max_waiting = max_waiting
        self._submitting = threading.Lock()  # event loops of several threads share these
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """The same as `submit`, for a coroutine."""
        return asyncio.wrap_future(self.submit(work))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue it. Raises OSError if too much waits; RuntimeError if no thread can start: then it stays queued."""
        if self._process != os.getpid():  # threads do not survive a fork, and another one may have held the lock
            self._submitting = threading.Lock()
            self._begin()
        result: Future[T] = Future()
        with self._submitting:
            if self._max_waiting is not None and self._queue.qsize() >= self._max_waiting:
                waiting = f"{self._queue.qsize():,} jobs are already waiting for a thread"
                raise OSError(errno.EAGAIN, f"{waiting} ({self._name})")
            self._queue.put((work, result))
            if not self._idle.acquire(blocking=False) and self._count < self._size:
                about = (self._queue, self._idle)
                threading.Thread(target=self._work, args=about, name=self._name, daemon=True).start()
                self._count += 1
        return result

    def close(self) -> None:
        """The threads end when the work that waits is done. This does not wait for them."""
        with self._submitting:
            for _ in range(self._count):
                self._queue.put(None)
            self._begin()

    @staticmethod
    def _work(queue: SimpleQueue[_Item | None], idle: threading.Semaphore) -> None:
        while (item := queue.get()) is not None:
            work, result = item
            _carry_out(work, result)
            del item, work, result  # a thread that waits must not keep a mail
            if queue.empty():
                idle.release()


class Executor(ThreadPoolExecutor):
    """Daemon threads as an executor. `set_default_executor` accepts only a ThreadPoolExecutor."""

    def __init__(self, name: str, size: int = POOL_SIZE) -> None:
        super().__init__(size, name)
        self._daemons = Threads(name, size, max_waiting=None)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        return self._daemons.submit(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads, without waiting: callers have already awaited what they need."""
        self._daemons.close()


def use_daemon_threads() -> None:
    """For what runs in the event loop's threads, such as `asyncio.to_thread`."""
    asyncio.get_running_loop().set_default_executor(Executor("loop"))


async def finish_in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Run it in one of the event loop's threads. Even a caller that is cancelled waits until the work ends."""
    # Not a task: when a program is interrupted for the second time, asyncio cancels all tasks.
    running = asyncio.get_running_loop().run_in_executor(None, partial(work, *arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):  # cancelled again
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # so that asyncio does not log it
        raise


def _carry_out(work: Callable[[], Any], result: Future[Any]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    try:
        found = work()
    except BaseException as exc:
        result.set_exception(exc)
    else:
        result.set_result(found)
