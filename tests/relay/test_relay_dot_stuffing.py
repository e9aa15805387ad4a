"""Dot stuffing, with any chunk boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.relay.dot_stuffing import BLOCK, DotStuffer, blocks
from tests.relay.scripted_hop import unstuffed

tricky = st.lists(st.sampled_from([b".", b"\r\n", b"\r", b"\n", b"a", b"..", b"\r\n.", b"\r\n.\r\n"]), max_size=12)


def by_line(content: bytes) -> bytes:
    """The rule of RFC 5321 4.5.2: a line that starts with a dot gets another one."""
    lines = content.split(b"\r\n")
    wire = b"\r\n".join(b"." + line if line.startswith(b".") else line for line in lines)
    return wire + (b".\r\n" if content.endswith(b"\r\n") or not content else b"\r\n.\r\n")


@given(st.lists(tricky.map(b"".join), max_size=8))
def test_stuffing_does_not_depend_on_chunk_boundaries(chunks: list[bytes]) -> None:
    """A dot is doubled at a line start and nowhere else, whatever the chunk boundaries."""
    assert b"".join(blocks(chunks)) == by_line(b"".join(chunks))


@given(tricky.map(b"".join))
def test_stuffing_byte_by_byte(content: bytes) -> None:
    """Even one byte at a time."""
    assert b"".join(blocks([content[i : i + 1] for i in range(len(content))])) == by_line(content)


@given(st.binary(max_size=200))
def test_content_comes_back_as_it_was(content: bytes) -> None:
    """The next hop reads the same content, plus the CRLF that SMTP needs at the end."""
    ended = content if not content or content.endswith(b"\r\n") else content + b"\r\n"
    assert unstuffed(b"".join(blocks([content]))) == ended


@pytest.mark.parametrize(
    ("content", "wire"),
    [
        (b"", b".\r\n"),
        (b"\r\n", b"\r\n.\r\n"),
        (b".", b"..\r\n.\r\n"),
        (b".\r\n", b"..\r\n.\r\n"),
        (b"a", b"a\r\n.\r\n"),
        (b"a\r", b"a\r\r\n.\r\n"),
        (b"a\r\n.\r\n", b"a\r\n..\r\n.\r\n"),
        (b"a.b\r\n", b"a.b\r\n.\r\n"),
    ],
)
def test_end_of_data(content: bytes, wire: bytes) -> None:
    assert b"".join(blocks([content])) == wire


def test_only_the_last_block_holds_the_final_dot() -> None:
    """A sender that stops before the last block has not ended the mail."""
    made = list(blocks([b"x" * BLOCK, b"y" * BLOCK, b"\r\n"]))
    assert [len(block) for block in made] == [BLOCK, BLOCK, len(b"\r\n.\r\n")]


def test_small_content_is_one_block() -> None:
    assert len(list(blocks([b"Head: 1\r\n", b"\r\n", b"body\r\n"]))) == 1


def test_empty_chunks_change_nothing() -> None:
    stuffer = DotStuffer()
    assert stuffer.feed(b"a\r\n") + stuffer.feed(b"") + stuffer.feed(b".") == b"a\r\n.."
