"""A scripted scanning service.

HTTP is real. Only the answers are scripted, because tests need a scanner that misbehaves.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass
from email import message_from_bytes, policy
from typing import Any

from bridge.scanner.probe_mail import SUBJECT
from bridge.testing.loopback_server import LoopbackServer


def result(decision: str = "deliver", **fields: Any) -> bytes:
    """A MessageAnalysisResult as the service sends it."""
    base = {"ggrid": "11111111-2222-4333-8444-555555555555", "verdict": "test", "tags": ["a:b"]}
    times = {"created": "2026-01-01T00:00:00Z", "completed": "2026-01-01T00:00:01Z"}
    return json.dumps({**base, **times, "decision": decision, **fields}).encode()


def answer(status: int, body: bytes = b"", *headers: str) -> bytes:
    """A complete HTTP response."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", "Content-Type: application/json", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass
class Submission:
    """What the bridge submitted for one mail."""

    authorization: str
    parameters: dict[str, Any]
    parameters_type: str
    email: bytes
    raw: bytes
    fields: dict[str, str]  # header fields of the request


_Reply = bytes | Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


class FakeScanner(LoopbackServer):
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
