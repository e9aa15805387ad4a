"""What is seen with one look means what the parser would have made of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.intake.address import Path, parse_path
from bridge.intake.inbox import one_line
from bridge.intake.ordinary import MAX_SIZE, ordinary
from bridge.intake.parameters import refuse_of_mail, refuse_of_rcpt

PATTERN: re.Pattern[bytes] = ordinary.__self__  # type: ignore[attr-defined]


@given(st.from_regex(PATTERN, fullmatch=True))
def test_ordinary_line_is_what_the_parser_makes_of_it(data: bytes) -> None:
    """Address and parameters are the same, nothing in them would be refused, and it is one line."""
    match = ordinary(data, 0)
    line = one_line(data)
    assert match is not None and match.end() == len(data) and line is not None and len(line) <= 512
    if line in (b"DATA", b"QUIT"):
        assert match.groups() == (None, None, None, None, line)
        return
    verb, _, argument = line.partition(b":")
    path = parse_path(argument, syntax="x")
    assert isinstance(path, Path)
    if verb == b"MAIL FROM":
        address, params = match[1], match[2]
        assert refuse_of_mail(path, frozenset(), MAX_SIZE, takes_utf8=False) is None
    else:
        address, params = match[3], match[4]
        assert verb == b"RCPT TO" and refuse_of_rcpt(path, frozenset()) is None
    assert path.address == address.decode() and list(path.as_sent) == params.decode().split()


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"MAIL FROM:<a@b>",
            b"MAIL FROM:<a@b>\n",
            b"MAIL FROM:<a@b>\r",
            b"MAIL FROM:<a@b>\r\0\n",
            b"DATA\n",
            b"DATA x\r\n",
        ),
        *(b"mail from:<a@b>\r\n", b"MAIL FROM: <a@b>\r\n", b"MAIL FROM:a@b\r\n", b"MAIL FROM:<a>\r\n", b" DATA\r\n"),
        *(
            b"MAIL FROM:<a\r\n@b>\r\n",
            b"MAIL FROM:<a\0@b>\r\n",
            b"MAIL FROM:<a@b>\n\r\n",
            b"MAIL FROM:<\xc3\xa4@b>\r\n",
        ),
        *(b"MAIL FROM:<=?x?q?y?=@b>\r\n", b'MAIL FROM:<"a b"@c>\r\n', b"MAIL FROM:<a@[192.0.2.1]>\r\n"),
        *(b"MAIL FROM:<a@b> SIZE=12345678\r\n", b"MAIL FROM:<a@b> SIZE=1 SIZE=1\r\n", b"MAIL FROM:<a@b> PRDR\r\n"),
        *(b"RCPT TO:<>\r\n", b"RCPT TO:<a@b> SIZE=1\r\n", b"RCPT TO:<a@b> NOTIFY=NEVER\r\n", b"RCPT TO:<a@b>\r\r\n"),
    ],
)
def test_anything_else_needs_a_closer_look(data: bytes) -> None:
    """Other cases, spaces, line ends, characters and parameters are not ordinary, right or wrong."""
    assert ordinary(data, 0) is None
