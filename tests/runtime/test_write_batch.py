"""Writes of one turn are made together, and none is lost, doubled or moved before another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import pytest
import uvloop

from bridge.runtime.write_batch import Writes
from bridge.scanner.http import ScannerConnection


def run(work: Coroutine[Any, Any, None], factory: Any) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work)


LOOPS = pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@LOOPS
def test_all_of_a_turn_are_made_at_its_end_in_their_order(factory: Any) -> None:
    """What one of them adds has its turn after that."""

    async def one() -> None:
        done: list[str] = []
        writes = Writes(asyncio.get_running_loop())
        writes.add(lambda: (done.append("a"), writes.add(lambda: done.append("d")))[0])
        writes.add(lambda: done.append("b"))
        asyncio.get_running_loop().call_soon(lambda: writes.add(lambda: done.append("c")))
        assert done == []
        await asyncio.sleep(0)
        assert done[:2] == ["a", "b"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sorted(done[2:]) == ["c", "d"]

    run(one(), factory)


@LOOPS
def test_one_that_fails_does_not_keep_the_others(factory: Any, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("closed")

    async def one() -> None:
        done: list[int] = []
        writes = Writes(asyncio.get_running_loop())
        for write in (lambda: done.append(1), fail, lambda: done.append(2)):
            writes.add(write)
        await asyncio.sleep(0)
        assert done == [1, 2]

    with caplog.at_level(logging.ERROR):
        run(one(), factory)
    assert [record.message for record in caplog.records] == ["a write failed"]


class Ear(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.heard.append(bytes(data))

    def abort(self) -> None:
        self.heard.append(b"aborted")


def test_a_request_that_is_given_up_in_its_turn_is_never_sent() -> None:
    """Its mail may be closed by then: what would be read of it is nothing."""

    async def one() -> None:
        connection, ear = ScannerConnection(1000), Ear()
        connection.connection_made(ear)
        later = asyncio.get_running_loop().time() + 60
        answer = connection.ask(iter([b"never"]), later)
        answer.cancel()
        connection.forget(answer)
        await asyncio.sleep(0)
        assert ear.heard == []
        connection.ask(iter([b"head", b"body"]), later)
        assert ear.heard == []
        await asyncio.sleep(0)
        assert ear.heard == [b"headbody"]
        connection.connection_lost(None)

    run(one(), asyncio.new_event_loop)


def test_a_request_on_a_connection_that_is_lost_in_its_turn_was_not_sent() -> None:
    """So another host may have it."""

    async def one() -> None:
        connection, ear = ScannerConnection(1000), Ear()
        connection.connection_made(ear)
        answer = connection.ask(iter([b"never"]), asyncio.get_running_loop().time() + 60)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert ear.heard == []
        error = answer.exception()
        assert error is not None and vars(error) == {"sent_whole": False, "answered": False}

    run(one(), asyncio.new_event_loop)
