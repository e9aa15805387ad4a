"""A scripted next hop, and mails to send to it."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.session import Client, Session
from bridge.mail.transaction import Transaction, new_id
from bridge.relay.relay import RelaySettings
from bridge.runtime.endpoints import Endpoint, NextHop

DROP = "drop the connection"
HANG = "say nothing, ever"
SOON = 30.0  # longer than anything here should take on a busy machine
EXTENSIONS = ("PIPELINING", "SIZE 0", "8BITMIME", "SMTPUTF8", "DSN", "ENHANCEDSTATUSCODES")
HEAD = b"X-Scan-Id: 1\r\n"

GOOD = {
    "GREETING": "220 hop.example ESMTP",
    "HELO": "250 hop.example",
    "XFORWARD": "250 2.0.0 Ok",
    "RSET": "250 2.0.0 Ok",
    "STARTTLS": "220 2.0.0 Ready",
    "MAIL": "250 2.1.0 Ok",
    "RCPT": "250 2.1.5 Ok",
    "DATA": "354 End data with <CR><LF>.<CR><LF>",
    "DOT": "250 2.0.0 Ok: queued as 4ABC123",
    "QUIT": "221 2.0.0 Bye",
}

made: list[Message] = []  # closed after each test


def make_tx(
    content: bytes | list[bytes] = b"Subject: x\r\n\r\nhello\r\n",
    recipients: tuple[str | Recipient, ...] = ("b@example.org",),
    sender: str = "a@example.org",
    params: tuple[str, ...] = (),
    client: Client | None = None,
    memory: int = 256 * 1024,
) -> Transaction:
    message = Message(Spool(1 << 30, memory_per_mail=memory))
    made.append(message)
    for chunk in [content] if isinstance(content, bytes) else content:
        message.write(chunk)
    envelope = Envelope(sender, tuple(Recipient(r) if isinstance(r, str) else r for r in recipients), params)
    session = Session("s1", "mx", "127.0.0.1", client or Client(), is_told=client is not None)
    now = time.monotonic()
    return Transaction(new_id(), session, envelope, message, now, now + SOON)


def soon() -> float:
    return asyncio.get_running_loop().time() + SOON


@dataclass
class Connected:
    """What came over one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    commands: list[str] = field(default_factory=list)
    contents: list[bytes] = field(default_factory=list)  # as on the wire, final dot included
    unfinished: bytes = b""  # content that was never ended
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    tls: bool = False


Script = dict[str, "str | list[str] | Callable[[], Awaitable[str]]"]


class ScriptedHop:
    """Follows `script`: one reply per verb, or a list of replies whose last one is repeated."""

    def __init__(
        self,
        script: Script | None = None,
        extensions: tuple[str, ...] = EXTENSIONS,
        *,
        lmtp: bool = False,
        path: Path | None = None,
        tls: ssl.SSLContext | None = None,
        behind_starttls: bytes = b"",
    ) -> None:
        self.script: Script = {**GOOD, **(script or {})}
        self.extensions = extensions
        self.lmtp = lmtp
        self.path = path
        self.tls = tls
        self.behind_starttls = behind_starttls
        self.connections: list[Connected] = []
        self.heard: dict[str, asyncio.Event] = {verb: asyncio.Event() for verb in (*GOOD, "EHLO", "LHLO", "CONTENT")}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedHop:
        if self.path:
            self._server = await asyncio.start_unix_server(self._serve, self.path)
        else:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for conn in self.connections:
            conn.writer.transport.abort()
        await self._server.wait_closed()  # Python 3.12 and later: also waits until the connections are closed

    def settings(self, **changes: object) -> RelaySettings:
        if self.path:
            address = Endpoint(path=str(self.path))
        else:
            address = Endpoint("127.0.0.1", self._server.sockets[0].getsockname()[1])
        given: dict[str, object] = {
            "next_hop": NextHop("lmtp" if self.lmtp else "smtp", address),
            "hostname": "bridge.example",
            "connect_timeout_s": SOON,
            "timeout_s": SOON,
            **changes,
        }
        return RelaySettings(**given)  # type: ignore[arg-type]

    @property
    def commands(self) -> list[str]:
        """All commands of all connections, except EHLO and QUIT."""
        return [c for conn in self.connections for c in conn.commands if c[:4] not in ("EHLO", "LHLO", "QUIT")]

    @property
    def contents(self) -> list[bytes]:
        return [unstuffed(wire) for conn in self.connections for wire in conn.contents]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        conn = Connected(reader, writer)
        self.connections.append(conn)
        try:
            await self._converse(conn)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            conn.ended.set()
            writer.close()
            self._tasks.discard(task)

    async def _converse(self, conn: Connected) -> None:
        accepted = 0
        if not await self._say(conn, "GREETING"):
            return
        while line := await conn.reader.readline():
            command = line.decode().removesuffix("\r\n")
            verb = command.split()[0].upper()
            conn.commands.append(command)
            answer = await self._answer(verb)
            self.heard[verb].set()
            if not await self._write(conn, answer):
                return
            if verb == "RSET":
                accepted = 0
            elif verb == "RCPT":
                accepted += answer.startswith("250")
            elif verb == "DATA" and answer.startswith("354"):
                if not await self._content(conn, accepted if self.lmtp else 1):
                    return
                accepted = 0
            elif verb == "STARTTLS" and answer.startswith("220"):
                await self.handshake(conn)
                conn.tls = True
            elif verb == "QUIT":
                return

    async def handshake(self, conn: Connected) -> None:
        assert self.tls is not None
        await conn.writer.start_tls(self.tls)

    async def _content(self, conn: Connected, answers: int) -> bool:
        self.heard["CONTENT"].set()
        wire = bytearray()
        while not (wire.endswith(b"\r\n.\r\n") or wire == b".\r\n"):
            data = await conn.reader.read(65536)
            if not data:
                conn.unfinished = bytes(wire)
                return False
            wire += data
        conn.contents.append(bytes(wire))
        self.heard["DOT"].set()
        for _ in range(answers):
            if not await self._say(conn, "DOT"):
                return False
        return True

    async def _say(self, conn: Connected, verb: str) -> bool:
        return await self._write(conn, await self._answer(verb))

    async def _answer(self, verb: str) -> str:
        if verb in ("EHLO", "LHLO") and verb not in self.script:
            lines = ["hop.example", *self.extensions]
            return "\r\n".join([*(f"250-{line}" for line in lines[:-1]), f"250 {lines[-1]}"])
        answer = self.script.get(verb, "502 5.5.2 No such command")
        if callable(answer):
            return await answer()
        if isinstance(answer, list):
            return answer.pop(0) if len(answer) > 1 else answer[0]
        return answer

    async def _write(self, conn: Connected, answer: str) -> bool:
        if answer == HANG:
            while await conn.reader.read(65536):
                pass
        if answer in (DROP, HANG):
            return False
        data = answer.encode("latin-1") + b"\r\n"
        if self.behind_starttls and answer == self.script["STARTTLS"]:
            data += self.behind_starttls
        conn.writer.write(data)
        await conn.writer.drain()
        return True


def unstuffed(wire: bytes) -> bytes:
    """Content as a server reads it from the wire."""
    assert wire.endswith(b".\r\n")
    content = wire[:-3].replace(b"\r\n..", b"\r\n.")
    return content[1:] if content.startswith(b"..") else content
