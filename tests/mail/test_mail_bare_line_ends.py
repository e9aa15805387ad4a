"""Bare CR, LF and NUL are found wherever a mail is split into chunks."""

from __future__ import annotations

import pytest

from bridge.mail.bare_line_ends import all_clean


def split(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "content", [b"", b"a", b"\r\n", b"a: b\r\n\r\n.\r\n\r\n\xe4 \xc2\x85 \xe2\x80\xa8 \x0b\x0c\x1c\r\n"]
)
def test_a_mail_whose_lines_end_with_crlf_is_clean(content: bytes, size: int) -> None:
    """What Python or Unicode calls a line end is none in mail."""
    assert all_clean(split(content, size))


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    "content",
    [
        b"\n",
        b"\r",
        b"\0",
        b"a\r\n\nb",
        b"a\r\r\nb",
        b"a\r\n.\n",
        b"a\n.\r\n",
        b"a\r.\r",
        b"a\r\n\r",
        b"\na\r\n",
        b"a\n\r\n",
    ],
)
def test_a_bare_cr_or_lf_or_nul_is_found(content: bytes, size: int) -> None:
    """Also at the start, at the very end, next to a real line end, and where a chunk ends in between."""
    assert not all_clean(split(content, size))
