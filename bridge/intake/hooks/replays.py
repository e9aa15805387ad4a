"""Requests that come twice: a mail server that lost our answer asks again, with the same request id.

While the first is decided, the second waits for the same answer; afterwards it gets that answer again, for a while. A
mail is then neither scanned nor quarantined twice. An answer belongs to one registration, one id and the very same
bytes: another body with the same id is refused. A mail that was only deferred is decided again. Each worker knows its
own requests; what another worker has decided is decided again. If this is wrong, one mail gets another's decision.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

_KEPT_S = 300.0
_MAX_ENTRIES = 10_000
_MAX_BYTES = 16 * 1024 * 1024

Key = tuple[str, str]  # registration, request


class OtherBody(Exception):
    """The id was used before, for another body."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The JSON that answers a request, and whether the mail is decided: a deferred one is not."""

    body: bytes
    is_final: bool


class _Entry:
    __slots__ = ("digest", "ended_at", "task", "waiting")

    def __init__(self, digest: bytes, task: asyncio.Task[Answer]) -> None:
        self.digest = digest
        self.task = task
        self.waiting = 0
        self.ended_at = 0.0


class Replays:
    def __init__(self) -> None:
        self._running: dict[Key, _Entry] = {}
        self._answered: OrderedDict[Key, _Entry] = OrderedDict()  # the oldest first
        self._bytes = 0

    def find(self, key: Key, digest: bytes) -> Request | None:
        """The same request, running or answered; None if it is new. Raises OtherBody."""
        self._forget_old()
        entry = self._running.get(key) or self._answered.get(key)
        if entry is None:
            return None
        if entry.digest != digest:
            raise OtherBody
        return Request(entry)

    def start(self, key: Key | None, digest: bytes, decide: Coroutine[Any, Any, Answer]) -> Request:
        """Decide a request that is new; without a key, it cannot come again."""
        entry = _Entry(digest, asyncio.get_running_loop().create_task(decide))
        if key is not None:
            self._running[key] = entry
            entry.task.add_done_callback(lambda task: self._end(key, entry))
        return Request(entry)

    def clear(self) -> None:
        """Forget the answers: the configuration has changed."""
        self._answered.clear()
        self._bytes = 0

    def _end(self, key: Key, entry: _Entry) -> None:
        del self._running[key]
        task = entry.task
        if task.cancelled() or task.exception() is not None or not task.result().is_final:
            return
        entry.ended_at = time.monotonic()
        self._answered[key] = entry
        self._bytes += len(task.result().body)

    def _forget_old(self) -> None:
        now = time.monotonic()
        while self._answered:
            key, entry = next(iter(self._answered.items()))
            is_over = len(self._answered) > _MAX_ENTRIES or self._bytes > _MAX_BYTES
            if not is_over and now - entry.ended_at < _KEPT_S:
                return
            del self._answered[key]
            self._bytes -= len(entry.task.result().body)


class Request:
    """One client that waits for the answer; when the last one leaves, the mail is abandoned."""

    def __init__(self, entry: _Entry) -> None:
        self._entry = entry

    async def wait(self, gone: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> Answer | None:
        """The answer; None if there is none in time, or if `gone` returns first."""
        entry = self._entry
        entry.waiting += 1
        leaving = asyncio.get_running_loop().create_task(gone())
        try:
            waited: set[asyncio.Task[Any]] = {entry.task, leaving}
            await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            return entry.task.result() if entry.task.done() and not entry.task.cancelled() else None
        finally:
            leaving.cancel()
            entry.waiting -= 1
            if not entry.waiting and not entry.task.done():
                entry.task.cancel()
