"""What the service sends back: JSON, and refusals that the client gets to read.

A refusal often comes before the client has sent its whole body, and many clients read only after
they have sent. Closing at once would reset the connection and destroy the answer on its way. So
the answer goes out first, then what the client still sends is read and thrown away, within
bounds, and only then the connection ends.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import Receive, Scope, Send

from bridge.api.failure import Failure

DRAIN_BYTES = 256 * 1024 * 1024
DRAIN_S = 30.0
KEEP_ALIVE_BYTES = 1024 * 1024  # a body up to this is read to its end, and the connection lives on


class Refused(Exception):
    """A request we answer with an Error object."""

    def __init__(
        self,
        status: int,
        error: str,
        message: str,
        *,
        retry_after_s: int | None = None,
        challenge: str | None = None,
    ) -> None:
        super().__init__(error)
        self.status = status
        self.failure = Failure(error, message)
        self.before_body = False  # True: nothing of the body was asked for yet
        self.headers: list[tuple[bytes, bytes]] = []
        if retry_after_s is not None:
            self.headers.append((b"retry-after", str(retry_after_s).encode()))
        if challenge is not None:
            self.headers.append((b"www-authenticate", challenge.encode()))


def storage_unavailable() -> Refused:
    return Refused(503, "storage_unavailable", "the lists cannot be reached now", retry_after_s=5)


async def send_json(send: Send, status: int, value: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await _send(send, status, json.dumps(value).encode(), headers or [], more=False)


async def refuse(scope: Scope, receive: Receive, send: Send, refused: Refused) -> None:
    """Answer a request whose body may still be coming."""
    body = json.dumps(refused.failure.to_dict()).encode()
    length = header(scope, b"content-length")
    small = length.isdigit() and int(length) <= KEEP_ALIVE_BYTES
    if small or (not length and not header(scope, b"transfer-encoding")):
        await _send(send, refused.status, body, refused.headers, more=False)
        return
    await _send(send, refused.status, body, [*refused.headers, (b"connection", b"close")], more=True)
    if not (refused.before_body and header(scope, b"expect")):  # who waits for 100 Continue sends nothing now
        await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, more: bool) -> None:
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fixed + headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _drain(receive: Receive) -> None:
    left = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_S):
            while left > 0:
                event = await receive()
                left -= len(event.get("body", b""))
                if event["type"] == "http.disconnect" or not event.get("more_body", False):
                    return
    except TimeoutError:
        return


def header(scope: Scope, name: bytes) -> bytes:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""
