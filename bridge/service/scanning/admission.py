"""Admission: may one more request enter, and after what delay?

At most `maxGuardRequestsInProcessing` requests are in processing, from their head to their answer;
the next one is refused with 503. From `guardRequestThrottleThreshold` on, each request is delayed;
the delay grows linearly and reaches `throttle_max_s` at the limit. Knows counts and the clock, but
not HTTP.

The status of the queue follows from the same counts:

    GREEN   fewer requests in processing than the threshold and the limit
    YELLOW  the threshold is reached; or the limit is, but requests still finish
    RED     the limit is reached, and no request finished within `STUCK_S`: a new one would be refused
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bridge.api.scanning import QueueStatus
from bridge.service.responses import Refused

STUCK_S = 0.1
RETRY_AFTER_S = 1


class Admission:
    def __init__(self, limit: int, threshold: int, throttle_max_s: float) -> None:
        self._configured = limit, threshold
        self._limits: Callable[[], tuple[int, int] | None] | None = None
        self.throttle_max_s = throttle_max_s
        self.in_processing = 0
        self.refused = 0
        self._finished = asyncio.Event()  # set whenever a request finishes

    def use(self, limit: int, threshold: int, limits: Callable[[], tuple[int, int] | None]) -> None:
        """From now on these limits apply, unless `limits` returns others, which change with a cluster's workers."""
        self._configured = limit, threshold
        self._limits = None if limits() is None else limits

    @property
    def limit(self) -> int:
        return self._current()[0]

    @property
    def threshold(self) -> int:
        return self._current()[1]

    def _current(self) -> tuple[int, int]:
        return self._configured if self._limits is None else self._limits() or self._configured

    def enter(self) -> float:
        """Take a slot and return the delay in seconds. Raises Refused at the limit."""
        if self.in_processing >= self.limit:
            self.refused += 1
            raise Refused(503, "saturated", "too many requests are being processed", retry_after_s=RETRY_AFTER_S)
        delay = self.delay(self.in_processing)
        self.in_processing += 1
        return delay

    def leave(self) -> None:
        self.in_processing -= 1
        self._finished.set()

    def delay(self, count: int) -> float:
        """The delay for a request that arrives while `count` others are in processing."""
        if count < self.threshold or self.limit <= self.threshold:
            return 0.0
        return self.throttle_max_s * (count - self.threshold + 1) / (self.limit - self.threshold)

    async def status(self) -> QueueStatus:
        if self.in_processing < self.limit:
            return QueueStatus.YELLOW if self.in_processing >= self.threshold else QueueStatus.GREEN
        self._finished.clear()
        try:
            async with asyncio.timeout(STUCK_S):
                await self._finished.wait()
        except TimeoutError:
            return QueueStatus.RED
        return QueueStatus.YELLOW
