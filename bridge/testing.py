"""A test kit, for our tests and for yours: a bridge in a thread, a scripted scanner, a recording next hop.

Sockets, HTTP and SMTP are real. Only what the scanner and the next hop say is scripted, because
tests need them to misbehave. Nothing in the daemon imports this module.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import socket
import ssl
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import uvloop

from bridge.config.model import Config
from bridge.daemon.daemon import Daemon
from bridge.runtime import yaml_file
from bridge.scanner.circuit import Circuit
from bridge.scanner.probe_mail import SUBJECT

T = TypeVar("T")

TOKEN = "0123456789abcdef" * 4


def result(decision: str = "deliver", **fields: Any) -> bytes:
    """A MessageAnalysisResult as the service sends it."""
    base = {"ggrid": "11111111-2222-4333-8444-555555555555", "verdict": "test", "tags": ["a:b"]}
    times = {"created": "2026-01-01T00:00:00Z", "completed": "2026-01-01T00:00:01Z"}
    return json.dumps({**base, **times, "decision": decision, **fields}).encode()


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """A complete HTTP response."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Background:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = 60.0) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def close(self) -> None:
        self.run(_end_tasks())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


async def _end_tasks() -> None:
    """Sessions whose peer has hung up end on their own; the others are cancelled."""
    tasks = asyncio.all_tasks() - {cast("asyncio.Task[None]", asyncio.current_task())}
    if tasks:
        _, left = await asyncio.wait(tasks, timeout=0.5)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    for _ in range(5):  # a closed or aborted transport goes away in one of the next turns of the loop
        await asyncio.sleep(0)


@dataclass
class Submission:
    """What the bridge submitted for one mail."""

    authorization: str
    parameters: dict[str, Any]
    parameters_type: str
    email: bytes
    raw: bytes
    fields: dict[str, str]  # header fields of the request


class _Listener(ABC):
    """Listens on loopback, on a port that the kernel chooses."""

    limit: ClassVar[int] = 2**16  # bytes read ahead
    port = 0
    _server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=self.limit, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    @abstractmethod
    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...


