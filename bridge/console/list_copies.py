"""Copies of lists, for browsing: the List API has no search, and a million entries take seconds to read.

A copy is a sorted text file that is mapped into memory, one entry in a line, with the comments in another file.
Finding a page of it takes milliseconds. It is fetched when somebody looks at the list, and again in the background when
it is old; what the console changed itself is shown at once. Until the first copy is complete, a page gets the entries
read so far. For display only: changes go to the service, which alone knows what is in a list.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from bridge.api.lists import ListEntry, ListFileInfo
from bridge.errors import BridgeError
from bridge.lists.client import ListClient, ListSettings
from bridge.lists.sync import with_rereads

log = logging.getLogger(__name__)

_FRESH_S = 60.0
_WAIT_S = 0.05  # a page waits this long, which is enough for a short list
_INFOS_S = 30.0
_UNREAD_S, _UNCOPIED_S = 5.0, 60.0  # a list that could not be read, or not copied, is not tried again for this long
_MAX_COPIES = 20
_TURN_S = 0.005
_BLOCK = 1 << 20  # bytes that are searched at a time
_PAGE_BYTES = 25_000  # of entries: those of some lists are long, and a page must stay small
_SHOWN = 100  # entries of a list that is still being read
Key = tuple[str, str | None]  # name and tenant
Data = bytes | mmap.mmap


@dataclass(slots=True)
class Changes:
    """What the console changed since the list was read, or while it is being read. Threads share it."""

    added: dict[str, str] = field(default_factory=dict)  # with their comments
    deleted: set[str] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def note(self, added: Iterable[ListEntry], deleted: Iterable[str]) -> None:
        with self.lock:
            for entry in added:
                self.added[entry.entry] = entry.comment
                self.deleted.discard(entry.entry)
            for gone in deleted:
                self.added.pop(gone, None)
                self.deleted.add(gone)

    def found(self, wanted: str) -> list[ListEntry]:
        with self.lock:
            added = sorted(self.added.items())
        return [ListEntry(*pair) for pair in added if wanted.lower() in pair[0].lower()]

    def has(self, entry: str) -> bool:
        return entry in self.deleted or entry in self.added


@dataclass(slots=True)
class Copy:
    """Sorted lines: the entry in lower case, as it is written if that differs, and where its comment begins."""

    names: Data
    comments: Data
    count: int
    at: float  # Unix time
    took_s: float
    changes: Changes = field(default_factory=Changes)
    is_complete: ClassVar[bool] = True

    @classmethod
    def of(cls, entries: Iterable[ListEntry]) -> Copy:
        """Without files."""
        maker = Maker()
        maker.add(list(entries))
        return maker.copy(time.monotonic())

    def page(self, wanted: str, start: int, limit: int) -> tuple[list[ListEntry], int]:
        """Entries that contain the text, in any letter case, from this place on; and where to continue, or 0."""
        found = self.changes.found(wanted) if start == 0 else []
        size, start = 0, self._whole(start)
        for line, following in self._lines(wanted.lower().encode("utf-8", "replace"), start):
            entry = self._entry(line)
            if not self.changes.has(entry.entry):
                found.append(entry)
                size += len(line)
            if len(found) >= limit or size > _PAGE_BYTES:
                return found, following if following < len(self.names) else 0
        return found, 0

    def change(self, added: Iterable[ListEntry], deleted: Iterable[str]) -> None:
        """Note what was changed, and correct the count."""
        comments = {entry.entry: entry for entry in added}
        gone = set(deleted)
        with self.changes.lock:
            self.count += sum(not self.has(name) for name in comments)
            self.count -= sum(self.has(name) for name in gone)
            self.changes.note(comments.values(), gone)

    def has(self, name: str) -> bool:
        """Whether this entry is in the list, in this letter case."""
        if self.changes.has(name):
            return name in self.changes.added
        wanted = _bytes(_plain(name).lower()) + b"\x1f"
        at = self._first(wanted)
        while (line := self._line(at)).startswith(wanted):  # one for each spelling
            if self._entry(line).entry == name:
                return True
            at += len(line) + 1
        return False

    def _first(self, wanted: bytes) -> int:
        """The start of the first line that does not sort before this text; found by bisection."""
        low, high = 0, len(self.names)
        while low < high:
            middle = self.names.rfind(b"\n", low, (low + high) // 2) + 1 or low
            line = self._line(middle)
            if line < wanted:
                low = middle + len(line) + 1
            else:
                high = middle
        return low

    def _line(self, at: int) -> bytes:
        return self.names[at : max(self.names.find(b"\n", at), at)]

    def _whole(self, start: int) -> int:
        """The start of a line: the place comes from a link, and the list may have been read again since."""
        return start if start == 0 else self.names.find(b"\n", start - 1) + 1 or len(self.names)

    def _lines(self, text: bytes, start: int) -> Iterator[tuple[bytes, int]]:
        """Each line that contains the text, and where the next one begins."""
        at = start
        while block := self._block(at):
            begin = 0
            while (hit := block.find(text, begin)) >= 0 and hit < len(block):
                begin = block.rfind(b"\n", 0, hit) + 1
                end = block.find(b"\n", begin)
                yield block[begin:end], at + end + 1
                begin = end + 1
            at += len(block)

    def _block(self, at: int) -> bytes:
        """Whole lines from here on. A copy: `mmap.find` is ten times as slow as `bytes.find`."""
        size = _BLOCK
        while True:
            block = self.names[at : at + size]
            if at + size >= len(self.names):
                return block
            if end := block.rfind(b"\n") + 1:
                return block[:end]
            size *= 2

    def _entry(self, line: bytes) -> ListEntry:
        lower, name, place = line.split(b"\x1f")
        begin = int(place.translate(_DIGITS), 8)
        comment = self.comments[begin : self.comments.find(b"\n", begin)]
        return ListEntry((name or lower).decode("utf-8", "replace"), comment.decode("utf-8", "replace"))


@dataclass(slots=True)
class Reading:
    """A list that is being read for the first time: its first entries, in no order."""

    count: int = 0
    first: list[ListEntry] = field(default_factory=list)
    at: float = field(default_factory=time.time)
    changes: Changes = field(default_factory=Changes)
    is_outdated: bool = False  # it has changed so much in the meantime that it must be read again
    is_complete: ClassVar[bool] = False

    def page(self, wanted: str, start: int, limit: int) -> tuple[list[ListEntry], int]:
        """A page of the entries that have been read so far."""
        own = [entry for entry in self.first if wanted.lower() in entry.entry.lower()]
        return [*self.changes.found(wanted), *(one for one in own if not self.changes.has(one.entry))][:limit], 0


class Maker:
    """Makes a copy as its entries arrive. Sorts some at a time: sorting all at once would stop all other threads."""

    def __init__(self) -> None:
        self._runs: list[list[bytes]] = []
        self._comments = tempfile.TemporaryFile(dir=_directory())  # noqa: SIM115 - `close`
        self._at = 0
        self._count = 0

    def add(self, entries: list[ListEntry]) -> None:
        run = []
        for entry in entries:
            name = _plain(entry.entry)
            lower = name.lower()
            place = f"{self._at:o}".encode().translate(_HIDDEN)
            written = name if name != lower else ""
            run.append(b"%b\x1f%b\x1f%b\n" % (_bytes(lower), _bytes(written), place))
            self._at += self._comments.write(_bytes(_plain(entry.comment)) + b"\n")
        run.sort()
        self._runs.append(run)
        self._count += len(run)

    def close(self) -> None:
        self._comments.close()

    def copy(self, began: float) -> Copy:
        with self._comments, tempfile.TemporaryFile(dir=_directory()) as names:
            names.writelines(heapq.merge(*self._runs))
            self._runs.clear()
            mapped = (_mapped(names), _mapped(self._comments))
        return Copy(*mapped, self._count, time.time(), time.monotonic() - began)


def _mapped(file) -> Data:  # type: ignore[no-untyped-def]
    """The file has no name: the system may drop it from memory, and it is gone with the process."""
    file.flush()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if file.tell() else b""


def _plain(text: str) -> str:
    return text if text.isprintable() else text.translate(_PLAIN)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")


_PLAIN = str.maketrans({"\n": " ", "\r": " ", "\t": " ", "\x1f": " "} | {chr(code): " " for code in range(1, 9)})
# Places are written with control characters, which no search finds.
_HIDDEN = bytes.maketrans(b"01234567", bytes(range(1, 9)))
_DIGITS = bytes.maketrans(bytes(range(1, 9)), b"01234567")


class ListCopies:
    def __init__(self, settings: Callable[[], ListSettings]) -> None:
        self._settings = settings
        self._copies: dict[Key, Copy] = {}
        self._running: dict[Key, asyncio.Task[Copy]] = {}
        self._reading: dict[Key, Reading] = {}
        self._infos: dict[str | None, tuple[float, list[ListFileInfo]]] = {}
        self._failed: dict[Key, tuple[float, str]] = {}  # until when, and why

    async def get(self, name: str, tenant: str | None) -> Copy | Reading:
        """Raises BridgeError, if there is no copy yet and none can be fetched."""
        key = (name, tenant)
        known = self._copies.get(key)
        if known is not None and time.time() - known.at < max(_FRESH_S, 20 * known.took_s):
            return known
        is_new = key not in self._running
        if is_new and (why := self._failure(key)):
            if known is None:
                raise BridgeError(why)
            return known
        if is_new:
            self._reading[key] = Reading()
            self._running[key] = asyncio.create_task(self._fetch(key))
            self._running[key].add_done_callback(_seen)
        if known is not None:
            return known
        running, reading = self._running[key], self._reading[key]
        if is_new:
            await asyncio.wait([running], timeout=_WAIT_S)
        return running.result() if running.done() else reading

    async def changed(
        self, name: str, tenant: str | None, added: Iterable[ListEntry] = (), deleted: Iterable[str] = ()
    ) -> None:
        """The service has made these changes. A copy that is being made may lack them, too."""
        added, deleted = list(added), list(deleted)
        if (reading := self._reading.get((name, tenant))) is not None:
            reading.changes.note(added, deleted)
        if (known := self._copies.get((name, tenant))) is not None:
            await asyncio.to_thread(known.change, added, deleted)

    async def infos(self, tenant: str | None) -> list[ListFileInfo]:
        """The lists of a tenant: kept for a while, because the service may be busy. Raises BridgeError."""
        known = self._infos.get(tenant)
        if known is None or time.monotonic() - known[0] > _INFOS_S:
            async with ListClient(await asyncio.to_thread(self._settings)) as client:
                known = self._infos[tenant] = (time.monotonic(), await client.lists(tenant))
        return known[1]

    def forget(self, name: str, tenant: str | None) -> None:
        """Much has changed: fetch it again."""
        self._failed.pop((name, tenant), None)
        self._copies.pop((name, tenant), None)
        if (reading := self._reading.get((name, tenant))) is not None:
            reading.is_outdated = True

    def _failure(self, key: Key) -> str:
        """Why it could not be copied a moment ago, or ""."""
        until, why = self._failed.get(key, (0.0, ""))
        return why if time.monotonic() < until else ""

    async def _fetch(self, key: Key) -> Copy:
        reading = self._reading[key]
        try:
            copy = await self._copied_or_failed(key, reading)
            copy.changes = reading.changes
            self._copies.pop(key, None)
            while len(self._copies) >= _MAX_COPIES:
                del self._copies[next(iter(self._copies))]
            self._copies[key] = copy
            return copy
        finally:
            del self._running[key], self._reading[key]

    async def _copied_or_failed(self, key: Key, reading: Reading) -> Copy:
        """Raises BridgeError, whatever went wrong: the disk may be full, or the answer broken."""
        self._failed.pop(key, None)
        try:
            return await asyncio.to_thread(self._copied, key, reading)
        except BridgeError as exc:
            log.warning("console: a list cannot be read: %s", exc)
            self._note_failure(key, str(exc), _UNREAD_S)
            raise
        except Exception as exc:
            log.exception("console: a list cannot be copied")
            why = f"the list cannot be copied ({type(exc).__name__}): the console's log has the details"
            self._note_failure(key, why, _UNCOPIED_S)
            raise BridgeError(why) from exc

    def _note_failure(self, key: Key, why: str, lasts_s: float) -> None:
        while len(self._failed) >= _MAX_COPIES:
            del self._failed[next(iter(self._failed))]
        self._failed[key] = (time.monotonic() + lasts_s, why)

    def _copied(self, key: Key, reading: Reading) -> Copy:
        """Runs in a thread with its own event loop, so that pages do not wait for it."""
        began = time.monotonic()
        maker = asyncio.run(self._made(key, reading))
        return maker.copy(began)

    async def _made(self, key: Key, reading: Reading) -> Maker:
        async with ListClient(self._settings()) as client:
            maker = await with_rereads(lambda: _read(client, key, reading))
            while reading.is_outdated:
                maker.close()
                reading.is_outdated = False
                maker = await with_rereads(lambda: _read(client, key, reading))
            return maker


async def _read(client: ListClient, key: Key, reading: Reading) -> Maker:
    """At half speed: Python's threads take turns."""
    maker = Maker()
    reading.count, reading.first = 0, []
    try:
        async with aclosing(client.entry_chunks(*key)) as chunks:
            began = time.monotonic()
            async for chunk in chunks:
                maker.add(chunk)
                reading.count += len(chunk)
                reading.first += chunk[: _SHOWN - len(reading.first)]
                now = time.monotonic()
                if now - began > _TURN_S:
                    await asyncio.sleep(now - began)
                    began = time.monotonic()
    except BaseException:
        maker.close()
        raise
    return maker


def _directory() -> Path | None:
    place = os.environ.get("RUNTIME_DIRECTORY") or os.environ.get("CACHE_DIRECTORY")
    return Path(place) if place else None


def _seen(task: asyncio.Task[Copy]) -> None:
    """It is logged; the older copy is shown in the meantime."""
    if not task.cancelled():
        task.exception()
