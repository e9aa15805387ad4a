"""The requests to a scanner host, as bytes: a mail to be scanned, and the question for its status.

Each carries a random id, which our own service repeats in its answer. The bytes of a mail are made while they are
sent. Knows nothing of connections or answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Protocol

from bridge.api.request_id import REQUEST_ID
from bridge.api.scanning import BOUNDARY_BYTES, AnalysisRequest, form
from bridge.mail.message import Message
from bridge.runtime.value import value
from bridge.scanner.host import Host


class Request(Protocol):
    """An HTTP request, not yet bound to a host."""

    def to(self, host: Host, request_id: bytes) -> Iterable[bytes]:
        """Its bytes, created again for each attempt; the id is random."""


@value
class Submission:
    """One mail as a request. Its bytes are created while they are sent, so that they do not wait in memory."""

    request: AnalysisRequest
    message: Message
    header: bytes  # the caller's: traceparent

    def to(self, host: Host, request_id: bytes | None = None) -> Iterator[bytes]:
        request_id = request_id or new_id()
        boundary = request_id  # no sender can know it
        head, tail = form(_parameters(self.request), boundary)
        lines = b"%b%b\r\nContent-Type: multipart/form-data; boundary=%b\r\nContent-Length: %d\r\n\r\n"
        lines %= (_ID_FIELD, request_id, boundary, len(head) + self.message.size + len(tail))
        yield b"".join((host.submit_head, self.header, lines, head))
        yield from self.message.chunks()
        yield tail

    def body_bytes(self) -> int:
        return self.message.size + sum(map(len, form(_parameters(self.request), b"x" * BOUNDARY_BYTES)))


_ID_FIELD = REQUEST_ID.encode("ascii") + b": "


def _draw() -> Iterator[bytes]:
    """Random request ids, also boundaries. Drawn by the hundred, because each draw is a system call."""
    while True:
        drawn = os.urandom(100 * BOUNDARY_BYTES // 2).hex().encode("ascii")
        yield from (drawn[start : start + BOUNDARY_BYTES] for start in range(0, len(drawn), BOUNDARY_BYTES))


_request_ids = _draw()


def new_id() -> bytes:
    return next(_request_ids)


def _draw_again() -> None:
    """Workers are forked: those that were already drawn belong to the parent."""
    global _request_ids
    _request_ids = _draw()


os.register_at_fork(after_in_child=_draw_again)


class _Status:
    def to(self, host: Host, request_id: bytes) -> Iterable[bytes]:
        return (host.status_head, _ID_FIELD, request_id, b"\r\n\r\n")


STATUS = _Status()


def _parameters(request: AnalysisRequest) -> bytes:
    """Strict JSON: non-UTF-8 bytes of a HELO are lone surrogates here, which many parsers refuse."""
    text = request.to_json()
    if text.find(b"\\ud") < 0:
        return text
    return json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
