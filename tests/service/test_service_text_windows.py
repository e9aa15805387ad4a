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


@pytest.mark.parametrize(
    ("charset", "escapes"),
    [(b"iso-2022-jp-2", b"\x1b.J\x1bNw"), (b"iso-2022-jp", b"\x1b$\x1b\xb5\xb5\xb5\x1b\xfa\x1b}")],
)
@pytest.mark.parametrize("in_first", [1, 3, 5, 9])
def test_an_escape_sequence_at_the_border_of_two_pieces_stopped_the_inspection(
    charset: bytes, escapes: bytes, in_first: int
) -> None:
    """Python's codec raised an exception, so the mail was not delivered."""
    head = b"From: a@b.example\r\nMIME-Version: 1.0\r\nContent-Type: text/plain; charset=" + charset + b"\r\n\r\n"
    lines, rest = divmod(WINDOW - in_first, 3)
    text = b"x\r\n" * lines + b"x" * rest + escapes
    found = inspect(head + text + b"\x1b(B\r\nhttps://evil.example/x\r\n", Limits())
    assert "evil.example" in found.hosts and not found.limits
