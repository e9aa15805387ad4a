"""Attacks on the memory of a bridge, and the bound for each: the rows of docs/evidence/memory.md.

Each attack takes a `Target` and returns when it is finished. Its bound follows from docs/reference/limits.md: how
much a connection, a mail or an answer may hold in memory. `SLACK` allows for memory that Python's allocator keeps.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from bridge.intake.smtp.line_buffer import PAUSE_AT
from bridge.mail.message import HEAD_LIMIT
from bridge.mail.spool import BLOCK
from bridge.relay.reply_reader import REPLY_LIMIT
from bridge.scanner.host import _MAX_ANSWER
from bridge.testing import FakeScanner, NextHop, SmtpClient, answer, result

KiB, MiB = 1024, 1024 * 1024
SLACK = 6 * MiB
CONNECTION = 24 * KiB  # idle
HANDSHAKE = 96 * KiB  # in a TLS handshake: OpenSSL's buffers
MAIL = 2 * BLOCK  # in DATA: the part kept in memory, and a block being written to disk
ENCRYPTED = 3 * BLOCK  # in DATA over TLS: also the buffers of the event loop and of OpenSSL
PROCESSED = 8 * BLOCK  # being sent to scanner or next hop: blocks just read, dot-stuffed, in the send buffer
LINES = (b"x" * 898 + b"\r\n") * 72  # below the RFC 5321 limit: the stock server accepts no longer lines


@dataclass
class Target:
    """A server under attack, and the scanner and next hop it uses."""

    port: int
    milter_port: int  # 0: no milter
    scanner: FakeScanner
    next_hop: NextHop

    def client(self, source: str = "127.0.0.1") -> SmtpClient:
        client = SmtpClient(self.port, source, timeout_s=60.0)
        client.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client


@dataclass(frozen=True)
class Attack:
    name: str
    act: Callable[[Target], None]
    bound: int
    why: str  # where the bound comes from
    milter: bool = False


def pour(client: SmtpClient, block: bytes, size: int, patience_s: float = 3.0) -> None:
    """Sends `size` bytes, or as many as the server accepts."""
    client.sock.settimeout(patience_s)
    with suppress(OSError):
        for _ in range(size // len(block)):
            client.send(block)


def ended(client: SmtpClient, tail: bytes) -> None:
    """Sends the last bytes and reads the reply, whatever it is."""
    client.sock.settimeout(120.0)
    with suppress(OSError):
        client.send(tail)
        client.reply()


def in_data(block: bytes, size: int) -> Callable[[Target], None]:
    def act(target: Target) -> None:
        with target.client() as client:
            client.open()
            client.begin()
            pour(client, block, size, 60.0)
            ended(client, b"\r\n.\r\n")

    return act


def endless_command(target: Target) -> None:
    with target.client() as client:
        client.open()
        pour(client, b"x" * 65536, 64 * MiB)


def byte_by_byte(target: Target) -> None:
    with target.client() as client:
        client.open()
        client.begin()
        pour(client, b"x", 40_000)
        ended(client, b"\r\n.\r\n")


def recipients(target: Target) -> None:
    with target.client() as client:
        client.open()
        client.say(b"MAIL FROM:<a@client.example>")
        for start in range(0, 100_000, 500):
            commands = [b"RCPT TO:<%b-%d@example.org>" % (b"r" * 50, n) for n in range(start, start + 500)]
            try:
                client.say(*commands)
            except OSError:
                return


def noops(target: Target) -> None:
    with target.client() as client, suppress(OSError):
        client.open()
        for _ in range(1000):
            if not client.say(*[b"NOOP"] * 50)[-1]:
                return


def never_reads(target: Target) -> None:
    with target.client() as client:
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.reply()
        pour(client, b"EHLO x\r\nMAIL FROM:<a@client.example>\r\n" * 2000, 64 * MiB)


def idle(count: int) -> Callable[[Target], None]:
    def act(target: Target) -> None:
        with ExitStack() as stack:
            for n in range(count):
                client = stack.enter_context(target.client(f"127.0.0.{1 + n % 4}"))
                client.open()

    return act


def half_handshakes(target: Target) -> None:
    hello = bytes.fromhex("16030100fa010000f60303") + b"r" * 32  # a ClientHello that declares a greater length
    with ExitStack() as stack:
        for n in range(300):
            client = stack.enter_context(target.client(f"127.0.0.{1 + n % 4}"))
            client.open()
            client.say(b"STARTTLS")
            client.send(hello)


def stalled_in_data(count: int, size: int) -> Callable[[Target], None]:
    """Each client sends `size` bytes, then nothing more."""

    def act(target: Target) -> None:
        with ExitStack() as stack:
            clients = [stack.enter_context(target.client(f"127.0.0.{1 + n % 4}")) for n in range(count)]
            for client in clients:
                client.open()
                client.begin()
                pour(client, LINES, size, 30.0)
            with target.client() as last:  # served after them, so their data has been read
                last.open()

    return act


def left_in_data(target: Target) -> None:
    """Repeatedly, over TLS: anything kept for disconnected clients would add up."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    for _ in range(4):
        with ExitStack() as stack:
            clients = [stack.enter_context(target.client()) for _ in range(100)]
            for client in clients:
                client.open()
                client.say(b"STARTTLS")
                client.sock = tls.wrap_socket(client.sock)
                client.say(b"EHLO client.example")
                client.begin()
                pour(client, LINES, MiB, 30.0)
            with target.client() as last:  # served after them, so their data has been read
                last.open()


