"""Synchronises a list with a file: computes the difference, then changes only what differs.

No state is kept between runs. To resume a run that was killed, run it again: the difference is then
what remains, and every request can be repeated. Entries are compared exactly as written, because
only the service knows which spellings are the same entry. Deletions come first, so that a changed
spelling is replaced and a full list has room.
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
WantedEntries = Mapping[str, str | None]  # entry -> its comment; None: keep the comment in the list

_READS = 3  # attempts to read a whole list, each from the start


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes after which the list has exactly the wanted entries and comments."""

    additions: list[ListEntry]
    updates: list[ListEntry]  # in the list, but with another comment
    deletions: list[str]
    size: int  # number of entries before the changes

    @property
    def share_deleted(self) -> float:
        return len(self.deletions) / self.size if self.size else 0.0

    def is_empty(self, *, prune: bool) -> bool:
        return not (self.additions or self.updates or (prune and self.deletions))

    def check_fits(self, max_size: int, *, prune: bool) -> None:
        """Raises ListFull, before anything is changed, if the list would exceed its maximum size."""
        check_fits(max_size, self.size, len(self.additions), len(self.deletions) if prune else 0)


@dataclass(slots=True)
class Applied:
    """How far the changes have been made."""

    deleted: Tally = field(default_factory=Tally)
    added: Tally = field(default_factory=Tally)  # includes updates: the service does not distinguish them


def check_fits(max_size: int, size: int, additions: int, deletions: int) -> None:
    """Raises ListFull."""
    after = size + additions - deletions
    if 0 < max_size < after and additions:
        raise ListFull(f"the list would have {after:,} entries, but its maxSize is {max_size:,}")


async def difference(
    client: ListClient, name: str, wanted: WantedEntries, tenant: str | None = None, progress: Progress | None = None
) -> Difference:
    """Stream the list and compare. Holds the wanted entries and the difference in memory. Raises ListsError."""

    async def read() -> Difference:
        async with aclosing(client.entry_chunks(name, tenant)) as chunks:
            return await _compare(chunks, wanted, progress)

    return await with_rereads(read)


async def with_rereads(read: Callable[[], Awaitable[T]]) -> T:
    """`read` a whole list; if its stream is cut off in the middle, start over, at most three times in all."""
    for _ in range(_READS - 1):
        try:
            return await read()
        except ListsUnavailable as exc:
            if not exc.received:  # the client has already used up its patience
                raise
    return await read()


async def _compare(
    chunks: AsyncIterator[list[ListEntry]], wanted: WantedEntries, progress: Progress | None
) -> Difference:
    missing = dict(wanted)
    updates: dict[str, ListEntry] = {}
    deletions: dict[str, None] = {}
    size = 0
    async for chunk in chunks:
        for present in chunk:
            entry = present.entry
            if entry not in wanted:
                deletions[entry] = None
                continue
            missing.pop(entry, None)
            comment = wanted[entry]
            if comment is not None and comment != present.comment:
                updates[entry] = ListEntry(entry, comment)
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
    """Delete (only with `prune`), then add and update. `applied` is correct even if this raises ListsError."""
    applied = Applied() if applied is None else applied
    if prune:
        await client.delete(name, change.deletions, tenant, tally=applied.deleted, progress=progress)
    wanted = [*change.updates, *change.additions]
    await client.add(name, wanted, tenant, keep_going=keep_going, tally=applied.added, progress=progress)
    return applied
