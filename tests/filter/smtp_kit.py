"""An SMTP client that sends one command at a time, and helpers that read the bridge's log and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from bridge.api.scanning import QueueStatus
from bridge.testing import RunningBridge, answer, until

MAIL = b"Subject: hello\r\n\r\nhello\r\n"


class Client:
    """One SMTP session; every method returns the complete reply as text."""

    def __init__(self, port: int | RunningBridge) -> None:
        number = port if isinstance(port, int) else port.port
        self.sock = socket.create_connection(("127.0.0.1", number), timeout=10)
        self._file = self.sock.makefile("rb")
        self.greeting = self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def read(self) -> str:
        lines = []
        while line := self._file.readline().decode("ascii"):
            lines.append(line.rstrip("\r\n"))
            if line[3:4] != "-":
                break
        return "\n".join(lines)

    def say(self, line: str | bytes) -> str:
        self.sock.sendall((line.encode() if isinstance(line, str) else line) + b"\r\n")
        return self.read()

    def begin(self, sender: str = "a@example.org", recipients: tuple[str, ...] = ("b@example.org",)) -> str:
        """EHLO, MAIL and RCPT; returns the last reply."""
        self.say("EHLO client.example")
        reply = self.say(f"MAIL FROM:<{sender}>")
        for recipient in recipients:
            reply = self.say(f"RCPT TO:<{recipient}>")
        return reply

    def content(self, content: bytes = MAIL) -> None:
        self.sock.sendall(content.replace(b"\r\n.", b"\r\n..") + b".\r\n")


def send(port: int | RunningBridge, content: bytes = MAIL, **envelope: Any) -> str:
    """Send one mail; returns its last reply."""
    with Client(port) as client:
        reply = client.begin(**envelope)
        if not reply.startswith("250"):
            return reply
        reply = client.say("DATA")
        if not reply.startswith("354"):
            return reply
        client.content(content)
        return client.read()


def say(bridge: RunningBridge, status: QueueStatus) -> None:
    """Let the scanner report this status, and wait until the bridge has read it."""
    bridge.scanner.status = answer(200, b'{"messageQueueStatus": "%b"}' % status.encode())
    until(lambda: bridge.daemon.scanner.hosts[0].status is status, str(status))


class Gate:
    """A scanner that holds every mail until `open`."""

    def __init__(self, bridge: RunningBridge, answer: bytes) -> None:
        self._bridge, self._answer = bridge, answer
        self._open = asyncio.Event()
        while bridge.scanner.arrived.acquire(blocking=False):
            pass  # those of earlier mails
        bridge.scanner.reply = self._reply

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        writer.write(self._answer)

    def arrived(self) -> None:
        assert self._bridge.scanner.arrived.acquire(timeout=60)

    def open(self) -> None:
        self._bridge.background.loop.call_soon_threadsafe(self._open.set)


_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


def fields_of(line: str) -> dict[str, Any]:
    """The fields of a key=value line; every character must belong to a field."""
    found = list(_FIELD.finditer(line))
    assert " ".join(field[0] for field in found) == line
    values = {field[1]: json.loads(field[2]) if field[2].startswith('"') else field[2] for field in found}
    numbers = ("size", "nrcpt", "wait_ms", "scan_ms", "relay_ms")
    return {name: float(value) if name in numbers else value for name, value in values.items()}


@contextmanager
def mail_lines() -> Iterator[list[dict[str, Any]]]:
    """Collects the fields of every mail's log line."""
    lines: list[dict[str, Any]] = []
    logger = logging.getLogger("scanbridge.mail")
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(fields_of(record.getMessage()))  # type: ignore[method-assign]
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def counted(bridge: RunningBridge, name: str, **labels: str) -> float:
    return bridge.daemon.metrics.registry.get_sample_value(f"scanbridge_{name}", labels) or 0.0
