"""The fast path parses the lines that it recognises exactly as the full parser does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiosmtpd.smtp import MISSING
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.intake.smtp.connection import SmtpConnection
from bridge.intake.smtp.context import SmtpContext
from bridge.intake.smtp.fast_path import MAX_SIZE, ORDINARY_LINE, recognise
from bridge.intake.smtp.parameters import refuse_of_mail, refuse_of_rcpt
from bridge.intake.smtp.paths import Path, parse_path
from bridge.mail.reply import Reply


@settings(max_examples=settings.default.max_examples * 3 // 10)  # 30 in a test run: such lines take long to make
@given(st.from_regex(ORDINARY_LINE, fullmatch=True).map(str.encode))
def test_ordinary_line_is_parsed_as_by_the_full_parser(line: bytes) -> None:
    """Address and parameters are the same, none of them would be refused, and it is a single line."""
    assert b"\r" not in line and b"\n" not in line and len(line) <= 512
    recognised = recognise(line)
    assert recognised is not None
    verb, arguments, parameters = recognised
    if line in (b"DATA", b"QUIT"):
        assert (verb.encode(), arguments, parameters) == (line, (), "")
        return
    start, _, argument = line.partition(b":")
    path = parse_path(argument, syntax="x")
    assert isinstance(path, Path) and path.is_ascii
    assert arguments == (path.address, list(path.as_sent)) and bool(parameters) == bool(path.params)
    if verb == "MAIL":
        assert start == b"MAIL FROM" and refuse_of_mail(path, frozenset(), MAX_SIZE, takes_utf8=False) is None
    else:
        assert (verb, start) == ("RCPT", b"RCPT TO") and refuse_of_rcpt(path, frozenset()) is None


@pytest.mark.parametrize(
    "line",
    [
        *(b"MAIL FROM:<a@b>\r\n", b"MAIL FROM:<a@b>\n", b"MAIL FROM:<a@b>\r", b"MAIL FROM:<a@b>\r\0"),
        *(b"DATA\n", b"DATA\r\n", b"DATA x", b" DATA", b"DATA ", b""),
        *(b"mail from:<a@b>", b"MAIL FROM: <a@b>", b"MAIL FROM:a@b", b"MAIL FROM:<a>", b"MAIL FROM:<a@b"),
        *(b"MAIL FROM:<a\r\n@b>", b"MAIL FROM:<a\0@b>", b"MAIL FROM:<a@b>\n\r", b"MAIL FROM:<\xc3\xa4@b>"),
        *(b"MAIL FROM:<=?x?q?y?=@b>", b'MAIL FROM:<"a b"@c>', b"MAIL FROM:<a@[192.0.2.1]>"),
        *(b"MAIL FROM:<a@b> SIZE=12345678", b"MAIL FROM:<a@b> SIZE=1 SIZE=1", b"MAIL FROM:<a@b> PRDR"),
        *(b"RCPT TO:<>", b"RCPT TO:<a@b> SIZE=1", b"RCPT TO:<a@b> NOTIFY=NEVER", b"RCPT TO:<a@b>\r"),
    ],
)
def test_any_other_line_is_left_to_the_full_parser(line: bytes) -> None:
    """Another case, space, line end, character or parameter is not ordinary, whether it is correct or not."""
    assert recognise(line) is None


class Handler:
    """Refuses some addresses, and records the mail."""

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


class AsyncHandler(Handler):
    """The same with coroutines as hooks."""

    async def handle_MAIL(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return super().handle_MAIL(*arguments)

    async def handle_RCPT(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return super().handle_RCPT(*arguments)

    async def handle_PREDATA(self, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return super().handle_PREDATA(*arguments)


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0


async def play(blocks: list[bytes], handler: Handler, *, uses_fast_path: bool) -> tuple[bytes, bool, list[Any]]:
    """What a client that sends these blocks reads, whether it is disconnected, and which mail was accepted."""
    transport = RecordingTransport()
    loop = asyncio.get_running_loop()
    context = SmtpContext(handler, hostname="bridge.example", enable_SMTPUTF8=True, loop=loop)
    assert context.settings.uses_fast_path
    if not uses_fast_path:  # only the full parser checks this limit, which nothing here exceeds
        context.settings = replace(context.settings, local_part_limit=1000)
    assert context.settings.uses_fast_path == uses_fast_path
    connection = SmtpConnection(context)
    connection.connection_made(transport)
    for block in blocks:
        if transport.is_closed:
            break
        connection.data_received(block)
        await asyncio.sleep(0)  # replies are sent at the end of the event loop's turn
        while connection._task is not None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
    connection.connection_lost(None)
    return transport.written, transport.is_closed, handler.mails


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
def test_session_is_the_same_with_and_without_the_fast_path_and_with_hooks_that_wait(
    lines: list[bytes], cuts: list[int]
) -> None:
    """Whatever a client sends, in whatever pieces: the same replies, and the same mail."""
    rest, blocks = b"".join(line + b"\r\n" for line in lines), [b"EHLO client.example\r\n"]
    for cut in cuts:
        blocks.append(rest[:cut])
        rest = rest[cut:]
    blocks = [block for block in [*blocks, rest] if block]
    with asyncio.Runner() as runner:
        full = runner.run(play(blocks, Handler(), uses_fast_path=False))
        assert runner.run(play(blocks, Handler(), uses_fast_path=True)) == full
        assert runner.run(play(blocks, AsyncHandler(), uses_fast_path=True)) == full
