"""A scanner on a bare socket: each test scripts its answers byte by byte."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.api.scanning import AnalysisRequest, AnalysisResult, BorderMtaData
from bridge.errors import ScanTimeout
from bridge.mail.message import Message, Spool
from bridge.scanner.client import Scanner, ScannerSettings
from bridge.scanner.probe_mail import SUBJECT
from tests.scanner.spoken import GGRID, current

__all__ = ["GGRID"]

TOKEN = "0123456789abcdef" * 4
REQUEST = AnalysisRequest(BorderMtaData("a@example.org", ("b@example.org",), "192.0.2.1", "client.example"))
MAIL = b"Subject: hello\r\n\r\nhello\r\n"


def result(decision: object = "deliver", **fields: Any) -> bytes:
    """A decision in the dialect of the test."""
    return current().result(decision, **fields)


def green() -> bytes:
    """The answer to a status request."""
    return answer(200, current().green)


def answer(status: int = 200, body: bytes | None = None, *lines: str) -> bytes:
    """A complete HTTP answer."""
    body = result() if body is None else body
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


@dataclass
class Request:
    """A request as received."""

    head: bytes
    body: bytes
    connection: int  # counts connections from 1

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n")[0].decode()

    @property
    def is_mail(self) -> bool:
        return f" {current().mail_path} " in self.line

    @property
    def is_status(self) -> bool:
        return f" {current().status_path} " in self.line

    @property
    def sender(self) -> str:
        return current().sender(self.head, self.body)

    @property
    def content(self) -> bytes:
        """Bytes that contain the mail."""
        return current().content(self.body)

    @property
    def fields(self) -> dict[str, str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}


Answering = Callable[["Call"], Awaitable[None]]


@dataclass
class Call:
    """One request, as a script handles it."""

    server: FaultServer
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    request: Request | None = None

    def say(self, data: bytes) -> None:
        if not self.writer.is_closing():
            self.writer.write(data)

    def reset(self) -> None:
        """RST instead of FIN."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def pause(self, seconds: float) -> None:
        """Pause briefly, unless the client has gone."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.server.gone.wait(), seconds)

    async def until_gone(self) -> None:
        """Wait for the client to hang up."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass
        self.server.gone.set()


@dataclass
class FaultServer:
    """`script` is bytes (the answer to every request) or a coroutine function that gets a Call.

    `before` gets the Call as soon as the head has come, before the body is read; when it returns
    True the rest is its own business.
    """

    script: bytes | Answering = field(default_factory=answer)
    introduces: bool = True  # it answers the bridge's introduction itself, and does not count it
    before: Callable[[Call], Awaitable[bool]] | None = None
    requests: list[Request] = field(default_factory=list)
    probes: list[Request] = field(default_factory=list)  # mails of the bridge's own, after a failure
    connections: int = 0
    bytes_seen: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    scheme: str = "http"
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        call = Call(self, reader, writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                call.request = Request(head[:-4], b"", number)
                if (introduced := current().introduction(call.request.line)) is not None and self.introduces:
                    self.connections -= 1  # a mail behaves as if it were the first request
                    await reader.readexactly(int(call.request.fields.get("content-length", "0")))
                    writer.write(answer(*introduced, "Connection: close"))
                    break
                self.bytes_seen += len(head)
                if self.before is not None and await self.before(call):
                    break
                length = int(call.request.fields.get("content-length", "0"))
                call.request.body = await reader.readexactly(length)
                if SUBJECT.encode() in call.request.content:
                    self.probes.append(call.request)
                else:
                    self.requests.append(call.request)
                    self.arrived.set()
                if isinstance(self.script, bytes):
                    writer.write(self.script)
                else:
                    await self.script(call)


@asynccontextmanager
async def faults(
    script: bytes | Answering | None = None, tls: ssl.SSLContext | None = None, **settings: Any
) -> AsyncIterator[FaultServer]:
    server = FaultServer(scheme="https" if tls else "http", **settings)
    if script is not None:
        server.script = script
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=tls, limit=2**16)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.stop()
        await asyncio.sleep(0)


@asynccontextmanager
async def scanner_of(*servers: FaultServer | str, **settings: Any) -> AsyncIterator[Scanner]:
    """The client under test, for one or several servers."""
    urls = tuple(server if isinstance(server, str) else server.url for server in servers)
    settings.setdefault("dialect", current().make)
    scanner = Scanner(ScannerSettings(urls, settings.pop("token", TOKEN), **settings))
    try:
        yield scanner
    finally:
        scanner.close()
        await asyncio.sleep(0)  # closed transports go with the next turn


async def submit(
    scanner: Scanner,
    content: bytes = MAIL,
    deadline_s: float = 10.0,
    request: AnalysisRequest = REQUEST,
    keep_late: bool = False,
    **spool: Any,
) -> AnalysisResult:
    """Submit one mail; its message is closed afterwards, as in the filter."""
    message = Message(Spool(1 << 30, **spool))
    for start in range(0, len(content), 100_000):
        message.write(content[start : start + 100_000])
    try:
        return await scanner.submit(request, message, asyncio.get_running_loop().time() + deadline_s, keep_late)
    finally:
        message.close()


async def ends_late_by_s(scanner: Scanner, deadline_s: float, **options: Any) -> float:
    """Submit a mail that gets no answer; by how much it ends after a timer of the same event loop.

    A machine that stands still for a second delays both.
    """
    loop = asyncio.get_running_loop()
    due: asyncio.Future[float] = loop.create_future()
    loop.call_later(deadline_s, lambda: due.set_result(loop.time()))
    with pytest.raises(ScanTimeout):
        await submit(scanner, deadline_s=deadline_s, **options)
    ended = loop.time()
    return ended - await due


async def submit_to(script: bytes | Answering, **options: Any) -> AnalysisResult:
    """One mail to a server with this script."""
    async with faults(script) as server, scanner_of(server) as scanner:
        return await submit(scanner, **options)


def closed_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
