"""Responses: JSON, and refusals that reach the client.

The service often refuses a request before the client has sent its whole body, and many clients
read only after they have sent everything. Closing the connection immediately would reset it, and the
client would lose the response. So the response goes out first, the rest of the body is read and
discarded, within bounds, and only then does the connection close.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from bridge.api.failure import Failure
from bridge.service.requests import header, waits_for_continue

DRAIN_BYTES = 256 * 1024 * 1024
DRAIN_S = 30.0
KEEP_ALIVE_BYTES = 1024 * 1024  # a body up to this size is read to its end, and the connection stays open


class Refused(Exception):
    """The request is answered with an Error object."""

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
        self.before_body = False  # True: none of the body has been requested yet
        self.headers: list[tuple[bytes, bytes]] = []
        if retry_after_s is not None:
            self.headers.append((b"retry-after", str(retry_after_s).encode()))
        if challenge is not None:
            self.headers.append((b"www-authenticate", challenge.encode()))


def check_plain(scope: Scope) -> None:
    """Refuse a compressed body, which would be read as if it were not. Raises Refused."""
    encoding = header(scope, b"content-encoding").lower() or b"identity"
    transfer = header(scope, b"transfer-encoding").lower() or b"chunked"
    if encoding != b"identity" or transfer != b"chunked":
        raise Refused(415, "encoded_body", "the body is compressed; send it uncompressed, without Content-Encoding")


def storage_unavailable() -> Refused:
    return Refused(503, "storage_unavailable", "the lists are not available at the moment", retry_after_s=5)


async def send_json(send: Send, status: int, value: Any, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    await _send(send, status, json.dumps(value).encode(), headers or [], more=False)


class RequestBody:
    """`receive`, which remembers that the body has ended: from then on, it waits until the client disconnects."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.has_ended = False

    async def __call__(self) -> Message:
        event = await self._receive()
        if not event.get("more_body", False):
            self.has_ended = True
        return event


async def refuse(scope: Scope, receive: RequestBody, send: Send, refused: Refused) -> None:
    """Answer a request whose body may not have arrived completely."""
    body = json.dumps(refused.failure.to_dict()).encode()
    length = declared_length(scope)
    is_over = receive.has_ended or (length is None and not header(scope, b"transfer-encoding"))
    if (is_over or (length is not None and length <= KEEP_ALIVE_BYTES)) and refused.status != 408:
        await _send(send, refused.status, body, refused.headers, more=False)
        return
    await _send(send, refused.status, body, [*refused.headers, (b"connection", b"close")], more=True)
    # A client waiting for 100 Continue sends no body; one that has not sent it in time may never do so.
    if refused.status != 408 and not (refused.before_body and waits_for_continue(scope)):
        await _drain(receive)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def declared_length(scope: Scope) -> int | None:
    """Content-Length, as far as it matters: a longer number is cut. None if there is none.

    Any number of zeros may precede it, and Python refuses to read a number of more than 4,300 digits.
    """
    length = header(scope, b"content-length")
    return int(length.lstrip(b"0")[:20] or b"0") if length.isdigit() else None


async def _send(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]], *, more: bool) -> None:
    fixed = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fixed + headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _drain(receive: RequestBody) -> None:
    left = DRAIN_BYTES
    try:
        async with asyncio.timeout(DRAIN_S):
            while left > 0 and not receive.has_ended:
                left -= len((await receive()).get("body", b""))
    except TimeoutError:
        return
