"""Writes: what is to be written in one turn of the event loop is written at its end, one after the other.

Each write goes a long way through the kernel and wakes whoever reads it. Made in between, it finds the processor's
caches full of our own work, and leaves them full of the kernel's; made together, all writes of a turn cost half, and a
scanner that serves many connections wakes up once for them. A reply waits for no more than what has come with its
question.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

FEW = 32  # answers of one connection; in one turn it may be read from as often


class Writes:
    """Of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []

    def add(self, write: Callable[[], None]) -> None:
        """It is called soon. By then there may be nothing left to write: it must know."""
        if not self._waiting:
            self._loop.call_soon(self._write_all)
        self._waiting.append(write)

    def _write_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for write in waiting:
            try:
                write()
            except Exception:  # one connection's, not the others'
                log.exception("a write failed")
