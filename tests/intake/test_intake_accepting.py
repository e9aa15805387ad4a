"""A burst of connections is accepted in a turn of the event loop, not one by one."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from bridge.intake.accepting import AT_ONCE, accept


@pytest.fixture(params=["tcp", "unix"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> socket.socket:
    """Closed by the servers that accept on it."""
    if request.param == "tcp":
        sock = socket.create_server(("127.0.0.1", 0))
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path / "socket"))
        sock.listen()
    sock.setblocking(False)
    return sock


def knock(listening: socket.socket) -> socket.socket:
    """A connection in the queue: the kernel makes it without anybody who accepts."""
    client = socket.socket(listening.family)
    client.settimeout(5)
    client.connect(listening.getsockname())
    return client


def test_a_burst_is_accepted_in_few_turns(listening: socket.socket) -> None:
    """The event loop alone would need a turn for each."""
    made: list[asyncio.Protocol] = []

    def spawn() -> asyncio.Protocol:
        made.append(asyncio.Protocol())
        return made[-1]

    async def run() -> int:
        servers = await accept(listening, spawn)
        turns = 0
        with ExitStack() as stack:
            for _ in range(AT_ONCE):
                stack.enter_context(knock(listening))
            while len(made) < AT_ONCE:
                await asyncio.sleep(0)
                turns += 1
        for server in servers:
            server.close()
        return turns

    assert uvloop.run(run()) < AT_ONCE / 2
    assert len(made) == AT_ONCE


def test_who_waits_when_the_servers_close_is_left_to_the_next(listening: socket.socket) -> None:
    """The queue belongs to the socket, which somebody else holds too."""

    async def run() -> None:
        with listening.dup() as held:
            for server in await accept(listening, asyncio.Protocol):
                server.close()
                await server.wait_closed()
            with knock(held) as client:
                held.settimeout(5)
                accepted, _ = await asyncio.to_thread(held.accept)
                with accepted:
                    accepted.sendall(b"hello")
                    assert client.recv(5) == b"hello"

    uvloop.run(run())
