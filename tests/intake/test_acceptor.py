"""A burst of connections is accepted in a turn of the event loop, not one by one; and workers share what comes."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import uvloop

from bridge.intake.acceptor import AT_ONCE, AT_ONCE_OF_MANY, Acceptor

SOON = 5.0  # longer than anything here should take


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


class Worker:
    """An acceptor, what it accepted, and whether it believes to be ahead."""

    def __init__(self, sock: socket.socket, is_ahead: bool | None = None) -> None:
        self.made = 0
        self.is_ahead = is_ahead
        self.acceptor = Acceptor(sock, self._spawn, None if is_ahead is None else lambda: bool(self.is_ahead))

    def _spawn(self) -> asyncio.Protocol:
        self.made += 1
        return asyncio.Protocol()

    async def __aenter__(self) -> Worker:
        await self.acceptor.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.acceptor.close()

    async def step_back(self) -> None:
        await until(lambda: not self.acceptor._servers)


async def until(made: Callable[[], bool]) -> int:
    """How many turns of the event loop it took."""
    turns = 0
    async with asyncio.timeout(SOON):
        while not made():
            await asyncio.sleep(0 if turns < 100 else 0.001)
            turns += 1
    return turns


@pytest.mark.parametrize(("is_ahead", "at_once"), [(None, AT_ONCE), (False, AT_ONCE_OF_MANY)], ids=["alone", "of many"])
def test_a_burst_is_accepted_in_few_turns(listening: socket.socket, is_ahead: bool | None, at_once: int) -> None:
    """The event loop alone would need a turn for each."""

    async def run() -> int:
        async with Worker(listening, is_ahead) as worker:
            with ExitStack() as stack:
                for _ in range(4 * at_once):
                    stack.enter_context(knock(listening))
                return await until(lambda: worker.made == 4 * at_once)

    assert uvloop.run(run()) < 2 * at_once


def test_who_waits_when_the_servers_close_is_left_to_the_next(listening: socket.socket) -> None:
    """The queue belongs to the socket, which somebody else holds too."""

    async def run() -> None:
        with listening.dup() as held:
            async with Worker(listening):
                pass
            with knock(held) as client:
                held.settimeout(5)
                accepted, _ = await asyncio.to_thread(held.accept)
                with accepted:
                    accepted.sendall(b"hello")
                    assert client.recv(5) == b"hello"

    uvloop.run(run())


def test_who_is_ahead_lets_the_others_go_first(listening: socket.socket) -> None:
    """All but the first that came, and those that came with it, are the other's; ahead no more, it takes its part."""

    async def run() -> None:
        async with Worker(listening.dup(), is_ahead=True) as rich, Worker(listening, is_ahead=False) as poor:
            with ExitStack() as stack:
                async with asyncio.timeout(SOON):
                    while not rich.made:
                        stack.enter_context(knock(listening))
                        await asyncio.sleep(0.001)
                await rich.step_back()
                had = poor.made
                for number in range(20):
                    stack.enter_context(knock(listening))
                    await until(lambda number=number: poor.made == had + number + 1)  # type: ignore[misc]
                assert rich.made <= AT_ONCE_OF_MANY
                rich.is_ahead, poor.is_ahead, had = False, True, rich.made
                async with asyncio.timeout(SOON):
                    while rich.made == had:
                        stack.enter_context(knock(listening))
                        await asyncio.sleep(0.001)

    uvloop.run(run())


def test_nobody_waits_for_a_worker_that_does_not_come(listening: socket.socket) -> None:
    """The one that is ahead takes them in the end, and closes while it waits without a trace."""

    async def run() -> None:
        async with Worker(listening, is_ahead=True) as worker:
            with ExitStack() as stack:
                for number in range(20):
                    stack.enter_context(knock(listening))
                    await until(lambda number=number: worker.made == number + 1)  # type: ignore[misc]
                await worker.step_back()
                stack.enter_context(knock(listening))
                await asyncio.sleep(0)
        had = worker.made
        await asyncio.sleep(0.02)  # longer than it would have let others go first
        assert worker.made == had

    uvloop.run(run())


class Stingy(socket.socket):
    """There is no descriptor left for a copy, so many times."""

    misses = 0

    def dup(self) -> socket.socket:
        if self.misses:
            self.misses -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().dup()


def test_without_descriptors_it_waits_for_some(listening: socket.socket) -> None:
    """One copy will do; when there is none, it goes on as soon as there is."""

    async def run() -> None:
        sock = Stingy(fileno=listening.detach())
        sock.setblocking(False)
        async with Worker(sock, is_ahead=True) as worker:
            with ExitStack() as stack:
                stack.enter_context(knock(sock))
                await until(lambda: worker.made == 1)
                await worker.step_back()
                sock.misses = 2
                stack.enter_context(knock(sock))
                await until(lambda: worker.made == 2)
                assert not sock.misses

    uvloop.run(run())


def test_at_the_start_it_says_so(listening: socket.socket) -> None:
    """Else a listener would be there that takes nobody."""

    async def run() -> None:
        sock = Stingy(fileno=listening.detach())
        sock.misses = 1
        with sock, pytest.raises(OSError, match="Too many open files"):
            await Worker(sock).acceptor.start()

    uvloop.run(run())
