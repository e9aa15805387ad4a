"""A list made equal to a file: first the difference, then only what differs.

Nothing is remembered between runs. A run that was killed is resumed by running again: the
difference is then what is left, and every request may be repeated. Entries are compared exactly
as written, because only the service knows which spellings are one entry; what is deleted goes
first, so that a changed spelling is replaced and a full list gets room.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

from bridge.api.lists import ListEntry
from bridge.lists.batches import Progress, Tally
from bridge.lists.client import ListClient
from bridge.lists.errors import ListFull, ListsUnavailable

T = TypeVar("T")
Wanted = Mapping[str, str | None]  # entry -> its comment; None: whatever comment the list has

_READS = 3  # a stream that is cut is read again from its start, this often


@dataclass(frozen=True, slots=True)
class Difference:
    """What to do so that the list has the wanted entries and comments, and no others."""

    additions: list[ListEntry]
    updates: list[ListEntry]  # there, with another comment
    deletions: list[str]
    size: int  # of the list now

    @property
    def share_deleted(self) -> float:
        return len(self.deletions) / self.size if self.size else 0.0

    def is_empty(self, *, prune: bool) -> bool:
        return not (self.additions or self.updates or (prune and self.deletions))

    def check_fits(self, max_size: int, *, prune: bool) -> None:
        """Raises ListFull, before anything is changed, when the list would be larger than it may."""
        after = self.size + len(self.additions) - (len(self.deletions) if prune else 0)
        if 0 < max_size < after and self.additions:
            raise ListFull(f"the list would have {after:,} entries, its maxSize is {max_size:,}")


@dataclass(slots=True)
class Applied:
    """How far it came."""

    deleted: Tally = field(default_factory=Tally)
    added: Tally = field(default_factory=Tally)  # and updated: to the service it is one thing


async def difference(
    client: ListClient, name: str, wanted: Wanted, tenant: str | None = None, progress: Progress | None = None
) -> Difference:
    """Stream the list and compare. Memory: the file's entries and the difference. Raises ListsError."""

    async def read() -> Difference:
        async with aclosing(client.entry_chunks(name, tenant)) as chunks:
            return await _compare(chunks, wanted, progress)

    return await reading_again(read)


async def reading_again(read: Callable[[], Awaitable[T]]) -> T:
    """`read` a whole list; when its stream is cut in the middle, from the start again, a few times."""
    for _ in range(_READS - 1):
        try:
            return await read()
        except ListsUnavailable as exc:
            if not exc.received:  # it has been tried long enough already
                raise
    return await read()


async def _compare(chunks: AsyncIterator[list[ListEntry]], wanted: Wanted, progress: Progress | None) -> Difference:
    missing = dict(wanted)
    updates: dict[str, ListEntry] = {}
    deletions: dict[str, None] = {}
    size = 0
    async for chunk in chunks:
        for one in chunk:
            if one.entry not in wanted:
                deletions[one.entry] = None
                continue
            missing.pop(one.entry, None)
            comment = wanted[one.entry]
            if comment is not None and comment != one.comment:
                updates[one.entry] = ListEntry(one.entry, comment)
        size += len(chunk)
        if progress is not None:
            progress(len(chunk))
    additions = [ListEntry(entry, comment or "") for entry, comment in missing.items()]
    return Difference(additions, list(updates.values()), list(deletions), size)


async def apply(
    client: ListClient,
    name: str,
    change: Difference,
    tenant: str | None = None,
    *,
    prune: bool,
    keep_going: bool = False,
    applied: Applied | None = None,
    progress: Progress | None = None,
) -> Applied:
    """Delete (only with `prune`), then add and update. `applied` is right even when this raises ListsError."""
    applied = Applied() if applied is None else applied
    if prune:
        await client.delete(name, change.deletions, tenant, tally=applied.deleted, progress=progress)
    wanted = [*change.updates, *change.additions]
    await client.add(name, wanted, tenant, keep_going=keep_going, tally=applied.added, progress=progress)
    return applied
