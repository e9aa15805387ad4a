"""What is seen with one look means what the parser would have made of it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from aiosmtpd.smtp import MISSING
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.intake.smtp.fast_path import MAX_SIZE, ordinary
from bridge.intake.smtp.line_buffer import one_line
from bridge.intake.smtp.parameters import refuse_of_mail, refuse_of_rcpt
from bridge.intake.smtp.paths import Path, parse_path
from bridge.intake.smtp.session import BridgeSMTP
from bridge.mail.reply import Reply

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


class Desk:
    """Says no now and then, by address, and keeps the mail."""

    def __init__(self) -> None:
        self.mails: list[Any] = []

    def handle_MAIL(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> Any:
        if address.startswith("odd"):
            raise ValueError
        return Reply(451, "4.3.2", "Full") if address.startswith("full") else MISSING

    def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: list[str]) -> Any:
        return Reply(550, "5.1.1", "Nobody") if address.startswith("nobody") else MISSING

    def handle_PREDATA(self, server: Any, session: Any, envelope: Any) -> Any:
        return Reply(451, "4.3.2", "Full") if envelope.mail_from.startswith("late") else MISSING

    def handle_DATA(self, server: Any, session: Any, envelope: Any) -> Any:
        kept = (envelope.mail_from, envelope.mail_options, envelope.rcpt_tos, envelope.rcpt_params, envelope.prdr)
        self.mails.append((*kept, envelope.content))
        return Reply(250, "2.0.0", "Ok")


class SlowDesk(Desk):
    """The same, of hooks that wait."""

    async def handle_MAIL(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return super().handle_MAIL(*arguments)

    async def handle_RCPT(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return super().handle_RCPT(*arguments)

    async def handle_PREDATA(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return super().handle_PREDATA(*arguments)


class Ear(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.heard = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.heard += data

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


async def play(blocks: list[bytes], desk: Desk, *, sees_ordinary: bool) -> tuple[bytes, bool, list[Any]]:
    """What a client hears that sends these blocks, and which mail was taken."""
    ear = Ear()
    session = BridgeSMTP(desk, hostname="bridge.example", enable_SMTPUTF8=True, loop=asyncio.get_running_loop())
    session._sees_ordinary = session._sees_ordinary and sees_ordinary
    session.connection_made(ear)
    for block in blocks:
        if ear.is_closed:
            break
        session.data_received(block)
        await asyncio.sleep(0)  # replies leave at the end of the turn
        while session._task is not None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    session.connection_lost(None)
    return ear.heard, ear.is_closed, desk.mails


LINES = [
    *(
        b"EHLO client.example",
        b"HELO client.example",
        b"RSET",
        b"NOOP",
        b"QUIT",
        b"DATA",
        b"DATA now",
        b"nonsense",
        b"",
    ),
    *(b"MAIL FROM:<a@b.example>", b"MAIL FROM:<>", b"mail from:<a@b.example>", b"MAIL FROM:<a@b.example> PRDR"),
    *(b"MAIL FROM:<a@b.example> SIZE=100 BODY=8BITMIME", b"MAIL FROM:<a@b.example> SIZE=99999999999 PRDR"),
    *(b"MAIL FROM:<full@b.example>", b"MAIL FROM:<late@b.example>", b"MAIL FROM:<odd@b.example>"),
    *(b"RCPT TO:<c@d.example>", b"RCPT TO:<nobody@d.example>", b"rcpt to: <c@d.example>", b"RCPT TO:<>"),
    *(b"RCPT TO:<c@d.example> ORCPT=rfc822;c@d.example", b"Subject: x\r\n\r\nx\r\n.", b"x\r\n."),
]
MAIL = [b"MAIL FROM:<a@b.example>", b"RCPT TO:<c@d.example>", b"DATA", b"x\r\n."]
LATE = [b"MAIL FROM:<late@b.example>", b"RCPT TO:<c@d.example>", b"DATA"]


@given(st.lists(st.sampled_from(LINES), max_size=25), st.lists(st.integers(1, 60)))
@example([*MAIL, *MAIL, b"QUIT"], [1000])
@example([*LATE, b"RCPT TO:<c@d.example>", b"DATA", b"x\r\n."], [1000])
@example([*LATE, *MAIL], [1000])
def test_session_is_the_same_with_and_without_that_look_and_whether_hooks_wait_or_not(
    lines: list[bytes], cuts: list[int]
) -> None:
    """Whatever a client says, in whatever pieces: the same replies, and the same mail."""
    said, blocks = b"".join(line + b"\r\n" for line in lines), [b"EHLO client.example\r\n"]
    for cut in cuts:
        blocks.append(said[:cut])
        said = said[cut:]
    blocks = [block for block in [*blocks, said] if block]
    with asyncio.Runner() as runner:
        slow = runner.run(play(blocks, Desk(), sees_ordinary=False))
        assert runner.run(play(blocks, Desk(), sees_ordinary=True)) == slow
        assert runner.run(play(blocks, SlowDesk(), sees_ordinary=True)) == slow
