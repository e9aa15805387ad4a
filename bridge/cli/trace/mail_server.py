"""The mail server's side of a conversation with one of our listeners: SMTP, LMTP or milter.

Says what a mail server would say, and notes the replies. It names the client as Postfix does (XFORWARD, or milter's
CONNECT). Recipients who are refused with 452, because they cannot share a mail with the others, are sent the mail
again, as a mail server would do. Decides nothing.
"""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.errors import ProtocolError
from bridge.intake.milter import protocol
from bridge.relay.dot_stuffing import blocks

MAX_MAILS = 100  # transactions for recipients who cannot share one
_XTEXT = re.compile(rb"[^!-*,-<>-~]")
_NAME = re.compile(r"[!-~]{1,255}")
_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:([^\r\n]*+(?:\r\n[ \t][^\r\n]*+)*+)(?:\r\n|$)")
_MAX_FIELD = 102_400  # Postfix: header_size_limit
_CHUNK = 65535
_FINAL = {protocol.ACCEPT, protocol.CONTINUE, protocol.DISCARD, protocol.REJECT, protocol.TEMPFAIL, protocol.REPLY_CODE}


@dataclass(frozen=True, slots=True)
class Given:
    """The mail, its envelope and its client, as the operator gives them."""

    content: bytes
    sender: str
    recipients: tuple[str, ...]
    remote_address: str | None = None
    helo: str | None = None


@dataclass(slots=True)
class Exchange:
    """One mail as the mail server saw it: the reply to each command. A command that was not sent has no reply."""

    mail: str = ""
    recipients: dict[str, str] = field(default_factory=dict)
    data: str = ""
    replies: list[str] = field(default_factory=list)  # to the content: one, or one for each accepted recipient

    @property
    def accepted(self) -> list[str]:
        return [address for address, reply in self.recipients.items() if reply.startswith("2")]

    @property
    def later(self) -> list[str]:
        """Recipients who get the mail in another transaction."""
        return [address for address, reply in self.recipients.items() if reply.startswith("452")]


async def in_turns(given: Given, mail: Callable[[list[str]], Awaitable[Exchange]]) -> list[Exchange]:
    """One `mail` after another, until every recipient is accepted or refused for good, or there were too many."""
    exchanges: list[Exchange] = []
    waiting = list(given.recipients)
    while waiting and len(exchanges) < MAX_MAILS:
        exchange = await mail(waiting)
        exchanges.append(exchange)
        waiting = exchange.later if exchange.accepted else []
    return exchanges


def left_out(exchanges: list[Exchange]) -> list[str]:
    """Recipients to whom the mail server would send the mail in further transactions."""
    is_over = len(exchanges) >= MAX_MAILS and bool(exchanges[-1].accepted)
    return exchanges[-1].later if is_over else []


async def by_smtp(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], given: Given, hostname: str, *, is_lmtp: bool
) -> list[Exchange]:
    side = _Smtp(*streams)
    await side.reply()
    name = given.helo if given.helo and _NAME.fullmatch(given.helo) else hostname
    offered = await side.ask(b"LHLO" if is_lmtp else b"EHLO", name.encode("ascii", "replace"))
    return await in_turns(given, lambda recipients: side.mail(given, recipients, offered, is_lmtp=is_lmtp))


@dataclass(slots=True)
class _Smtp:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def mail(self, given: Given, recipients: list[str], offered: str, *, is_lmtp: bool) -> Exchange:
        exchange = Exchange()
        if attributes := _attributes(given):
            await self.ask(b"XFORWARD", attributes)
        exchange.mail = await self.ask(b"MAIL", _mail_argument(given, recipients, offered))
        if not exchange.mail.startswith("2"):
            return exchange
        for address in recipients:
            exchange.recipients[address] = await self.ask(b"RCPT", b"TO:<%b>" % address.encode())
        if not exchange.accepted:
            await self.ask(b"RSET")
            return exchange
        exchange.data = await self.ask(b"DATA")
        if exchange.data.startswith("3"):
            for block in blocks([given.content]):
                self.writer.write(block)
                await self.writer.drain()
            count = len(exchange.accepted) if is_lmtp else 1
            exchange.replies = [await self.reply() for _ in range(count)]
        return exchange

    async def ask(self, verb: bytes, argument: bytes = b"") -> str:
        self.writer.write(b"%b %b\r\n" % (verb, argument) if argument else verb + b"\r\n")
        return await self.reply()

    async def reply(self) -> str:
        """Lines are joined as `Reply` shows them."""
        lines: list[str] = []
        while True:
            line = (await self.reader.readline()).decode("utf-8", "replace").rstrip("\r\n")
            if not line:
                raise ProtocolError("the listener closed the connection")
            lines.append(line[4:])
            if line[3:4] != "-":
                return f"{line[:3]} {' / '.join(lines)}"


