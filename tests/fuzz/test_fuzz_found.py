"""Bugs found by fuzzing, one test each."""

from __future__ import annotations

import pytest

from bridge.errors import ProtocolError
from bridge.intake.smtp.line_buffer import LINE_LIMIT, LineBuffer, LineTooLong
from bridge.matching import spelling
from bridge.mime.structure import Bounds, walk
from bridge.relay.reply_reader import LINE_LIMIT as REPLY_LINE
from bridge.relay.reply_reader import ReplyReader
from bridge.scanner.http import Answer, ConnectionLost
from bridge.service.responses import Refused
from tests.fuzz.targets import next_hop_replies, scanner_answer
from tests.fuzz.test_fuzz_upload import read as read_upload

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 22\r\n\r\n{"decision":"deliver"}'


def test_switching_protocols_counts_as_a_lost_connection() -> None:
    """httptools reports it with an exception that is not a parser error."""
    answer = scanner_answer(b"HTTP/1.1 101 X\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n")
    assert isinstance(answer, ConnectionLost) and answer.answered


def test_an_unsolicited_second_answer_does_not_change_the_first_ones_header() -> None:
    """However it is split, `Retry-After` and `Content-Encoding` are those of the first answer."""
    answer = scanner_answer(OK + b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
    assert answer == Answer(200, {b"content-length": b"22"}, b'{"decision":"deliver"}')


@pytest.mark.parametrize(
    "text", ["2001:db8::1", "http://[2001:DB8::1]/", "[2001:db8::1]:80", "https://[2001:db8::1]:80/x"]
)
def test_an_ipv6_host_has_one_spelling(text: str) -> None:
    """Without brackets it was read as the host `2001`: an entry that blocks nothing."""
    assert spelling.normalise("url", text) == "2001:db8::1"


@pytest.mark.parametrize("text", ["2001:db8::zz", "fe80::1%eth0", "http://[fe80::1%eth0]/", "example.org:http"])
def test_text_that_only_starts_like_a_host_is_refused(text: str) -> None:
    """Half an address is not a host."""
    with pytest.raises(ValueError, match="not a"):
        spelling.normalise("url", text)


@pytest.mark.parametrize("text", ["fe80::1%eth0", "fe80::%1/64"])
def test_a_network_has_no_zone(text: str) -> None:
    """A zone has a meaning on one machine only."""
    with pytest.raises(ValueError, match="not an IP address"):
        spelling.normalise("network", text)


def test_a_command_of_maximum_length_may_end_in_two_packets() -> None:
    """One byte more is too long, however it is split."""
    box = LineBuffer(None, lambda: None)  # type: ignore[arg-type]
    box.feed(b"x" * LINE_LIMIT + b"\r")
    assert box.take_line() is None
    box.feed(b"\n" + b"x" * LINE_LIMIT + b"x\r")
    assert box.take_line() == b"x" * LINE_LIMIT
    assert box.take_line() is None
    assert len(box) <= 1, "the long line is not kept in memory"
    box.feed(b"\n")
    with pytest.raises(LineTooLong):
        box.take_line()


def test_a_next_hop_reply_of_maximum_length_may_end_in_two_packets() -> None:
    """It was treated as an endless reply."""
    reader, line = ReplyReader(), b"250 " + b"x" * (REPLY_LINE - 4)
    assert list(reader.feed(line + b"\r")) == []
    assert [reply.code for reply in reader.feed(b"\n")] == [250]
    with pytest.raises(ProtocolError):
        list(reader.feed(line + b"x\r"))
    next_hop_replies(line + b"\r\n")


def test_an_empty_part_ends_where_it_begins() -> None:
    """Its first bytes were looked for in the delimiter after it."""
    mail = b"Content-Type: multipart/a; boundary=b\n\n--b\n--b\n\n--b--"
    parts = list(walk(mail, Bounds()))
    assert len(parts) == 3
    assert all(part.body <= part.end for part in parts)


@pytest.mark.parametrize("cuts", [[], [1], [2], [1, 1], [3]])
def test_text_before_the_first_delimiter_is_refused_however_it_is_split(cuts: list[int]) -> None:
    """After an empty line it was ignored, unless a packet ended there."""
    refused, _ = read_upload(b"\r\nx\r\n--b0undary--\r\n", cuts)
    assert isinstance(refused, Refused) and refused.failure.error == "invalid_multipart"
    empty, _ = read_upload(b"\r\n\r\n--b0undary--\r\n", cuts)
    assert isinstance(empty, Refused) and empty.failure.error == "missing_part"
