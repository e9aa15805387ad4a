"""A long text is read in pieces of 1 MiB; a link at the border of two of them is found whole."""

from __future__ import annotations

import pytest

from bridge.service.analysis.content.text_windows import WINDOW
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits

_TOP = b"From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: text/html\r\n\r\n"
_TAG = b'<a title="a>b" href="'


@pytest.mark.parametrize(
    ("link", "in_first"),
    [
        (b"https://evil.example/x", 10),
        (b"https://good.example x@evil.example/x", 25),
        (b"https://ev\til.example/x", 11),
        (b"https://ev\nil.example/x", 11),
    ],
    ids=["plain", "user", "tab", "line end"],
)
def test_a_link_at_the_border_of_two_pieces_was_not_found(link: bytes, in_first: int) -> None:
    """Browsers read all of it, although a `>` in quotes or white space comes before the border."""
    padding = WINDOW - len(_TAG) - in_first
    page = b"<p>.</p>\r\n" * (padding // 10) + b"x" * (padding % 10) + _TAG + link + b'">x</a>'
    assert "evil.example" in inspect(_TOP + page, Limits()).hosts
