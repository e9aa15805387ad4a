"""Reply: its wire form, and combinations that cannot be created."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.mail.reply import Reply


@pytest.mark.parametrize(
    ("reply", "wire"),
    [
        (Reply(250, "2.0.0", "Ok"), b"250 2.0.0 Ok\r\n"),
        (Reply(354, "", "Go on"), b"354 Go on\r\n"),
        (Reply(550, "5.7.1", "one\ntwo"), b"550-5.7.1 one\r\n550 5.7.1 two\r\n"),
        (Reply(451, "4.3.0", ""), b"451 4.3.0 \r\n"),
        (Reply(451, "4.3.0", "a\rb\0c\x1bdé"), b"451 4.3.0 a?b?c?d?\r\n"),
    ],
)
def test_wire_form(reply: Reply, wire: bytes) -> None:
    """Every line has the code and the status; only printable ASCII is sent."""
    assert reply.to_bytes() == wire


@pytest.mark.parametrize(
    ("code", "status"), [(451, "5.3.0"), (550, "4.7.1"), (250, "5.0.0"), (199, ""), (600, ""), (25, "")]
)
def test_code_and_status_must_agree(code: int, status: str) -> None:
    """A temporary code with a permanent status cannot be created."""
    with pytest.raises(ValueError):
        Reply(code, status, "x")


@pytest.mark.parametrize(
    ("code", "lines", "reply"),
    [
        (250, ["2.0.0 Ok: queued as 1"], Reply(250, "2.0.0", "Ok: queued as 1")),
        (250, ["Ok"], Reply(250, "", "Ok")),
        (550, ["5.7.1 one", "5.7.1 two"], Reply(550, "5.7.1", "one\ntwo")),
        (550, ["4.7.1 wrong"], Reply(550, "", "4.7.1 wrong")),
        (550, ["5.7.1"], Reply(550, "5.7.1", "")),
        (550, [], Reply(550, "", "")),
        (250, ["2.0.00.1 x"], Reply(250, "", "2.0.00.1 x")),
    ],
)
def test_another_servers_reply_is_parsed(code: int, lines: list[str], reply: Reply) -> None:
    """A status that contradicts the code is left in the text."""
    assert Reply.from_lines(code, lines) == reply


@given(st.integers(200, 599), st.text(max_size=60))
def test_no_text_breaks_the_line(code: int, text: str) -> None:
    """Whatever the text, each line begins with the code and ends with the only CRLF in it."""
    wire = Reply(code, "", text).to_bytes()
    assert wire.isascii() and wire.endswith(b"\r\n")
    for line in wire[:-2].split(b"\r\n"):
        assert line.startswith(str(code).encode()) and b"\r" not in line and b"\n" not in line
    assert wire.count(b"\r\n") == text.count("\n") + 1


def test_kinds() -> None:
    """2xx is success, 4xx temporary."""
    kinds = [(r.is_success, r.is_temporary) for r in (Reply(250, "", ""), Reply(451, "", ""), Reply(550, "", ""))]
    assert kinds == [(True, False), (False, True), (False, False)]


def test_text_form_is_one_line() -> None:
    """For the log, several lines become one."""
    assert str(Reply(550, "5.7.1", "one\ntwo")) == "550 5.7.1 one / 5.7.1 two"


def test_another_servers_reply_is_marked_as_foreign() -> None:
    """It is passed on without our id; it still equals our own reply with the same text."""
    foreign, ours = Reply.from_lines(550, ["5.1.1 No such user"]), Reply(550, "5.1.1", "No such user")
    assert foreign.is_foreign and not ours.is_foreign and foreign == ours
