"""The body of one HTTP request: block by block, within its limits of size and time.

Knows nothing of its content. If this is wrong, a client that sends a byte a minute holds a connection forever.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from bridge.intake.hooks.context import RATE_WINDOW_S, HooksContext
from bridge.intake.hooks.facts import Found
from bridge.intake.hooks.json_body import JsonBody, TooMuch
from bridge.mail.message import Spool


class ClientGone(Exception):
    """The connection is closed."""


class TooSlow(Exception):
    """The client has exceeded a time limit."""


class Body:
    def __init__(self, receive: Any, headers: Mapping[str, str], context: HooksContext) -> None:
        self._receive = receive
        self._context = context
        self._length = headers.get("content-length", "0")
        self._hash = hashlib.blake2b(digest_size=32)
        self.is_gone = False
        self.is_read = self._length == "0" and "transfer-encoding" not in headers

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    async def read_json(self) -> Found:
        """The small JSON object of a request that has no mail in it."""
        return await self.read_into(JsonBody((), _NothingTaken()))

    async def read_into(self, reader: JsonBody) -> Found:
        """Raises BadJson, ClientGone, TooSlow, Saturated."""
        spool, limits = self._context.spool, self._context.settings
        received = counted = 0
        if self._length.isdigit() and int(self._length[:20]) > limits.max_body:
            raise TooMuch(f"the request is larger than {limits.max_body} bytes")
        pace = _Pace(self._context)
        try:
            while not self.is_read:
                block = await self._next(pace)
                received += len(block)
                if received > limits.max_body:
                    raise TooMuch(f"the request is larger than {limits.max_body} bytes")
                self._hash.update(block)
                reader.feed(block)
                if received > spool.memory_per_mail and spool.is_behind:
                    await pace.pause(spool)
                if reader.kept_bytes > counted:
                    spool.take(reader.kept_bytes - counted)
                    counted = reader.kept_bytes
            return reader.end()
        finally:
            spool.give_back(counted)

    async def _next(self, pace: _Pace) -> bytes:
        try:
            async with asyncio.timeout_at(pace.until()):
                event = await self._receive()
        except TimeoutError:
            self._context.reports.limit(pace.exceeded())
            raise TooSlow from None
        if event["type"] != "http.request":
            self.is_gone = True
            raise ClientGone
        self.is_read = not event.get("more_body", False)
        block: bytes = event.get("body", b"")
        pace.note(len(block))
        return block

    async def until_gone(self) -> None:
        """Returns when the client has closed the connection."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True


class _Pace:
    """Whether a body arrives fast enough: without long pauses, and neither too slowly nor for too long."""

    def __init__(self, context: HooksContext) -> None:
        self._settings = context.settings
        self._loop = asyncio.get_running_loop()
        self._began = self._heard = self._window = self._loop.time()
        self._received = 0  # in the current window

    def note(self, count: int) -> None:
        now = self._loop.time()
        self._heard = now
        self._received += count
        if now - self._window >= RATE_WINDOW_S and self._is_fast(now):
            self._window, self._received = now, 0

    async def pause(self, spool: Spool) -> None:
        """Read no more until the spool's disk has caught up. The pause does not count against the client."""
        began = self._loop.time()
        await spool.wait_for_disk(self._began + self._settings.mail_timeout_s)
        now = self._loop.time()
        self._heard = now
        self._window += now - began

    def _is_fast(self, now: float) -> bool:
        return self._received >= self._settings.min_data_rate * (now - self._window)

    def until(self) -> float:
        """The deadline for the next block; already past if the last window was too slow."""
        now = self._loop.time()
        if now - self._window >= RATE_WINDOW_S:
            return now - 1
        silent = self._heard + self._settings.data_timeout_s
        return min(self._began + self._settings.mail_timeout_s, silent)

    def exceeded(self) -> str:
        """The limit, by its label."""
        now = self._loop.time()
        if now >= self._began + self._settings.mail_timeout_s:
            return "mail_timeout"
        return "data_timeout" if now >= self._heard + self._settings.data_timeout_s else "min_data_rate"


class _NothingTaken:
    def begin(self, kept: bytes) -> None: ...

    def take(self, block: bytes) -> None: ...

    def end(self) -> None: ...