_Reply = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class FakeScanner(_Listener):
    """A scanning service on loopback; `reply` is its answer to every submission.

    `reply` is either bytes (the complete HTTP response) or a coroutine function that gets reader and
    writer and may do anything: drip, hang, close. A mail that contains a key of `reply_to` gets that reply
    instead. Requests for the status path get `status`.
    """

    def __init__(self) -> None:
        self.submissions: list[Submission] = []
        self.probes: list[Submission] = []  # mails of the bridge's own, after a failure
        self.reply: _Reply = answer(200, result())
        self.reply_to: dict[bytes, _Reply] = {}
        self.status: bytes | None = answer(200, b'{"messageQueueStatus": "GREEN"}')
        self.in_flight = self.max_in_flight = 0
        self.arrived = threading.Semaphore(0)  # released once per submission

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("Content-Length", "0")))
                if "/admin/status" in head:
                    if self.status is None:
                        break
                    writer.write(self.status)
                    continue
                found = _submission(fields, body)
                if SUBJECT.encode() in found.email:
                    self.probes.append(found)
                else:
                    self.submissions.append(found)
                    self.arrived.release()
                replies = (reply for mark, reply in self.reply_to.items() if mark in found.email)
                await self._answer(next(replies, self.reply), reader, writer)

    async def _answer(self, reply: _Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            if isinstance(reply, bytes):
                writer.write(reply)
            else:
                await reply(reader, writer)
        finally:
            self.in_flight -= 1


def _submission(fields: dict[str, str], body: bytes) -> Submission:
    boundary = b"--" + fields["Content-Type"].partition("boundary=")[2].encode()
    first, _, second = body.removeprefix(boundary + b"\r\n").partition(b"\r\n" + boundary + b"\r\n")
    parameters = message_from_bytes(first, policy=policy.HTTP)
    email = second.partition(b"\r\n\r\n")[2].removesuffix(b"\r\n" + boundary + b"--\r\n")
    return Submission(
        authorization=fields.get("Authorization", ""),
        parameters=json.loads(bytes(parameters.get_payload(decode=True))),
        parameters_type=parameters.get_content_type(),
        email=email,
        raw=body,
        fields=fields,
    )


@dataclass
class Received:
    """One mail as the next hop received it: the envelope commands verbatim, the content unstuffed."""

    commands: list[bytes]
    content: bytes
    recipients: list[bytes]  # those the next hop accepted

    def fields(self, name: str) -> list[str]:
        """The values of all header fields with this name, in order."""
        head = self.content.partition(b"\r\n\r\n")[0].decode("latin-1")
        return re.findall(rf"(?im)^{re.escape(name)}:[ \t]*(.*?)\r?$", head)


@dataclass
class NextHop(_Listener):
    """An SMTP or LMTP server on loopback that records mail and gives scripted replies.

    `replies` maps a verb (b"MAIL", b"RCPT", b"DATA", b".", b"EHLO", b"CONNECT") to the reply; b""
    closes the connection instead. The keys b"RCPT <b@example.org>" and, with LMTP,
    b". <b@example.org>" apply to that recipient only. `extensions` are announced after EHLO.
    """

    limit = 2**26
    replies: dict[bytes, bytes] = field(default_factory=dict)
    extensions: tuple[str, ...] = ("PIPELINING", "8BITMIME", "SIZE 60000000", "DSN", "SMTPUTF8")
    mails: list[Received] = field(default_factory=list)
    lmtp: bool = False
    port: int = 0

    @property
    def url(self) -> str:
        return f"{'lmtp' if self.lmtp else 'smtp'}://127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        commands: list[bytes] = []
        accepted: list[bytes] = []
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            if self._say(writer, b"CONNECT", b"220 next.example ESMTP"):
                while line := (await reader.readuntil(b"\r\n"))[:-2]:
                    verb = line.split(b" ", 1)[0].upper()
                    commands.append(line)
                    if not await self._command(verb, reader, writer, commands, accepted):
                        break

    async def _command(
        self,
        verb: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        commands: list[bytes],
        accepted: list[bytes],
    ) -> bool:
        if verb == (b"LHLO" if self.lmtp else b"EHLO"):
            lines = ["next.example", *self.extensions]
            text = "\r\n".join(f"250-{line}" for line in lines[:-1]) + f"\r\n250 {lines[-1]}"
            return self._say(writer, verb, text.encode())
        if verb == b"QUIT":
            self._say(writer, verb, b"221 2.0.0 Bye")
            return False
        if verb == b"RCPT":
            address = commands[-1].partition(b"<")[2].partition(b">")[0]
            reply = self._reply(verb, address, b"250 2.0.0 Ok")
            accepted += [address] if reply.startswith(b"2") else []
            return self._write(writer, reply)
        if verb in (b"RSET", b"MAIL"):
            accepted.clear()
        if verb != b"DATA":
            return self._say(writer, verb, b"250 2.0.0 Ok")
        if not self._say(writer, verb, b"354 Go on"):
            return False
        if verb in self.replies:
            return True
        mail = Received(list(commands), await _read_content(reader), [])
        commands.clear()
        answers = accepted if self.lmtp else [b""]
        replies = [self._reply(b".", address, b"250 2.0.0 Ok: queued as NEXT1") for address in answers]
        for number, address in enumerate(accepted):
            if replies[number if self.lmtp else 0].startswith(b"2"):
                mail.recipients.append(address)
        if mail.recipients:
            self.mails.append(mail)
        accepted.clear()
        if not self.lmtp:
            return self._say(writer, b".", replies[0])
        return all(self._write(writer, reply) for reply in replies)

    def _say(self, writer: asyncio.StreamWriter, verb: bytes, text: bytes) -> bool:
        return self._write(writer, self.replies.get(verb, text))

    def _reply(self, verb: bytes, address: bytes, text: bytes) -> bytes:
        return self.replies.get(b"%b <%b>" % (verb, address), self.replies.get(verb, text))

    def _write(self, writer: asyncio.StreamWriter, text: bytes) -> bool:
        if not text:
            return False
        writer.write(text + b"\r\n")
        return True


async def _read_content(reader: asyncio.StreamReader) -> bytes:
    """Read up to the final dot and unstuff."""
    content = b"\r\n"
    while not content.endswith(b"\r\n.\r\n"):
        content += await reader.readuntil(b".\r\n")
    return content[:-3].replace(b"\r\n.", b"\r\n")[2:]


class SmtpClient:
    """Sends exactly the given bytes and reads whole replies. A context manager."""

    def __init__(
        self, port: int, source: str = "127.0.0.1", timeout_s: float = 30.0, host: str = "127.0.0.1"
    ) -> None:  # fmt: skip
        """`source` is "" for a host that is not on loopback."""
        self.sock = socket.create_connection((host, port), timeout_s, (source, 0))
        self._read = b""

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def line(self) -> bytes:
        """The next line without its CRLF; b"" if the bridge has closed the connection."""
        while b"\r\n" not in self._read:
            try:
                data = self.sock.recv(65536)
            except ConnectionResetError:
                return b""
            if not data:
                return b""
            self._read += data
        line, _, self._read = self._read.partition(b"\r\n")
        return line

    def reply(self) -> bytes:
        """The next reply; several lines are joined by LF."""
        lines = [self.line()]
        while lines[-1][3:4] == b"-":
            lines.append(self.line())
        return b"\n".join(lines)

    def say(self, *commands: bytes) -> list[bytes]:
        """Send all commands in one write, each with CRLF, and return their replies."""
        self.send(b"".join(command + b"\r\n" for command in commands))
        return [self.reply() for _ in commands]

    def open(self, hello: bytes = b"EHLO client.example") -> bytes:
        """Read the greeting, send `hello`, and return the reply to it."""
        self.reply()
        return self.say(hello)[0]

    def begin(self, sender: bytes = b"<a@client.example>", recipient: bytes = b"<b@example.org>") -> bytes:
        """Send MAIL, RCPT and DATA, and return the reply to DATA."""
        return self.say(b"MAIL FROM:" + sender, b"RCPT TO:" + recipient, b"DATA")[2]

    def mail(self, content: bytes = b"Subject: x\r\n\r\nx\r\n") -> bytes:
        """Send a whole mail and return the reply to the final dot. The content is sent unchanged."""
        self.begin()
        return self.say(content + b".")[0]

    def is_cut(self) -> bool:
        """Wait for the bridge to close or reset the connection; False if it does not. Discards what it still sends."""
        try:
            while self.sock.recv(65536):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> SmtpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class RunningBridge:
    """A complete daemon on loopback, with its scanner and next hop."""

    daemon: Daemon
    scanner: FakeScanner
    next_hop: NextHop
    background: Background
    port: int  # the first listener's
    admin_port: int
    directory: Path

    @property
    def quarantined(self) -> list[Path]:
        return sorted((self.directory / "state" / "quarantine").glob("*.eml"))

    def connect(self, timeout_s: float = 10.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def client(self, source: str = "127.0.0.1") -> SmtpClient:
        return SmtpClient(self.port, source)

    def forget(self) -> None:
        """For tests that share a bridge: scanner and next hop behave well again, as if they always had."""
        self.scanner.reply = answer(200, result())
        self.background.run(self._forget_failures())
        self.scanner.submissions.clear()
        self.next_hop.replies.clear()
        self.next_hop.mails.clear()

    async def _forget_failures(self) -> None:
        for host in self.daemon.scanner.hosts:
            if host.check is not None:  # it may still fail, and count as one more failure
                await asyncio.wait({host.check})
            host.saturated_until = 0.0
            host.circuit = Circuit(longest_pause_s=0.0)
            host.is_broken = False


@contextmanager
def running_bridge(directory: Path, config: dict[str, Any] | None = None, **listener: Any) -> Iterator[RunningBridge]:
    """Run a daemon whose configuration is `configuration(...)` with these arguments."""
    background, scanner, next_hop = Background(), FakeScanner(), NextHop()
    background.run(scanner.start())
    background.run(next_hop.start())
    data = configuration(directory, scanner, next_hop, config, **listener)
    conf = yaml_file.load(directory / "bridge.yml", Config, yaml_file.dump(data))
    daemon = background.run(Daemon.start(conf))
    port, admin_port = conf.listeners[0].address.port, conf.admin.address.port
    try:
        yield RunningBridge(daemon, scanner, next_hop, background, port, admin_port, directory)
    finally:
        background.run(daemon.stop(2.0))
        background.run(scanner.stop())
        background.run(next_hop.stop())
        background.close()


def configuration(
    directory: Path, scanner: FakeScanner, next_hop: NextHop, config: dict[str, Any] | None = None, **listener: Any
) -> dict[str, Any]:
    """The test defaults, with `config` merged over them and `listener` merged over the only listener."""
    (directory / "token").write_text(TOKEN + "\n")
    port, admin_port = free_port(), free_port()
    data: dict[str, Any] = {
        "scanner": {"urls": [scanner.url], "token_file": "token"},
        "listeners": [{"name": "test", "address": f"127.0.0.1:{port}", **listener}],
        "relay": {"next_hop": next_hop.url, "probe_interval": "0s"},  # a probe is one more connection to count
        "admin": {"address": f"127.0.0.1:{admin_port}"},
        "state_directory": str(directory / "state"),
        "hostname": "bridge.example",
        "drain_timeout": "5s",
    }
    for key, value in (config or {}).items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data.get(key), dict) else value
    return data


PORTS = range(12_000, 32_000)  # below the range the kernel uses for outgoing connections
_SHARE = 500


def free_port() -> int:
    """A port on which nothing listens, and which no other process that calls this gets."""
    for port in islice(_own_ports(os.getpid()).numbers, _SHARE):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")


@dataclass(frozen=True)
class _Share:
    """The ports of one process. Binding an abstract socket claims them; the kernel drops the claim with the process."""

    numbers: Iterator[int]
    claim: socket.socket


@cache
def _own_ports(pid: int) -> _Share:
    """A share for this process; a forked process gets a different one."""
    for first in PORTS[::_SHARE]:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0scanbridge-test-ports-{first}")
        except OSError:
            claim.close()
        else:
            atexit.register(claim.close)
            return _Share(cycle(range(first, first + _SHARE)), claim)
    raise OSError("other test runs have taken all ports")


def until(condition: Callable[[], T], what: str, limit_s: float = 60.0) -> T:
    """Wait until `condition` returns something true, and return it: for what another thread or process does.

    It looks less often the longer it takes: a condition that asks a server keeps that server from its work.
    """
    start = time.monotonic()
    while not (found := condition()):
        waited_s = time.monotonic() - start
        assert waited_s < limit_s, f"waited {limit_s:g} s for {what}"
        time.sleep(min(max(0.005, waited_s / 20), 0.05))
    return found


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that another process may be writing: not the last one while its end is missing."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


async def eventually(condition: Callable[[], T], what: str, limit_s: float = 60.0) -> T:
    """The same in a coroutine: other tasks of the event loop run while it waits."""
    end = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {limit_s:g} s for {what}"
        await asyncio.sleep(0.005)
    return found