def _attributes(given: Given) -> bytes:
    found = []
    if given.remote_address is not None:
        prefix = b"IPV6:" if ":" in given.remote_address else b""
        found.append(b"ADDR=" + prefix + given.remote_address.encode())
    if given.helo is not None:
        encoded = _XTEXT.sub(lambda char: b"+%02X" % char[0][0], given.helo.encode("utf-8", "surrogateescape"))
        found.append(b"HELO=" + encoded[:255])
    return b" ".join([*found, b"SOURCE=REMOTE"]) if found else b""


def _mail_argument(given: Given, recipients: list[str], offered: str) -> bytes:
    """With the parameters that are needed and offered."""
    words = {line.split(" ")[0].upper() for line in offered.split(" / ")}
    parameters = []
    if "SIZE" in words:
        parameters.append(f"SIZE={len(given.content)}")
    if "8BITMIME" in words and not given.content.isascii():
        parameters.append("BODY=8BITMIME")
    if "SMTPUTF8" in words and not "".join([given.sender, *recipients]).isascii():
        parameters.append("SMTPUTF8")
    return " ".join([f"FROM:<{given.sender}>", *parameters]).encode()


# Milter


async def by_milter(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], given: Given, *, body_is_whole: bool
) -> list[Exchange]:
    side = _Milter(*streams)
    every_action = (protocol.CAN_SET_SYMBOLS << 1) - 1
    await side.ask(protocol.NEGOTIATE, struct.pack(">III", 6, every_action, protocol.LEADING_SPACE))
    await side.ask(protocol.CONNECT, _connect(given.remote_address))
    if given.helo is not None:
        await side.ask(protocol.HELO, given.helo.encode("utf-8", "surrogateescape") + b"\0")
    return await in_turns(given, lambda recipients: side.mail(given, recipients, body_is_whole=body_is_whole))


@dataclass(slots=True)
class _Milter:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def mail(self, given: Given, recipients: list[str], *, body_is_whole: bool) -> Exchange:
        exchange = Exchange()
        size = f"SIZE={len(given.content)}"
        exchange.mail = await self.ask(protocol.MAIL, f"<{given.sender}>\0{size}\0".encode())
        if not exchange.mail.startswith("2"):
            await self._abort()
            return exchange
        for address in recipients:
            exchange.recipients[address] = await self.ask(protocol.RCPT, f"<{address}>\0".encode())
        if not exchange.accepted:
            await self._abort()
            return exchange
        exchange.data = await self.ask(protocol.DATA)
        if exchange.data.startswith("2"):
            exchange.replies = [await self._content(given.content, body_is_whole=body_is_whole)]
        return exchange

    async def _content(self, content: bytes, *, body_is_whole: bool) -> str:
        head, body = _fields_and_body(content)
        for name, value in head:
            await self.ask(protocol.HEADER, name + b"\0" + value + b"\0")
        await self.ask(protocol.END_OF_HEADERS)
        body = content if body_is_whole else body
        for start in range(0, len(body), _CHUNK):
            await self.ask(protocol.BODY, body[start : start + _CHUNK])
        return await self.ask(protocol.END_OF_BODY)

    async def _abort(self) -> None:
        self.writer.write(_frame(protocol.ABORT))

    async def ask(self, command: int, data: bytes = b"") -> str:
        """What an SMTP client of the mail server would receive."""
        self.writer.write(_frame(command, data))
        await self.writer.drain()
        while True:
            (length,) = struct.unpack(">I", await self._read(4))
            answer = await self._read(length)
            if answer[0] == protocol.REPLY_CODE:
                return answer[1:].rstrip(b"\0").decode("utf-8", "replace").replace("\r\n", " / ")
            if answer[0] in _FINAL or answer[0] in (protocol.SKIP, protocol.NEGOTIATE):
                return {protocol.REJECT: "550", protocol.TEMPFAIL: "451"}.get(answer[0], "250")

    async def _read(self, count: int) -> bytes:
        try:
            return await self.reader.readexactly(count)
        except asyncio.IncompleteReadError:
            raise ProtocolError("the listener closed the connection") from None


def _fields_and_body(content: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """As Postfix sees them: a line that is not a field ends the header section, and a very long field is cut."""
    fields, position = [], 0
    while (found := _FIELD.match(content, position)) is not None:
        value = found[2].replace(b"\r\n", b"\n").replace(b"\0", b"")
        fields.append((found[1], value[:_MAX_FIELD]))
        position = found.end()
    return fields, content[position:].removeprefix(b"\r\n")


def _frame(command: int, data: bytes = b"") -> bytes:
    return struct.pack(">IB", len(data) + 1, command) + data


def _connect(address: str | None) -> bytes:
    if address is None:
        return b"unknown\0U"
    family, text = (b"6", f"IPv6:{address}") if ":" in address else (b"4", address)
    return b"[" + address.encode() + b"]\0" + family + struct.pack(">H", 0) + text.encode() + b"\0"
