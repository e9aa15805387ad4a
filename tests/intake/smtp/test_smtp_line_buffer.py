"""The line buffer: complete lines, however the bytes arrive."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.smtp.line_buffer import LINE_LIMIT, LineBuffer, LineTooLong


def idle_buffer() -> LineBuffer:
    """A buffer for which no reader waits, so it needs no event loop."""
    return LineBuffer(None, lambda: None)  # type: ignore[arg-type]


def lines(buffer: LineBuffer) -> list[bytes | None]:
    """All complete lines; None stands for a line that was too long."""
    taken: list[bytes | None] = []
    while True:
        try:
            line = buffer.take_line()
        except LineTooLong:
            taken.append(None)
            continue
        if line is None:
            return taken
        taken.append(line)


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\r" not in line), max_size=8), st.lists(st.integers(1, 60)))
def test_lines_are_complete_however_they_are_split(sent: list[bytes], cuts: list[int]) -> None:
    """Only CRLF ends a line, wherever TCP splits the bytes."""
    wire = b"".join(line + b"\r\n" for line in sent)
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    buffer, taken = idle_buffer(), []
    for start, end in itertools.pairwise(edges):
        buffer.feed(wire[start:end])
        taken += lines(buffer)
    assert taken == sent
    assert len(buffer) == 0


@pytest.mark.parametrize("wire", [b"", b"a", b"a\r", b"a\n", b"a\rb", b"a\n\r"])
def test_nothing_but_crlf_ends_a_line(wire: bytes) -> None:
    """A bare CR or LF is part of the line."""
    buffer = idle_buffer()
    buffer.feed(wire)
    assert lines(buffer) == []
    buffer.feed(b"x\r\n")
    assert lines(buffer) == [wire + b"x"]


@pytest.mark.parametrize("step", [1, 7, 4096, 100_000])
def test_endless_line_uses_no_memory(step: int) -> None:
    """A line over the limit is discarded as it arrives, and its end is still found."""
    buffer = idle_buffer()
    left = 100_000
    while left > 0:
        buffer.feed(b"x" * min(step, left))
        left -= step
        assert lines(buffer) == []
        assert len(buffer) <= LINE_LIMIT
    buffer.feed(b"\r")
    assert lines(buffer) == []
    buffer.feed(b"\nNOOP\r\n")
    assert lines(buffer) == [None, b"NOOP"]


def test_line_at_the_limit_is_accepted_and_one_above_is_not() -> None:
    """The limit is exact."""
    buffer = idle_buffer()
    buffer.feed(b"x" * LINE_LIMIT + b"\r\n" + b"x" * (LINE_LIMIT + 1) + b"\r\nNOOP\r\n")
    assert lines(buffer) == [b"x" * LINE_LIMIT, None, b"NOOP"]


async def test_reader_methods_work_like_a_stream_reader() -> None:
    """aiosmtpd's PROXY and AUTH code finds the methods it needs, with the same errors at the end."""
    buffer = LineBuffer(asyncio.get_running_loop(), lambda: None)
    asyncio.get_running_loop().call_soon(buffer.feed, b"ab")
    asyncio.get_running_loop().call_soon(buffer.feed, b"c\nde")
    assert await buffer.readexactly(1) == b"a"
    assert await buffer.readline() == b"bc\n"
    assert await buffer.read(1) == b"d"
    buffer.close()
    with pytest.raises(asyncio.IncompleteReadError):
        await buffer.readuntil(b"\n")
    with pytest.raises(asyncio.IncompleteReadError):
        await buffer.readexactly(5)
    assert await buffer.read(10) == b"e"
    assert await buffer.read(10) == b""
    with pytest.raises(ConnectionResetError):
        await buffer.more()


async def test_stream_without_line_end_is_bounded() -> None:
    """A PROXY or AUTH line that never ends raises an error."""
    buffer = LineBuffer(asyncio.get_running_loop(), lambda: None)
    buffer.feed(b"x" * (LINE_LIMIT + 1))
    with pytest.raises(asyncio.LimitOverrunError):
        await buffer.readline()


async def test_replies_are_sent_before_waiting_for_the_client() -> None:
    """Otherwise the client might be waiting for them."""
    calls: list[str] = []
    buffer = LineBuffer(asyncio.get_running_loop(), lambda: calls.append("flushed"))
    asyncio.get_running_loop().call_soon(buffer.feed, b"x")
    await buffer.more()
    assert calls == ["flushed"]
    assert not buffer.is_awaited
