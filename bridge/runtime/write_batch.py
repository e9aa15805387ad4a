"""The write batch: all writes of one event loop iteration are made at its end, one after the other.

A write goes deep into the kernel and wakes its reader. Made between other work, it finds the CPU caches full of our
data and leaves them full of the kernel's; made together, the writes of an iteration cost half, and a scanner that
serves many connections wakes up once for all of them. A reply waits only for the input that arrived with its command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

FEW = 32  # replies of one connection in one iteration; the event loop may read from it as often


class WriteBatch:
    """The pending writes of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []

    def add(self, write: Callable[[], None]) -> None:
        """Call `write` at the end of this iteration. By then there may be nothing left to write: it must check."""
        if not self._waiting:
            self._loop.call_soon(self._write_all)
        self._waiting.append(write)

    def _write_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            try:
                write()
            except Exception:  # must not affect the other connections
                log.exception("connection: a write failed")
