"""Answers for clients of HTTP/1.0, which do not support chunks.

If this is wrong, such a client takes the sizes of chunks for content, or a body that was cut off for a whole one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class UnchunkedForOldClients:
    """An application that sends a client of HTTP/1.0 no chunks: a body of unknown length ends with the connection.

    RFC 9112 6.1 requires it, and uvicorn does not do it. A body that cannot be sent to its end must not look complete,
    so the connection is then reset.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        cycle: RequestResponseCycle = send.__self__  # knows how uvicorn frames the answer
        if scope["http_version"] == "1.1":

            async def send_while_open(message: Any) -> None:
                try:
                    await send(message)
                except RuntimeError:  # uvloop; uvicorn marks only the last of several requests as disconnected
                    if not cycle.transport.is_closing():
                        raise
                    cycle.disconnected = True

            await self._app(scope, receive, send_while_open)
            return
        ends_with_connection = False

        async def send_unchunked(message: Any) -> None:
            nonlocal ends_with_connection
            if message["type"] == "http.response.start":
                ends_with_connection = all(name.lower() != b"content-length" for name, _ in message["headers"])
                cycle.keep_alive = False
                if ends_with_connection:
                    cycle.chunked_encoding = False
            elif ends_with_connection:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, send_unchunked)
        finally:
            if ends_with_connection and not cycle.response_complete:
                _reset(cycle.transport)


def _reset(transport: asyncio.Transport) -> None:
    """Close the connection in a way that the client can tell from the end of a body."""
    if (sock := transport.get_extra_info("socket")) is not None:
        with contextlib.suppress(OSError):  # closed, or a Unix socket
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
