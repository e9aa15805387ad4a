"""Room in memory for mail on its way to object storage, which takes a mail only in one piece.

Mail in processing is on disk if it is large, but all of it would be in memory while the storage is slow: a few large
mails at once, and the kernel kills us. So a mail waits here until there is room for it. The first to come is the first
to be served, so that small mails do not keep a large one waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UploadRoom:
    def __init__(self, size: int) -> None:
        self._size = size
        self._free = size
        self._turn = asyncio.Lock()  # serves those who wait in their order
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Waits until there is room for this many bytes. More than there ever is gets all of it."""
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
