"""Turns for large mail: who may upload to the object store now.

The store refuses what does not fit, chunk by chunk. Without turns, two mails that fit only one after the other fill it
together, and both are refused. So each mail takes its space here before its first chunk is sent; if there is not
enough, it waits for those before it. Knows the mail of this API node only: other nodes share the store, and what they
have put in is for the caller to find out.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

OVERTAKING_S = 5.0  # for which small mail may pass a larger one that waits
_SMALL = 16  # a mail is small if it needs at most this fraction of the whole


@dataclass(slots=True, eq=False)
class _Turn:
    size_bytes: int
    came: asyncio.Future[None]
    begun: float = field(default_factory=time.monotonic)


class Space:
    def __init__(self, size_bytes: int, overtaking_s: float = OVERTAKING_S) -> None:
        self._size = self._free = size_bytes
        self._overtaking_s = overtaking_s
        self._waiting: deque[_Turn] = deque()

    def can_hold(self, size_bytes: int) -> bool:
        """Whether it can ever fit."""
        return size_bytes <= self._size

    async def take(self, size_bytes: int, timeout_s: float, max_waiting: int) -> bool:
        """Take space, for the caller to give back; False if there is none in time, or too many wait for it."""
        if size_bytes <= self._free and (not self._waiting or self._may_overtake(size_bytes)):
            self._free -= size_bytes
            return True
        if len(self._waiting) >= max_waiting:
            return False
        turn = _Turn(size_bytes, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                await turn.came
        except BaseException as exc:
            self._leave(turn)
            if isinstance(exc, TimeoutError):
                return False
            raise
        return True

    def give_back(self, size_bytes: int) -> None:
        self._free += size_bytes
        while self._waiting and self._waiting[0].size_bytes <= self._free:
            turn = self._waiting.popleft()
            if not turn.came.done():  # else its caller has gone
                self._free -= turn.size_bytes
                turn.came.set_result(None)

    def _may_overtake(self, size_bytes: int) -> bool:
        """Small mail may, but not for ever: a steady stream of it would leave no room for the first in line."""
        return size_bytes <= self._size // _SMALL and time.monotonic() - self._waiting[0].begun < self._overtaking_s

    def _leave(self, turn: _Turn) -> None:
        """Its turn may have come at the very moment when it left."""
        if turn in self._waiting:
            self._waiting.remove(turn)
        has_come = turn.came.done() and not turn.came.cancelled()
        self.give_back(turn.size_bytes if has_come else 0)
