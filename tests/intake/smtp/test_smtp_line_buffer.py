"""The inbox: whole lines out of whatever arrives."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.smtp.line_buffer import LINE_LIMIT, LineBuffer, LineTooLong


def inbox() -> LineBuffer:
    """One that nobody waits at, so the loop is never asked."""
    return LineBuffer(None, lambda: None)  # type: ignore[arg-type]


def lines(box: LineBuffer) -> list[bytes | None]:
    """Everything that is whole; None stands for a line that was too long."""
    taken: list[bytes | None] = []
    while True:
        try:
            line = box.take_line()
        except LineTooLong:
            taken.append(None)
            continue
        if line is None:
            return taken
        taken.append(line)


@given(st.lists(st.binary(max_size=8).filter(lambda line: b"\r" not in line), max_size=8), st.lists(st.integers(1, 60)))
def test_lines_come_out_however_they_came_in(sent: list[bytes], cuts: list[int]) -> None:
    """Only CRLF ends a line, wherever TCP cuts."""
    wire = b"".join(line + b"\r\n" for line in sent)
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    box, taken = inbox(), []
    for start, end in itertools.pairwise(edges):
        box.feed(wire[start:end])
        taken += lines(box)
    assert taken == sent
    assert len(box) == 0


@pytest.mark.parametrize("wire", [b"", b"a", b"a\r", b"a\n", b"a\rb", b"a\n\r"])
def test_nothing_but_crlf_ends_a_line(wire: bytes) -> None:
    """A bare CR or LF is part of the line."""
    box = inbox()
    box.feed(wire)
    assert lines(box) == []
    box.feed(b"x\r\n")
    assert lines(box) == [wire + b"x"]


@pytest.mark.parametrize("step", [1, 7, 4096, 100_000])
def test_endless_line_costs_no_memory(step: int) -> None:
    """A line over the limit is thrown away as it comes, and its end is still seen."""
    box = inbox()
    left = 100_000
    while left > 0:
        box.feed(b"x" * min(step, left))
        left -= step
        assert lines(box) == []
        assert len(box) <= LINE_LIMIT
    box.feed(b"\r")
    assert lines(box) == []
    box.feed(b"\nNOOP\r\n")
    assert lines(box) == [None, b"NOOP"]


def test_line_at_the_limit_is_taken_and_one_above_is_not() -> None:
    """The limit is exact."""
    box = inbox()
    box.feed(b"x" * LINE_LIMIT + b"\r\n" + b"x" * (LINE_LIMIT + 1) + b"\r\nNOOP\r\n")
    assert lines(box) == [b"x" * LINE_LIMIT, None, b"NOOP"]


def test_reader_methods_read_as_a_stream_does() -> None:
    """What aiosmtpd's PROXY and AUTH code needs of a stream is there, with its errors at the end."""

    async def scenario() -> None:
        box = LineBuffer(asyncio.get_running_loop(), lambda: None)
        asyncio.get_running_loop().call_soon(box.feed, b"ab")
        asyncio.get_running_loop().call_soon(box.feed, b"c\nde")
        assert await box.readexactly(1) == b"a"
        assert await box.readline() == b"bc\n"
        assert await box.read(1) == b"d"
        box.close()
        with pytest.raises(asyncio.IncompleteReadError):
            await box.readuntil(b"\n")
        with pytest.raises(asyncio.IncompleteReadError):
            await box.readexactly(5)
        assert await box.read(10) == b"e"
        assert await box.read(10) == b""
        with pytest.raises(ConnectionResetError):
            await box.more()

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_stream_without_line_end_is_bounded() -> None:
    """A PROXY or AUTH line that never ends is given up."""

    async def scenario() -> None:
        box = LineBuffer(asyncio.get_running_loop(), lambda: None)
        box.feed(b"x" * (LINE_LIMIT + 1))
        with pytest.raises(asyncio.LimitOverrunError):
            await box.readline()

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_replies_go_out_before_the_wait() -> None:
    """Who waits for the client first tells it what it has to know."""

    async def scenario() -> None:
        said: list[str] = []
        box = LineBuffer(asyncio.get_running_loop(), lambda: said.append("flushed"))
        asyncio.get_running_loop().call_soon(box.feed, b"x")
        await box.more()
        assert said == ["flushed"]
        assert not box.is_awaited

    asyncio.run(asyncio.wait_for(scenario(), 5))
