"""The writes of one event loop iteration are made together; none is lost, repeated or reordered."""

from __future__ import annotations

import asyncio
import logging

import pytest

from bridge.runtime.write_batch import WriteBatch
from bridge.scanner.http import ScannerConnection
from tests.event_loops import EACH_LOOP


@pytest.fixture(params=EACH_LOOP)
def anyio_backend(request: pytest.FixtureRequest) -> object:
    return request.param


async def test_all_writes_of_an_iteration_are_made_at_its_end_in_order() -> None:
    """A write that is added by another write is made after it, in the next iteration."""
    done: list[str] = []
    writes = WriteBatch(asyncio.get_running_loop())
    writes.add(lambda: (done.append("a"), writes.add(lambda: done.append("d")))[0])
    writes.add(lambda: done.append("b"))
    asyncio.get_running_loop().call_soon(lambda: writes.add(lambda: done.append("c")))
    assert done == []
    await asyncio.sleep(0)
    assert done[:2] == ["a", "b"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted(done[2:]) == ["c", "d"]


async def test_a_failing_write_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("closed")

    done: list[int] = []
    writes = WriteBatch(asyncio.get_running_loop())
    with caplog.at_level(logging.ERROR):
        for write in (lambda: done.append(1), fail, lambda: done.append(2)):
            writes.add(write)
        await asyncio.sleep(0)
    assert done == [1, 2]
    assert [record.message for record in caplog.records] == ["connection: a write failed"]


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def abort(self) -> None:
        self.written.append(b"aborted")


async def test_a_request_cancelled_in_the_same_iteration_is_never_sent() -> None:
    """Its mail may already be closed: there would be nothing to read from it."""
    connection, transport = ScannerConnection(1000), RecordingTransport()
    connection.connection_made(transport)
    later = asyncio.get_running_loop().time() + 60
    answer = connection.ask(iter([b"never"]), later)
    answer.cancel()
    connection.forget(answer)
    await asyncio.sleep(0)
    assert transport.written == []
    answer = connection.ask(iter([b"head", b"body"]), later)
    assert transport.written == []
    await asyncio.sleep(0)
    assert transport.written == [b"headbody"]
    connection.connection_lost(None)
    assert answer.exception() is not None


async def test_a_request_on_a_connection_lost_in_the_same_iteration_was_not_sent() -> None:
    """So it may be sent to another host."""
    connection, transport = ScannerConnection(1000), RecordingTransport()
    connection.connection_made(transport)
    answer = connection.ask(iter([b"never"]), asyncio.get_running_loop().time() + 60)
    connection.connection_lost(None)
    await asyncio.sleep(0)
    assert transport.written == []
    error = answer.exception()
    assert error is not None and vars(error) == {"sent_whole": False, "answered": False}
