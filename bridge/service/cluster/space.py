"""Turns for large mail: who may upload to the object store now.

The store refuses what does not fit, chunk by chunk. Without turns, two mails that fit only one after the other fill it
together, and both are refused. So each mail takes its space here before its first chunk is sent; if there is not
enough, it waits for those before it. Knows the mail of this API node only: other nodes share the store, and what they
have put in is for the caller to find out.
"""

from __future__ import annotations

import asyncio
from collections import deque

_SMALL = 16  # a mail that needs less than this part of the whole does not wait for larger ones before it


class Space:
    def __init__(self, size_bytes: int) -> None:
        self._size = self._free = size_bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def can_hold(self, size_bytes: int) -> bool:
        """Whether it ever fits."""
        return size_bytes <= self._size

    async def take(self, size_bytes: int, timeout_s: float, max_waiting: int) -> bool:
        """Take space, for the caller to give back; False if there is none in time, or too many wait for it."""
        if size_bytes <= self._free and (not self._waiting or size_bytes <= self._size // _SMALL):
            self._free -= size_bytes
            return True
        if len(self._waiting) >= max_waiting:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, turn))
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException as exc:
            self._leave(size_bytes, turn)
            if isinstance(exc, TimeoutError):
                return False
            raise
        return True

    def give_back(self, size_bytes: int) -> None:
        self._free += size_bytes
        while self._waiting and self._waiting[0][0] <= self._free:
            needed, turn = self._waiting.popleft()
            if not turn.done():  # else its caller has gone
                self._free -= needed
                turn.set_result(None)

    def _leave(self, size_bytes: int, turn: asyncio.Future[None]) -> None:
        """Its turn may have come at the moment in which it left."""
        if (size_bytes, turn) in self._waiting:
            self._waiting.remove((size_bytes, turn))
        came = turn.done() and not turn.cancelled()
        self.give_back(size_bytes if came else 0)
