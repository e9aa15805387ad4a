"""Room in memory for mail on its way to object storage, which accepts a mail only in one piece.

Large mail in processing is on disk, but all of it would be in memory while the storage is slow, and a few large mails
at once could make the kernel kill us. So a mail waits here until there is room for it. Mails are served in the order in
which they come, so that small ones do not keep a large one waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UploadRoom:
    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._turn = asyncio.Lock()  # serves waiters in the order in which they arrived
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Wait until there is room for this many bytes. A mail that is larger than the whole room takes all of it."""
        count = min(count, self._size)
        async with self._turn:
            while self._free < count:
                self._freed.clear()
                await self._freed.wait()
            self._free -= count
        try:
            yield
        finally:
            self._free += count
            self._freed.set()
