"""Files with list entries that people have sent: compared with the list in the background, kept until they are applied.

An upload belongs to the person who sent it. Everything large is on disk; few uploads are kept, and for a limited time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import BinaryIO

from anyio import to_thread

from bridge.api.lists import ListEntry, ListFileInfo
from bridge.console.list_difference import DiskDifference, Kind
from bridge.console.queues import Queue
from bridge.console.tokens import new_token
from bridge.console.undoable_jobs import Job
from bridge.errors import BridgeError, ConfigError
from bridge.lists import files
from bridge.lists.batches import Tally
from bridge.lists.client import ListClient, ListSettings
from bridge.lists.danger import Dangers
from bridge.lists.errors import ListsError
from bridge.lists.files import Format, InputError
from bridge.lists.plan import still_different
from bridge.lists.sync import check_fits, with_rereads

log = logging.getLogger(__name__)

_KEPT_S = 3600.0
_MAX = 8
_ROWS = 500
_MAX_YAML_VALUES = 250_000  # 125 MB; the console has 512
MAX_DANGERS = 1000  # that are kept of one file
MAX_REFUSED = 1000  # by the service: each costs a request


class Stage(StrEnum):
    WAITING = "waiting for other files"
    FILE = "reading the file"
    LIST = "reading the list"
    COMPARING = "comparing"
    READY = "ready"
    FAILED = "failed"
    APPLYING = "applying"


class UploadCancelled(BridgeError):
    """It was cancelled or replaced by another file, or the console is stopping."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent, and for which list."""

    owner: str
    info: ListFileInfo
    tenant: str | None
    prune: bool
    file: BinaryIO
    kind: Format
    file_name: str


