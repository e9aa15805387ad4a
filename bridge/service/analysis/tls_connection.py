"""A connection to an engine over TLS, with the rules of `connections`.

asyncio's own streams read ahead, so it would be impossible to tell whether something is left unread. Here, TLS works on
bytes in memory, and the socket is read only when an answer is awaited. The server must present a certificate for the
name that we asked for.
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from bridge.runtime import whole_file
from bridge.service.analysis.connections import PIECE, BadAnswer, Connection, Opening


def tls_opening(ca_path: str | None, name: str) -> Opening:
    """For a server that must have a certificate for `name`, of one of these authorities. Raises OSError."""
    if ca_path:
        whole_file.refuse_endless(ca_path)
    context = ssl.create_default_context(cafile=ca_path)

    async def opening(sock: socket.socket) -> Connection:
        connection = TlsConnection(sock, context, name)
        await connection.shake_hands()
        return connection

    return opening


class TlsConnection(Connection):
    def __init__(self, sock: socket.socket, context: ssl.SSLContext, name: str) -> None:
        super().__init__(sock)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._flushing = asyncio.Lock()  # a mail may be sent while its answer is read

    @classmethod
    async def over(cls, connection: Connection, context: ssl.SSLContext, name: str) -> TlsConnection:
        """Instead of `connection`. Raises OSError."""
        made = cls(connection._sock, context, name)
        await made.shake_hands()
        return made

    async def shake_hands(self) -> None:
        """Raises OSError (ssl.SSLError is one)."""
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
            if not await self._fill():
                raise ConnectionResetError("the connection was closed during the TLS handshake")
        await self._flush()

    async def send(self, data: bytes | bytearray) -> None:
        for at in range(0, len(data), PIECE):  # so that no more than this is encrypted in memory
            self._tls.write(data[at : at + PIECE])
            await self._flush()

    async def receive(self) -> bytes:
        while True:
            try:
                return self._tls.read(PIECE)
            except ssl.SSLWantReadError:
                await self._flush()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError as exc:
                raise BadAnswer(f"TLS: {exc.reason or type(exc).__name__}") from None
            if not await self._fill():
                return b""

    async def _fill(self) -> bool:
        """False at the end."""
        found = await super().receive()
        self._incoming.write(found)
        return bool(found)

    async def _flush(self) -> None:
        async with self._flushing:
            while self._outgoing.pending:
                await super().send(self._outgoing.read())
