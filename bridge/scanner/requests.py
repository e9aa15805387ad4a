"""The requests to a scanner host, which its dialect writes: a mail to be scanned, and the request for its status.

Each carries a random id, which our own service repeats in its answer. The content of a mail is read while it is
sent. Knows nothing of connections or answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Protocol

from bridge.api.scanning import BOUNDARY_BYTES, AnalysisRequest
from bridge.mail.message import Message
from bridge.runtime.value import value
from bridge.scanner.host import Host


class Request(Protocol):
    """An HTTP request, not yet bound to a host."""

    @property
    def tenant_uid(self) -> str | None: ...

    def to(self, host: Host, request_id: bytes) -> Iterable[bytes]:
        """Its bytes, created again for each attempt; the id is random. Raises MessageTooLarge."""


@value
class Submission:
    """One mail as a request. Its content is read while it is sent, so that it is not in memory twice."""

    request: AnalysisRequest
    message: Message
    header: bytes  # the caller's: traceparent

    @property
    def tenant_uid(self) -> str | None:
        return self.request.tenant_uid

    def to(self, host: Host, request_id: bytes | None = None) -> Iterable[bytes]:
        return host.dialect.submission(self.request, self.message, self.header, request_id or new_id())


class _Status:
    tenant_uid = None

    def to(self, host: Host, request_id: bytes) -> Iterable[bytes]:
        return host.dialect.status(request_id)


STATUS = _Status()


def _draw() -> Iterator[bytes]:
    """Random request ids, which also serve as boundaries. Drawn by the hundred, because each draw is a system call."""
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
