"""Copies of lists, for browsing: the List API has no search, and a million entries take seconds to read.

A copy is a sorted text file that is mapped into memory, one entry in a line. Finding a page of it takes milliseconds.
It is fetched when somebody looks at the list, and again in the background when it is old; what the console changed
itself is shown at once. Only for showing: changes go to the service, which alone knows what is in a list.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from bridge.api.lists import ListEntry
from bridge.errors import BridgeError
from bridge.lists.client import ListClient, ListSettings
from bridge.lists.sync import with_rereads

log = logging.getLogger(__name__)

_FRESH_S = 60.0
_MAX_COPIES = 20
_MAX_LOOKS = 200_000  # lines that one search compares; the next page goes on from there
Key = tuple[str, str | None]  # name and tenant


@dataclass(slots=True)
class Copy:
    """Lines of `entry TAB comment`, sorted; tabs and line feeds in a comment are spaces."""

    data: bytes | mmap.mmap
    count: int
    at: float  # Unix time
    took_s: float
    added: dict[str, str] = field(default_factory=dict)  # by the console, since then
    deleted: set[str] = field(default_factory=set)

    def page(self, wanted: str, start: int, limit: int) -> tuple[list[ListEntry], int]:
        """Entries that contain the text, in any letter case, from this place on; and where to go on, or 0."""
        text = wanted.lower().encode()
        found: list[ListEntry] = []
        if start == 0:
            found += [ListEntry(*pair) for pair in sorted(self.added.items()) if wanted.lower() in pair[0].lower()]
        at, end = start, len(self.data)
        while at < end and len(found) < limit:
            at = self._next(text, at)
            if at < 0:
                return found, 0
            stop = self.data.find(b"\n", at)
            entry, _, comment = self.data[at:stop].decode("utf-8", "replace").partition("\t")
            at = stop + 1
            name = entry.rpartition("\x1f")[2]
            if name not in self.deleted and name not in self.added:
                found.append(ListEntry(name, comment))
        return found, at if at < end else 0

    def _next(self, text: bytes, at: int) -> int:
        """Where the next line begins that has the text before its own spelling, which is in lower case; or -1."""
        while True:
            if not text:
                return at
            hit = self.data.find(text, at)
            if hit < 0:
                return -1
            begin = self.data.rfind(b"\n", 0, hit) + 1
            if self.data.find(b"\x1f", begin, hit) < 0:  # not in the comment
                return begin
            at = self.data.find(b"\n", hit) + 1
            if at <= 0 or at >= len(self.data):
                return -1


def _line(entry: ListEntry) -> bytes:
    """The entry in lower case, by which it is found, then as it is written, then its comment."""
    comment = entry.comment.translate(_PLAIN)
    name = entry.entry.translate(_PLAIN)
    return f"{name.lower()}\x1f{name}\t{comment}\n".encode("utf-8", "replace")


_PLAIN = str.maketrans({"\n": " ", "\r": " ", "\t": " ", "\x1f": " "})


class ListCopies:
    def __init__(self, settings: Callable[[], ListSettings]) -> None:
        self._settings = settings
        self._copies: dict[Key, Copy] = {}
        self._running: dict[Key, asyncio.Task[Copy]] = {}

    async def get(self, name: str, tenant: str | None) -> Copy:
        """Raises BridgeError, if there is no copy yet and none can be fetched."""
        key = (name, tenant)
        known = self._copies.get(key)
        if known is not None and time.time() - known.at < max(_FRESH_S, 20 * known.took_s):
            return known
        if key not in self._running:
            self._running[key] = asyncio.create_task(self._fetch(key))
        if known is not None:
            self._running[key].add_done_callback(_noted)
            return known
        return await asyncio.shield(self._running[key])

    def changed(
        self, name: str, tenant: str | None, added: Iterable[ListEntry] = (), deleted: Iterable[str] = ()
    ) -> None:
        """The service has made these changes."""
        known = self._copies.get((name, tenant))
        if known is None:
            return
        for entry in added:
            known.count += not _has(known, entry.entry)
            known.added[entry.entry] = entry.comment
            known.deleted.discard(entry.entry)
        for gone in deleted:
            known.count -= _has(known, gone)
            known.added.pop(gone, None)
            known.deleted.add(gone)

    def forget(self, name: str, tenant: str | None) -> None:
        """Much has changed: fetch it again."""
        self._copies.pop((name, tenant), None)

    async def _fetch(self, key: Key) -> Copy:
        began = time.monotonic()
        try:
            async with ListClient(await asyncio.to_thread(self._settings)) as client:
                lines = await with_rereads(lambda: _read(client, key))
            data = await asyncio.to_thread(_sorted, lines)
            copy = Copy(data, len(lines), time.time(), time.monotonic() - began)
            self._copies.pop(key, None)
            while len(self._copies) >= _MAX_COPIES:
                del self._copies[next(iter(self._copies))]
            self._copies[key] = copy
            return copy
        finally:
            del self._running[key]


async def _read(client: ListClient, key: Key) -> list[bytes]:
    lines: list[bytes] = []
    async with aclosing(client.entry_chunks(*key)) as chunks:
        async for chunk in chunks:
            lines += map(_line, chunk)
    return lines


def _sorted(lines: list[bytes]) -> bytes | mmap.mmap:
    """In a file without a name: the system may drop it from memory, and it is gone with the process."""
    lines.sort()
    if not lines:
        return b""
    with tempfile.TemporaryFile(dir=_directory()) as file:
        file.writelines(lines)
        file.flush()
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _directory() -> Path | None:
    place = os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("CACHE_DIRECTORY")
    return Path(place) if place else None


def _has(copy: Copy, name: str) -> bool:
    return any(entry.entry == name for entry in copy.page(name, 0, 100)[0])


def _noted(task: asyncio.Task[Copy]) -> None:
    """The older copy is shown meanwhile."""
    if not task.cancelled() and isinstance(exc := task.exception(), BridgeError):
        log.warning("console: the list cannot be read again: %s", exc)
