"""Threads for work that may never end: a disk that hangs, a name server that does not answer.

The standard library waits for its threads when the process ends, so one such call would keep a stopped daemon from
ending. These threads do not: whoever needs the result of a job awaits it, and what nobody awaits is given up with the
process. Each kind of work has its own few threads, so that one that hangs does not stop another.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Item = tuple[Callable[[], Any], "Future[Any]"]


class Threads:
    """At most so many threads, started when they are needed."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._count = 0
        self._idle = threading.Semaphore(0)
        self._queue: SimpleQueue[_Item] = SimpleQueue()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Queue the work. Called by the event loop. Raises RuntimeError without a thread; the work stays queued."""
        if self._process != os.getpid():  # threads do not survive a fork
            self._begin()
        result: Future[T] = Future()
        self._queue.put((work, result))
        if not self._idle.acquire(blocking=False) and self._count < self._most:
            thread = threading.Thread(target=self._work, args=(self._queue, self._idle), name=self._name, daemon=True)
            thread.start()
            self._count += 1
        return asyncio.wrap_future(result)

    @staticmethod
    def _work(queue: SimpleQueue[_Item], idle: threading.Semaphore) -> None:
        while True:
            work, result = queue.get()
            _carry_out(work, result)
            del work, result  # a thread that waits must not keep a mail
            if queue.empty():
                idle.release()


def _carry_out(work: Callable[[], Any], result: Future[Any]) -> None:
    if not result.set_running_or_notify_cancel():
        return
    try:
        found = work()
    except BaseException as exc:
        result.set_exception(exc)
    else:
        result.set_result(found)