def large_mails(target: Target) -> None:
    """All of them being scanned at the same time."""
    release = asyncio.Event()

    async def hang(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if target.scanner.in_flight == 20:
            release.set()
        with suppress(TimeoutError):
            await asyncio.wait_for(release.wait(), 60)
        writer.write(answer(200, result()))

    target.scanner.reply = hang
    with ExitStack() as stack:
        clients = [stack.enter_context(target.client()) for _ in range(20)]
        for client in clients:
            client.open()
            client.begin()
            pour(client, LINES, 8 * MiB, 60.0)
            client.send(b".\r\n")
        for client in clients:
            ended(client, b"")


def pipelined_while_scanned(target: Target) -> None:
    """Commands pipelined after a mail that is being scanned."""

    async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    target.scanner.reply = hang
    with target.client() as client:
        client.open()
        client.begin()
        client.send(b"x\r\n.\r\n")
        pour(client, b"RSET\r\n" * 10_000, 64 * MiB)


def scanner_says(reply: Callable[[], bytes]) -> Callable[[Target], None]:
    def act(target: Target) -> None:
        target.scanner.reply = reply()
        with target.client() as client:
            client.open()
            client.begin()
            ended(client, b"Subject: x\r\n\r\nx\r\n.\r\n")

    return act


def next_hop_says(reply: Callable[[], bytes]) -> Callable[[Target], None]:
    def act(target: Target) -> None:
        target.next_hop.replies[b"."] = reply()
        with target.client() as client:
            client.open()
            client.begin()
            ended(client, b"Subject: x\r\n\r\nx\r\n.\r\n")

    return act


def frame(command: bytes, data: bytes) -> bytes:
    return struct.pack(">I", 1 + len(data)) + command + data


def milter(block: bytes, size: int) -> Callable[[Target], None]:
    opening = frame(b"O", struct.pack(">III", 6, 0x1FF, 0x1FFFFF)) + frame(b"M", b"<a@b.example>\0")
    opening += frame(b"R", b"<c@d.example>\0")

    def act(target: Target) -> None:
        with SmtpClient(target.milter_port) as peer:
            peer.send(opening)
            pour(peer, block, size, 10.0)

    return act


LONG = 64 * MiB
FLOOD = b"X-Flood: " + b"x" * 80 + b"\r\n"
PART = b"--b\r\nContent-Type: text/plain\r\n\r\nx\r\n"


def large_answer() -> bytes:
    return answer(200, b'{"decision": "' + b"x" * LONG)


def packed_answer() -> bytes:
    return answer(200, gzip.compress(bytes(LONG)), "Content-Encoding: gzip")


def endless_head() -> bytes:
    return b"HTTP/1.1 200 X\r\n" + FLOOD * (LONG // len(FLOOD))


def endless_reply() -> bytes:
    return (b"250-" + b"x" * 100 + b"\r\n") * (LONG // 106) + b"250 Ok"


def endless_line() -> bytes:
    return b"250 " + b"x" * LONG


WAITING = 2 * PAUSE_AT
HEADER = 2 * HEAD_LIMIT
BODY_CHUNK = frame(b"B", b"x" * 65535)
HEADER_FIELD = frame(b"L", b"X-Flood\0" + b"x" * 80 + b"\0")
MACROS = frame(b"D", b"R{x}\0" + b"y" * 200 + b"\0")
TOO_LONG = b"\xff\xff\xff\xffB" + b"x" * 65536

# name, act, allowed growth on top of SLACK, the limit it comes from
_SMTP: list[tuple[str, Callable[[Target], None], int, str]] = [
    ("an endless command, 64 MiB", endless_command, 0, "a line before DATA"),
    ("endless NOOP commands", noops, 0, "consecutive commands without progress towards a mail"),
    ("endless commands, replies never read", never_reads, WAITING, "data queued for a client"),
    ("commands behind a mail in the scan", pipelined_while_scanned, WAITING, "data queued for a client"),
    ("100,000 recipients", recipients, 0, "recipients of a mail"),
    ("1,200 idle connections", idle(1200), 1200 * CONNECTION, "connections of a listener"),
    ("300 handshakes that stop halfway", half_handshakes, 300 * HANDSHAKE, "connections of a listener"),
    ("content without a line end, 64 MiB", in_data(b"x" * 65536, LONG), MAIL, "a mail"),
    ("an endless header, 49 MiB", in_data(FLOOD * 700, 49 * MiB), MAIL + HEADER, "a header section"),
    ("8 MiB of empty lines", in_data(b"\r\n" * 32768, 8 * MiB), MAIL + HEADER, "a mail"),
    ("200,000 MIME parts, 8 MiB", in_data(PART * 1000, 8 * MiB), MAIL, "a mail"),
    ("40,000 segments of one byte", byte_by_byte, MAIL, "a mail"),
    ("200 connections that stop in DATA, 1 MiB each", stalled_in_data(200, MiB), 200 * (CONNECTION + MAIL), "a mail"),
    (
        "400 connections that stop in DATA, 190 KiB each",
        stalled_in_data(400, 190 * KiB),
        400 * (CONNECTION + MAIL),
        "a mail",
    ),
    ("4 times 100 connections over TLS that are closed in DATA, 1 MiB each", left_in_data, 100 * ENCRYPTED, "a mail"),
    ("20 mails of 8 MiB in the scan", large_mails, 20 * PROCESSED, "mails being processed"),
    ("a scanner's answer of 64 MiB", scanner_says(large_answer), _MAX_ANSWER, "the scanner's answer"),
    ("a scanner's answer that unpacks to 64 MiB", scanner_says(packed_answer), _MAX_ANSWER, "the scanner's answer"),
    ("an endless header of a scanner's answer", scanner_says(endless_head), 0, "the head of its answer"),
    ("a next hop's reply of 64 MiB", next_hop_says(endless_reply), REPLY_LIMIT, "a next hop's reply"),
    ("an endless line of a next hop's reply, 64 MiB", next_hop_says(endless_line), REPLY_LIMIT, "a line of its reply"),
]
_MILTER: list[tuple[str, Callable[[Target], None], int, str]] = [
    ("milter: endless content", milter(BODY_CHUNK, LONG), MAIL, "a mail"),
    ("milter: endless header fields", milter(HEADER_FIELD, LONG), MAIL + HEADER, "a mail"),
    ("milter: endless macros", milter(MACROS, LONG), 0, "a milter frame of the envelope"),
    ("milter: a frame of 4 GiB", milter(TOO_LONG, LONG), 0, "a milter frame of content"),
]
ATTACKS = [
    *(Attack(name, act, SLACK + cost, why) for name, act, cost, why in _SMTP),
    *(Attack(name, act, SLACK + cost, why, milter=True) for name, act, cost, why in _MILTER),
]
