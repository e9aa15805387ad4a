"""The content reader: where a mail ends, and which line ends are refused as smuggling."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.smtp.data import DataReader, Fault
from bridge.mail.message import Message, Spool


def reference(wire: bytes) -> tuple[bytes | Fault, bytes] | None:
    """A slow and simple definition: (content or fault, rest), or None while the mail is incomplete."""
    head, end, rest = (b"\r\n" + wire).partition(b"\r\n.\r\n")
    if not end:
        return None
    content = head[2:] + b"\r\n" if head else b""
    if re.search(rb"\r(?!\n)|(?<!\r)\n|\0", content):
        return Fault.BARE, rest
    return b"".join(line.removeprefix(b".") for line in content.splitlines(keepends=True)), rest


def read(
    blocks: Iterable[bytes], limit: int | None = None, spool: Spool | None = None
) -> tuple[bytes | Fault, bytes] | None:
    """The reader's result for these blocks; blocks after the end are part of the rest."""
    message = Message(spool or Spool(1 << 30))
    try:
        reader = DataReader(message, limit)
        rest = None
        for block in blocks:
            if rest is None:
                rest = reader.feed(block)
            else:
                rest += block
        if rest is None:
            return None
        return reader.fault or b"".join(message.chunks()), rest
    finally:
        message.close()


def every_split(wire: bytes) -> Iterator[list[bytes]]:
    yield [wire]
    yield [wire[i : i + 1] for i in range(len(wire))]
    for i in range(1, len(wire)):
        yield [wire[:i], wire[i:]]


SMUGGLING = [
    *(b"\n.\n", b"\n.\r", b"\r.\n", b"\r.\r", b"\n.\r\n", b"\r.\r\n", b"\r\n.\n", b"\r\n.\r", b"\r\r\n.\r\r\n"),
    *(
        b"\r\n\0.\r\n",
        b"\r\n.\0\r\n",
        b"\r\n.\r\0\n",
        b"\n\n.\r\n",
        b"\r\n\r.\r\n",
        b"\n",
        b"\r",
        b"\0",
        b"\r\r\n",
        b"\n\r",
    ),
    *(b"\r\n.\r\r\n", b"\r\n.\n\r\n", b"\r\n..\n", b"\r\n..\r"),
]
WHOLE = [
    (b".\r\n", b""),
    (b"\r\n.\r\n", b"\r\n"),
    (b"a\r\n.\r\n", b"a\r\n"),
    (b"..\r\n.\r\n", b".\r\n"),
    (b"a\r\n..\r\nb\r\n.\r\n", b"a\r\n.\r\nb\r\n"),
    (b"a\r\n.b\r\n.\r\n", b"a\r\nb\r\n"),
    (b"a\r\n...\r\n.\r\n", b"a\r\n..\r\n"),
    (b"a.\r\n.\r\n", b"a.\r\n"),
    (b"a.\r\n\r\n\r\n.\r\n", b"a.\r\n\r\n\r\n"),
    (b"\xff\xfe\x80\r\n.\r\n", b"\xff\xfe\x80\r\n"),
    (b"x" * 2000 + b"\r\n.\r\n", b"x" * 2000 + b"\r\n"),
]


@pytest.mark.parametrize(("wire", "content"), WHOLE)
def test_mail_ends_at_its_dot_however_it_is_split(wire: bytes, content: bytes) -> None:
    """Whole, byte by byte and at every split: the same end, the dots unstuffed, the rest kept."""
    for blocks in every_split(wire + b"QUIT\r\n"):
        assert read(blocks) == (content, b"QUIT\r\n")


@pytest.mark.parametrize("sequence", SMUGGLING)
def test_smuggling_sequence_is_refused_and_ends_nothing(sequence: bytes) -> None:
    """No other line end ends a mail, and a mail with one is not relayed."""
    after = b"END\r\nMAIL FROM:<x@y>\r\nDATA\r\nsmuggled\r\n.\r\n"
    wire = b"START" + sequence + after
    for blocks in every_split(wire):
        assert read(blocks) == (Fault.BARE, b"")


@pytest.mark.parametrize("wire", [b"", b".", b".\r", b"a", b"a\r\n", b"a\r\n.", b"a\r\n.\r", b"a\r\n..\r\n", b"a.\r\n"])
def test_mail_without_the_final_dot_is_incomplete(wire: bytes) -> None:
    """Only CRLF dot CRLF ends a mail."""
    for blocks in every_split(wire):
        assert read(blocks) is None


PIECES = st.sampled_from(
    [b"\r\n", b".", b"\r", b"\n", b"\0", b"a", b"\r\n.", b"\r\n.\r\n", b"..", b"text \xff", b"\r\n.\r"]
)


@given(st.lists(PIECES, max_size=24).map(b"".join), st.lists(st.integers(0, 80), max_size=8))
def test_any_mail_in_any_split_is_read_as_the_reference_does(wire: bytes, cuts: list[int]) -> None:
    """However TCP splits a mail, the result is that of the simple definition."""
    edges = sorted({0, len(wire), *(cut for cut in cuts if cut < len(wire))})
    blocks = [wire[a:b] for a, b in itertools.pairwise(edges)]
    assert read(blocks) == reference(wire)
    assert read([wire[i : i + 1] for i in range(len(wire))]) == reference(wire)


@given(st.lists(st.lists(st.sampled_from([b"a", b".", b"\xe9", b" "]), max_size=6).map(b"".join), max_size=12))
def test_stuffed_lines_are_restored_exactly(lines: list[bytes]) -> None:
    """Removing the dots restores exactly what the client had."""
    content = b"".join(line + b"\r\n" for line in lines)
    wire = b"".join((b"." + line if line.startswith(b".") else line) + b"\r\n" for line in lines) + b".\r\n"
    assert read([wire]) == (content, b"")


@pytest.mark.parametrize(("size", "taken"), [(98, True), (99, True), (100, True), (101, False), (5000, False)])
def test_size_limit_is_exact(size: int, taken: bool) -> None:
    """A mail of exactly the limit is accepted, one byte more is not; stuffed dots do not count."""
    content = b"." + b"x" * (size - 3) + b"\r\n"
    for blocks in ([b"." + content + b".\r\n"], [b".", content, b".\r\n"]):
        assert read(blocks, limit=100) == (content if taken else Fault.TOO_LARGE, b"")


def test_fault_frees_all_bytes_immediately() -> None:
    """A refused mail uses no memory while the rest of it arrives."""
    spool = Spool(1000)
    message = Message(spool)
    reader = DataReader(message, None)
    reader.feed(b"x" * 900)
    assert spool.in_use == 900
    reader.feed(b"x" * 900)
    assert (reader.fault, spool.in_use) == (Fault.SATURATED, 0)
    assert reader.feed(b"more\r\n.\r\nNOOP\r\n") == b"NOOP\r\n"
    assert (reader.fault, spool.in_use) == (Fault.SATURATED, 0)


def test_spool_that_cannot_be_written_is_a_fault(tmp_path) -> None:
    """A missing spool directory fails the mail, not the session."""
    spool = Spool(1 << 20, memory_per_mail=10, directory=str(tmp_path / "gone"))
    assert read([b"x" * 100, b"\r\n.\r\n"], spool=spool) == (Fault.STORAGE, b"")
    assert spool.in_use == 0


def test_received_counts_every_byte() -> None:
    """The minimum rate is checked against the bytes received, not the bytes kept."""
    message = Message(Spool(1 << 20))
    reader = DataReader(message, 10)
    reader.feed(b"x" * 50)
    reader.feed(b"\r\n.")
    assert reader.received == 53
    message.close()