@dataclass(slots=True, eq=False)
class Upload:
    """One thread prepares it, and pages may read it at any time."""

    sent: Sent
    settings: Callable[[], ListSettings]
    dangers_of: Dangers
    category: str
    made_at: float = field(default_factory=time.time)
    stage: Stage = Stage.WAITING
    problem: str = ""
    failure: BridgeError | None = None  # the error whose text is `problem`, if the lists cannot be used
    file_entries: int = 0
    list_entries: int = 0
    dangers: dict[str, str] = field(default_factory=dict)
    difference: DiskDifference = field(default_factory=DiskDifference)
    percent: int | None = None  # of the file
    job: Job | None = None  # that applies it
    _cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def is_prepared(self) -> bool:
        return self.stage in (Stage.READY, Stage.FAILED, Stage.APPLYING)

    @property
    def deletions(self) -> int:
        return self.difference.count(Kind.DELETE) if self.sent.prune else 0

    @property
    def kept(self) -> int:
        """Entries that are not in the file but stay in the list."""
        return 0 if self.sent.prune else self.difference.count(Kind.DELETE)

    @property
    def changes(self) -> int:
        """All that would be done."""
        return self.difference.count(Kind.ADD) + self.difference.count(Kind.UPDATE) + self.deletions

    def cancel(self) -> None:
        self._cancelled.set()

    # In a thread

    def prepare(self) -> None:
        try:
            self.stage = Stage.FILE
            self._read_file()
            self.stage, self.percent = Stage.LIST, None
            asyncio.run(self.read_list())
            self.stage = Stage.COMPARING
            self.difference.compare()
            check_fits(self.sent.info.max_size, self.list_entries, self.difference.count(Kind.ADD), self.deletions)
            self._find_dangers()
            self.stage = Stage.READY
        except BridgeError as exc:
            self.failure = exc if isinstance(exc, ListsError | ConfigError) else None
            self.problem, self.stage = str(exc), Stage.FAILED
        except (sqlite3.Error, OSError) as exc:
            log.warning("console: an uploaded file cannot be compared with the list: %s", exc)
            self.problem, self.stage = "there is no room for the comparison; the console's log says why", Stage.FAILED
        except Exception:
            log.exception("console: an uploaded file cannot be compared with the list")
            self.problem = "an unexpected error occurred; the console's log has the details"
            self.stage = Stage.FAILED
        finally:
            self.sent.file.close()

    def _read_file(self) -> None:
        size = max(1, self.sent.file.seek(0, os.SEEK_END))
        self.sent.file.seek(0)
        for rows in _some(files.rows(self.sent.file, self.sent.kind, "the file", _MAX_YAML_VALUES)):
            self._check()
            began = time.monotonic()
            with suppress(UnicodeEncodeError):
                self.difference.want([(entry, comment) for _, entry, comment in rows])
                self.file_entries += len(rows)
                self.percent = min(100, self.sent.file.tell() * 100 // size)
                _rest(began)
                continue
            what = "an entry on this line or a few lines below contains a character that is not text"
            raise InputError(f"the file:{rows[0][0]}: {what}")
        if not self.file_entries:
            raise InputError("the file has no entries")

    async def read_list(self) -> None:
        async with ListClient(self.settings()) as client:
            await with_rereads(lambda: self._read_list(client))

    async def _read_list(self, client: ListClient) -> None:
        self.list_entries = 0
        self.difference.find_again()
        async with aclosing(client.entry_chunks(self.sent.info.name, self.sent.tenant)) as chunks:
            async for chunk in chunks:
                self._check()
                began = time.monotonic()
                self.difference.find(chunk)
                self.list_entries += len(chunk)
                _rest(began)

    def _find_dangers(self) -> None:
        """Checks only additions, as `scanbridge lists` does."""
        for number, each in enumerate(self.difference.changes(Kind.ADD)):
            if number % _ROWS == 0:
                self._check()
                time.sleep(0)  # other threads
            if self.dangers_of.may_be(each.entry) and (why := self.dangers_of.reason(self.category, each.entry)):
                self.dangers[each.entry] = why
                if len(self.dangers) >= MAX_DANGERS:
                    return

    def _check(self) -> None:
        if self._cancelled.is_set():
            raise UploadCancelled("it was cancelled")

    async def apply(self, deleted: Tally, added: Tally, why_not: Callable[[], str], done: Callable[[int], None]) -> str:
        """Delete first, then add and update, then compare again. Returns what is wrong, or "". Raises BridgeError.

        It ends early as soon as `why_not` gives a reason.
        """
        name, tenant = self.sent.info.name, self.sent.tenant

        def until_hindered(kind: Kind) -> Iterator[ListEntry]:
            for number, each in enumerate(self.difference.changes(kind)):
                if number % _ROWS == 0 and (why_not() or len(added.refused) > MAX_REFUSED):
                    return
                yield each

        async with ListClient(self.settings()) as client:
            if self.sent.prune:
                unwanted = (each.entry for each in until_hindered(Kind.DELETE))
                await client.delete(name, unwanted, tenant, tally=deleted, progress=done)
            for kind in (Kind.UPDATE, Kind.ADD):
                await client.add(name, until_hindered(kind), tenant, keep_going=True, tally=added, progress=done)
        if reason := why_not():
            return reason
        if len(added.refused) > MAX_REFUSED:
            return f"more than {MAX_REFUSED:,} entries were refused"
        await self.read_list()
        number, example = self.difference.still_different(added.refused, prune=self.sent.prune)
        return still_different(number, example) if number else ""


def _some(rows: Iterator[files.Row]) -> Iterator[list[files.Row]]:
    some: list[files.Row] = []
    for row in rows:
        some.append(row)
        if len(some) == _ROWS:
            yield some
            some = []
    if some:
        yield some


def _rest(began: float) -> None:
    """At half speed: Python's threads take turns, and pages must not wait."""
    time.sleep(min(time.monotonic() - began, 0.05))


class Uploads:
    """Must be used in the event loop."""

    def __init__(self) -> None:
        self._kept: dict[str, Upload] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, upload: Upload, queue: Queue) -> str:
        """Prepare it in the background. One for each person, and a few in total. Returns its number.

        Raises Refused if too many are waiting.
        """
        place = ExitStack()
        place.enter_context(queue.place())
        self._make_room(upload.sent.owner)
        number = new_token()[:22]
        self._kept[number] = upload
        task = asyncio.create_task(self._prepare(upload, queue, place))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return number

    def find(self, number: str, owner: str) -> Upload | None:
        found = self._kept.get(number)
        return found if found is not None and found.sent.owner == owner else None

    def remove(self, number: str) -> None:
        """If it is being prepared, it ends soon."""
        upload = self._kept.pop(number, None)
        if upload is not None:
            upload.cancel()
            if upload.is_prepared:
                upload.difference.close()

    async def stop(self) -> None:
        for upload in self._kept.values():
            upload.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    async def _prepare(self, upload: Upload, queue: Queue, place: ExitStack) -> None:
        with place:
            await to_thread.run_sync(upload.prepare, limiter=queue.limiter)
        if upload not in self._kept.values():
            upload.difference.close()

    def forget_old(self) -> None:
        old = time.time() - _KEPT_S
        for number, each in self._idle().items():
            if each.made_at < old:
                self.remove(number)

    def _idle(self) -> dict[str, Upload]:
        """Those that are not being applied, the oldest first."""
        return {number: each for number, each in self._kept.items() if each.stage is not Stage.APPLYING}

    def _make_room(self, owner: str) -> None:
        self.forget_old()
        for number, each in self._idle().items():
            if each.sent.owner == owner:
                self.remove(number)
        for number in self._idle():
            if len(self._kept) >= _MAX:
                self.remove(number)
