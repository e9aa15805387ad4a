"""A burst of connections is accepted in a few turns of the event loop, and workers share the connections."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.intake.acceptor import AT_ONCE, AT_ONCE_OF_MANY, Acceptor

SOON = 30.0  # seconds; longer than anything here should take on a busy machine


@pytest.fixture(params=["tcp", "unix"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> socket.socket:
    """A listening socket; the acceptor closes it."""
    if request.param == "tcp":
        sock = socket.create_server(("127.0.0.1", 0))
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(tmp_path / "socket"))
        sock.listen()
    sock.setblocking(False)
    return sock


def connect(listening: socket.socket) -> socket.socket:
    """A connection in the accept queue: the kernel completes it before any process accepts it."""
    client = socket.socket(listening.family)
    client.settimeout(SOON)
    client.connect(listening.getsockname())
    return client


class Worker:
    """An acceptor, how many connections it accepted, and whether it reports being ahead."""

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
        await turns_until(lambda: not self.acceptor._servers)


async def turns_until(condition: Callable[[], bool]) -> int:
    """Wait, and return the number of turns of the event loop it took (`eventually` does not count turns)."""
    turns = 0
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0 if turns < 100 else 0.001)
            turns += 1
    return turns


async def connect_until(condition: Callable[[], bool], listening: socket.socket, stack: ExitStack) -> None:
    """Open one connection after another until the condition holds; `stack` closes them."""
    async with asyncio.timeout(SOON):
        while not condition():
            stack.enter_context(connect(listening))
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(("is_ahead", "at_once"), [(None, AT_ONCE), (False, AT_ONCE_OF_MANY)], ids=["alone", "of many"])
async def test_a_burst_is_accepted_in_few_turns(listening: socket.socket, is_ahead: bool | None, at_once: int) -> None:
    """The event loop alone would need a turn for each connection."""
    async with Worker(listening, is_ahead) as worker:
        with ExitStack() as stack:
            for _ in range(4 * at_once):
                stack.enter_context(connect(listening))
            assert await turns_until(lambda: worker.made == 4 * at_once) < 2 * at_once


async def test_connections_in_the_queue_survive_a_closed_acceptor(listening: socket.socket) -> None:
    """The queue belongs to the socket, which another process has open, too."""
    with listening.dup() as held:
        async with Worker(listening):
            pass
        with connect(held) as client:
            held.settimeout(SOON)
            accepted, _ = await asyncio.to_thread(held.accept)
            with accepted:
                accepted.sendall(b"hello")
                assert client.recv(5) == b"hello"


async def test_worker_that_is_ahead_leaves_connections_to_the_others(listening: socket.socket) -> None:
    """The other worker gets all but the first connections; once no longer ahead, this one accepts again."""
    async with Worker(listening.dup(), is_ahead=True) as ahead, Worker(listening, is_ahead=False) as behind:
        with ExitStack() as stack:
            await connect_until(lambda: ahead.made > 0, listening, stack)
            await ahead.step_back()
            had = behind.made
            for number in range(20):
                stack.enter_context(connect(listening))
                await turns_until(lambda number=number: behind.made == had + number + 1)  # type: ignore[misc]
            assert ahead.made <= AT_ONCE_OF_MANY
            ahead.is_ahead, behind.is_ahead, had = False, True, ahead.made
            await connect_until(lambda: ahead.made > had, listening, stack)


async def test_connections_do_not_wait_for_a_worker_that_is_stuck(listening: socket.socket) -> None:
    """The worker that is ahead accepts them after a moment, and can be closed while it waits."""
    async with Worker(listening, is_ahead=True) as worker:
        with ExitStack() as stack:
            for number in range(20):
                stack.enter_context(connect(listening))
                await turns_until(lambda number=number: worker.made == number + 1)  # type: ignore[misc]
            await worker.step_back()
            stack.enter_context(connect(listening))
            await asyncio.sleep(0)
    had = worker.made
    await asyncio.sleep(0.02)  # longer than the worker leaves connections to others
    assert worker.made == had


class ScarceSocket(socket.socket):
    """Fails to duplicate `misses` times, as if no file descriptor were left."""

    misses = 0

    def dup(self) -> socket.socket:
        if self.misses:
            self.misses -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().dup()


async def test_acceptor_without_descriptors_retries(listening: socket.socket) -> None:
    """One duplicate of the socket is enough; without any, it retries until it gets one."""
    sock = ScarceSocket(fileno=listening.detach())
    sock.setblocking(False)
    async with Worker(sock, is_ahead=True) as worker:
        with ExitStack() as stack:
            stack.enter_context(connect(sock))
            await turns_until(lambda: worker.made == 1)
            await worker.step_back()
            sock.misses = 2
            stack.enter_context(connect(sock))
            await turns_until(lambda: worker.made == 2)
            assert not sock.misses


async def test_start_without_descriptors_raises(listening: socket.socket) -> None:
    """Otherwise the listener would start but accept no connection."""
    sock = ScarceSocket(fileno=listening.detach())
    sock.misses = 1
    with sock, pytest.raises(OSError, match="Too many open files"):
        await Worker(sock).acceptor.start()
