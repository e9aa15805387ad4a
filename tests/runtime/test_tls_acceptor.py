"""Connections with TLS are looked at before their handshake, on both event loops."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
import trustme

from bridge.runtime.tls_acceptor import TlsAcceptor
from bridge.testing import eventually
from tests.event_loops import EACH_LOOP

AUTHORITY = trustme.CA()


@pytest.fixture(params=EACH_LOOP)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@asynccontextmanager
async def accepting(max_handshakes: int = 3, *, is_ahead: bool | None = None) -> AsyncIterator[tuple[int, list[int]]]:
    """The port, and how many handshakes were unfinished at each connection."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(tls)
    seen: list[int] = []

    def may_begin(peer: Any, handshakes: int) -> bool:
        assert peer[0] == "127.0.0.1"
        seen.append(handshakes)
        return handshakes < max_handshakes

    sock = socket.create_server(("127.0.0.1", 0))
    ahead = None if is_ahead is None else lambda: bool(is_ahead)
    acceptor = TlsAcceptor(sock, Echo, tls, may_begin, ahead)
    port = sock.getsockname()[1]
    await acceptor.start()
    try:
        yield port, seen
    finally:
        acceptor.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)


@cache
def trusting() -> ssl.SSLContext:
    """Without the system's certificates, which take long to read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    AUTHORITY.configure_trust(context)
    return context


async def echoed(port: int) -> bytes:
    context = trusting()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(b"hello")
    try:
        return await reader.readexactly(5)
    finally:
        writer.close()


@pytest.mark.parametrize("is_ahead", [None, False, True])
async def test_many_clients_are_served(is_ahead: bool | None) -> None:
    """A worker that is ahead of the others only waits for a moment."""
    async with accepting(100, is_ahead=is_ahead) as (port, _):
        assert await asyncio.gather(*(echoed(port) for _ in range(30))) == [b"hello"] * 30


async def test_unfinished_handshakes_are_counted_until_they_end() -> None:
    async with accepting(3) as (port, seen):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await eventually(lambda: len(seen) == 3, "the handshakes to begin")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            assert await reader.read() == b""  # refused, without a handshake
        except ConnectionResetError:
            pass
        writer.close()
        for _, other in silent:
            other.write(b"GET / HTTP/1.1\r\n\r\n")  # no TLS either: these end now
        for wrong, other in silent:
            try:
                await wrong.read()
            except ConnectionResetError:
                pass
            other.close()

        async def is_served() -> bool:
            try:
                return await echoed(port) == b"hello"
            except (OSError, asyncio.IncompleteReadError):
                return False

        async with asyncio.timeout(60):
            while not await is_served():
                await asyncio.sleep(0.01)
