"""What the milter tests share: a scripted filter, a mail server's side of a connection, a running listener."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.filter.early_refusals import EarlyRefusals
from bridge.filter.outcome import Outcome, Record
from bridge.filter.pipeline import Filter
from bridge.filter.policy import Case, Rule
from bridge.filter.settings import FilterSettings
from bridge.intake.milter import protocol
from bridge.intake.milter.context import MilterSettings
from bridge.intake.milter.server import MilterServer
from bridge.intake.reports import NO_REPORTS, IntakeReports
from bridge.mail.action import Action
from bridge.mail.message import Spool
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction

ALL_ACTIONS = 0x1FF
ALL_STEPS = 0x1FFFFF
DEADLINE_S = 120.0  # the longest wait for anything that should happen immediately

SETTINGS = MilterSettings(name="milter")

OUTCOMES = {
    Action.RELAY: Outcome(
        Action.RELAY, Reply(250, "2.0.0", "Ok"), stamp=(("X-Scan-Id", "ID1"), ("X-Scan-Decision", "deliver"))
    ),
    Action.REJECT: Outcome(Action.REJECT, Reply(550, "5.7.1", "Refused: 100% certain (ID1)")),
    Action.DISCARD: Outcome(Action.DISCARD, Reply(250, "2.0.0", "Ok: queued as ID1")),
    Action.QUARANTINE: Outcome(Action.QUARANTINE, Reply(250, "2.0.0", "Ok: queued as ID1")),
    Action.HOLD: Outcome(Action.HOLD, Reply(250, "2.0.0", "Ok"), stamp=(("X-Scan-Decision", "quarantine"),)),
    Action.TEMPFAIL: Outcome(Action.TEMPFAIL, Reply(451, "4.7.1", "Try again later (ID1)")),
}


@dataclass(frozen=True)
class Seen:
    """One mail as the filter got it."""

    tx: Transaction
    content: bytes


class ScriptedRefusals(EarlyRefusals):
    """Knows no slots: at MAIL, it answers what the test says."""

    saturated: Reply | None = None

    def __init__(self, settings: FilterSettings, tell: Callable[[Record], None]) -> None:
        super().__init__(settings, None, tell)  # type: ignore[arg-type]

    def closed_at_mail(self) -> Reply | None:
        return self.saturated

    def refused_by_rate(self, client: str | None) -> Reply | None:
        return None


class ScriptedFilter(Filter):
    """Does with each mail what the test says, and records it."""

    def __init__(self, answer: Action | Callable[[Seen], Awaitable[Outcome]] = Action.RELAY) -> None:
        self.deadline_s = 30.0
        rules = {Case.TOO_LARGE: Rule(Action.REJECT), Case.SATURATED: Rule(Action.TEMPFAIL)}
        self.early: ScriptedRefusals = ScriptedRefusals(FilterSettings(self.deadline_s, rules), self._tell)
        self.header_prefix, self.own_results = "X-Scan-", None
        self.answer = answer
        self.seen: list[Seen] = []
        self.reports: list[Record] = []  # mails that were refused without being scanned
        self._report = self.reports.append
        self.running = 0
        self.most_running = 0
        self.cancelled = 0
        self.changed = asyncio.Condition()

    async def process(self, tx: Transaction) -> Outcome:
        seen = Seen(tx, b"".join(tx.message.chunks()))
        self.seen.append(seen)
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        await self._announce()
        try:
            return OUTCOMES[self.answer] if isinstance(self.answer, Action) else await self.answer(seen)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
            tx.message.close()
            await self._announce()

    async def _announce(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[ScriptedFilter], bool]) -> None:
        """Wait until the condition holds."""
        async with asyncio.timeout(DEADLINE_S), self.changed:
            await self.changed.wait_for(lambda: condition(self))


async def forever(seen: Seen) -> Outcome:
    """A scanner that never answers."""
    await asyncio.Event().wait()
    raise AssertionError("not reached")


def wanted(seen: Seen) -> Action:
    """The action that the mail itself asks for, by `X-Want: reject`; relay when it does not."""
    _, found, rest = seen.content.partition(b"\r\nX-Want: ")
    return Action(rest.partition(b"\r\n")[0].decode()) if found else Action.RELAY


async def as_wanted(seen: Seen) -> Outcome:
    return OUTCOMES[wanted(seen)]


def described(seen: Seen) -> str:
    """A mail as one JSON line, for tests in another process."""
    client, envelope = seen.tx.session.client, seen.tx.envelope
    return json.dumps(
        {
            "id": seen.tx.id,
            "address": client.address,
            "helo": client.helo,
            "ident": client.ident,
            "login": client.login,
            "tls": seen.tx.session.tls,
            "sender": envelope.sender,
            "recipients": envelope.addresses,
            "content": seen.content.decode("latin-1"),
        }
    )


def frame(command: int | str, data: bytes = b"") -> bytes:
    code = command if isinstance(command, int) else ord(command)
    return struct.pack(">IB", len(data) + 1, code) + data


def offer(version: int = 6, actions: int = ALL_ACTIONS, steps: int = ALL_STEPS) -> bytes:
    return frame("O", struct.pack(">III", version, actions, steps))


def connect_frame(name: bytes = b"mx.example", address: bytes = b"203.0.113.9", family: bytes = b"4") -> bytes:
    return frame("C", name + b"\0" + family + struct.pack(">H", 2525) + address + b"\0")


@dataclass
class Mta:
    """The mail server's side of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    replies: list[tuple[str, bytes]] = field(default_factory=list)

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def read(self) -> tuple[str, bytes]:
        """The next response: its letter and its data."""
        async with asyncio.timeout(DEADLINE_S):
            (length,) = struct.unpack(">I", await self.reader.readexactly(4))
            body = await self.reader.readexactly(length)
        return chr(body[0]), body[1:]

    async def ask(self, *frames: bytes) -> tuple[str, bytes]:
        self.send(*frames)
        return await self.read()

    async def until_final(self) -> list[tuple[str, bytes]]:
        """All responses to the end of a message, without PROGRESS; the last one is the decision."""
        responses = []
        while True:
            letter, data = await self.read()
            if letter != "p":
                responses.append((letter, data))
            if letter in "acdrty":
                return responses

    async def negotiate(self, **flags: int) -> tuple[int, int, int, bytes]:
        letter, data = await self.ask(offer(**flags))
        assert letter == "O"
        return (*struct.unpack(">III", data[:12]), data[12:])

    async def greet(self, helo: bytes = b"client.example", **flags: int) -> None:
        """Negotiate, and introduce a client."""
        await self.negotiate(**flags)
        self.send(connect_frame(), frame("H", helo + b"\0"))

    async def mail(self, sender: bytes = b"<a@example.org>", rcpt: bytes = b"<b@example.net>") -> None:
        """An envelope with one recipient, accepted."""
        assert await self.ask(frame("M", sender + b"\0")) == ("c", b"")
        assert await self.ask(frame("R", rcpt + b"\0")) == ("c", b"")

    def content(self, *fields: tuple[bytes, bytes], body: bytes = b"Hello\r\n") -> None:
        for name, value in fields or ((b"Subject", b" test"),):
            self.send(frame("L", name + b"\0" + value + b"\0"))
        self.send(frame("N"), *(frame("B", body[i : i + 65535]) for i in range(0, len(body), 65535)), frame("E"))

    async def closed(self) -> bool:
        """Whether the other side closes without another answer."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True

    async def ended(self) -> bytes:
        """Wait until the other side closes; returns what it sent before."""
        said = b""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while more := await self.reader.read(65536):
                    said += more
            except ConnectionError:
                pass
        return said

    def close(self) -> None:
        self.writer.close()


def tcp_socket() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


class Listener:
    """A running MilterServer and connections to it."""

    def __init__(self, server: MilterServer, sock: socket.socket) -> None:
        self.server = server
        self.spool = server.context.spool
        self._address = sock.getsockname()
        self._mtas: list[Mta] = []

    @property
    def port(self) -> int:
        return int(self._address[1])

    async def mta(self) -> Mta:
        if isinstance(self._address, str):
            streams = await asyncio.open_unix_connection(self._address)
        else:
            streams = await asyncio.open_connection("127.0.0.1", self.port)
        self._mtas.append(Mta(*streams))
        return self._mtas[-1]

    def hang_up(self) -> None:
        for mta in self._mtas:
            mta.close()


@contextlib.asynccontextmanager
async def listening(
    filter_: Filter, settings: MilterSettings = SETTINGS, sock: socket.socket | None = None, room: int = 1 << 30,
    reports: IntakeReports = NO_REPORTS, spool: Spool | None = None, **changes: Any,
) -> AsyncIterator[Listener]:  # fmt: skip
    """A listener for the duration of a test; afterwards no byte may be left in the spool."""
    sock = sock or tcp_socket()
    server = MilterServer(replace(settings, **changes), filter_, spool or Spool(room), reports=reports)
    await server.serve(sock)
    listener = Listener(server, sock)
    try:
        yield listener
    finally:
        listener.hang_up()
        await server.drain(0.5)
    assert server.connections == 0
    assert server.context.spool.in_use == 0


def letters(responses: list[tuple[str, bytes]]) -> str:
    return "".join(letter for letter, _ in responses)


def event_name(command: int) -> str:
    return protocol.EVENTS[command].name
