"""Whether the daemon is to stop, and how much time mail in processing has left.

Exists before anything is started, so a signal that arrives during the start is not lost. Knows
the clock only; `daemon` does the stopping.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

log = logging.getLogger(__name__)

HURRIED_DRAIN_S = 2.0  # after a second signal


class Shutdown:
    def __init__(self) -> None:
        self.has_begun = False
        self._requested = asyncio.Event()
        self._on_hurry: list[Callable[[], None]] = []
        self._ends_by = 0.0  # once it has begun: mail in processing is given up then
        self._hurried_by = math.inf  # the same after a second signal, which may come before the stop has begun
        self._wait: asyncio.Timeout | None = None  # the `time_left` in progress

    def request(self) -> None:
        self._requested.set()

    def request_or_hurry(self) -> None:
        """For a signal: the first one stops the daemon, another one hurries it."""
        if self._requested.is_set():
            self.hurry()
        self.request()

    async def wait_requested(self) -> None:
        await self._requested.wait()

    def call_on_hurry(self, callback: Callable[[], None]) -> None:
        self._on_hurry.append(callback)

    def hurry(self) -> None:
        """Give up mail in processing soon: its clients keep it and send it again."""
        log.warning("second stop signal: mail still being processed will be abandoned after %.0f s", HURRIED_DRAIN_S)
        self._hurried_by = time.monotonic() + HURRIED_DRAIN_S
        self._ends_by = min(self._ends_by, self._hurried_by)
        if self._wait is not None:
            self._wait.reschedule(asyncio.get_running_loop().time() + HURRIED_DRAIN_S)
        for callback in self._on_hurry:
            callback()

    def begin(self, drain_s: float) -> None:
        self.has_begun = True
        self._ends_by = min(time.monotonic() + drain_s, self._hurried_by)

    @property
    def remaining_s(self) -> float:
        return max(self._ends_by - time.monotonic(), 0.0)

    @asynccontextmanager
    async def time_left(self, at_least_s: float) -> AsyncIterator[None]:
        """Raises TimeoutError when the time for mail in processing is over; `hurry` shortens it."""
        try:
            async with asyncio.timeout(max(self.remaining_s, at_least_s)) as self._wait:
                yield
        finally:
            self._wait = None
