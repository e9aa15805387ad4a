"""Admission: may one more request enter, and how slowly?

`maxGuardRequestsInProcessing` requests are in processing at most, from their head to their
answer; the next is refused with 503. From `guardRequestThrottleThreshold` on each request is
delayed, linearly up to `THROTTLE_MAX_S` at the limit. Knows counts and the clock, no HTTP.

The status of the queue follows from the same counts:

    GREEN   fewer requests in processing than threshold, and than the limit
    YELLOW  the threshold is reached, or the limit is, but requests end
    RED     the limit is reached, and no request ended for `STUCK_S`: one submitted now is refused
"""

from __future__ import annotations

import asyncio

from bridge.api.scanning import QueueStatus
from bridge.service.responses import Refused

THROTTLE_MAX_S = 5.0
STUCK_S = 0.1
RETRY_AFTER_S = 1


class Admission:
    def __init__(self, limit: int, threshold: int) -> None:
        self.limit = limit
        self.threshold = threshold
        self.in_processing = 0
        self.refused = 0
        self._left = asyncio.Event()  # set whenever a request ends

    def enter(self) -> float:
        """Take a slot; the answer is how long to wait before going on. Raises Refused at the limit."""
        if self.in_processing >= self.limit:
            self.refused += 1
            raise Refused(503, "saturated", "too many requests in processing", retry_after_s=RETRY_AFTER_S)
        delay = self.delay(self.in_processing)
        self.in_processing += 1
        return delay

    def leave(self) -> None:
        self.in_processing -= 1
        self._left.set()

    def delay(self, count: int) -> float:
        """The throttle for a request that finds `count` others in processing."""
        if count < self.threshold or self.limit <= self.threshold:
            return 0.0
        return THROTTLE_MAX_S * (count - self.threshold + 1) / (self.limit - self.threshold)

    async def status(self) -> QueueStatus:
        if self.in_processing < self.limit:
            return QueueStatus.YELLOW if self.in_processing >= self.threshold else QueueStatus.GREEN
        self._left.clear()
        try:
            async with asyncio.timeout(STUCK_S):
                await self._left.wait()
        except TimeoutError:
            return QueueStatus.RED
        return QueueStatus.YELLOW
