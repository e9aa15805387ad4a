"""Server-sent event streams: how many are open, per session, per person and in total.

Each holds a connection and costs work every few seconds. If this is wrong, a few browsers, or one script with a valid
session, use up the connections that everybody needs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from bridge.console.checks import Refused

log = logging.getLogger(__name__)

MAX_OF_SESSION = 10
MAX_OF_PERSON = 40  # a person may have many sessions
MAX_OPEN = 200  # of the 500 connections
_RETRY_S = 10


@dataclass(slots=True)
class Streams:
    """Must be used in the event loop."""

    refused: int = 0  # since startup
    _open: Counter[str] = field(default_factory=Counter)  # by session
    _persons: Counter[str] = field(default_factory=Counter)

    @property
    def number(self) -> int:
        return self._open.total()

    def stream(self, person: str, session: str, events: AsyncIterator[str]) -> EventStream:
        """Counts until the response has ended. Raises Refused."""
        is_many = self._open[session] >= MAX_OF_SESSION or self._persons[person] >= MAX_OF_PERSON
        if is_many or self.number >= MAX_OPEN:
            self.refused += 1
            log.warning(
                "console: event stream refused: %d open, %d of them in this session; %d refused since startup",
                self.number, self._open[session], self.refused,
            )  # fmt: skip
            text = "Live pages are open in too many windows. Close some of them, or reload this page from time to time."
            raise Refused(503, "Too many live pages", text, _RETRY_S)
        self._open[session] += 1
        self._persons[person] += 1
        return EventStream(self, person, session, events)

    def ended(self, person: str, session: str) -> None:
        for counts, key in ((self._open, session), (self._persons, person)):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]


class EventStream(StreamingResponse):
    def __init__(self, streams: Streams, person: str, session: str, events: AsyncIterator[str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        self._streams, self._person, self._session = streams, person, session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:  # a browser may be gone before the first event is asked for
            await super().__call__(scope, receive, send)
        finally:
            self._streams.ended(self._person, self._session)
