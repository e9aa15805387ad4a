"""What the scripted servers share: each listens on loopback."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from typing import ClassVar


class LoopbackServer(ABC):
    """Listens on loopback, on a port that the kernel chooses."""

    limit: ClassVar[int] = 2**16  # bytes read ahead
    port = 0
    _server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=self.limit, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...
