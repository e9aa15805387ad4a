"""An SMTP client for one command at a time, a scanner that waits, and access to the bridge's log and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from bridge.api.scanning import QueueStatus
from bridge.testing import RunningBridge, SmtpClient, answer, until

MAIL = b"Subject: hello\r\n\r\nhello\r\n"


class Client:
    """`bridge.testing.SmtpClient` for dialogues that stop at the first refusal: one command, one reply, as text."""

    def __init__(self, port: int | RunningBridge) -> None:
        self._client = SmtpClient(port if isinstance(port, int) else port.port, timeout_s=60)
        self.greeting = self.read()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def read(self) -> str:
        """The next reply, without the last line end."""
        return self._client.reply().decode("ascii")

    def say(self, line: str | bytes) -> str:
        self._client.send((line.encode() if isinstance(line, str) else line) + b"\r\n")
        return self.read()

    def begin(self, sender: str = "a@example.org", recipients: tuple[str, ...] = ("b@example.org",)) -> str:
        """EHLO, MAIL and RCPT; returns the last reply."""
        self.say("EHLO client.example")
        reply = self.say(f"MAIL FROM:<{sender}>")
        for recipient in recipients:
            reply = self.say(f"RCPT TO:<{recipient}>")
        return reply

    def content(self, content: bytes = MAIL) -> None:
        self._client.send(content.replace(b"\r\n.", b"\r\n..") + b".\r\n")


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
    until(lambda: bridge.daemon.scanner.hosts[0].status is status, f"the status {status}")


class Gate:
    """A scanner that holds every mail until `open`."""

    def __init__(self, bridge: RunningBridge, answer: bytes) -> None:
        self._bridge, self._answer = bridge, answer
        self._open = asyncio.Event()
        while bridge.scanner.arrived.acquire(blocking=False):
            pass  # forget earlier mails
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
