"""Many entries as requests of at most 500, a few at a time, with an account of what happened.

When a batch fails, no new one is begun, and those under way are finished: so the account says
exactly what is done, and only what a lost connection left in doubt is uncertain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from bridge.api.lists import MAX_ENTRIES_PER_REQUEST
from bridge.lists.errors import ListsError, ListsUnavailable

T = TypeVar("T")
Progress = Callable[[int], None]  # called with the number of entries that have just been done


@dataclass(slots=True)
class Tally:
    """The account of one operation, right at every moment, also when it failed or was interrupted."""

    confirmed: int = 0  # entries in requests that the service answered with success
    modified: int = 0  # the sum of its modifiedEntries
    uncertain: int = 0  # entries in requests whose answer we do not have: done or not
    refused: dict[str, str] = field(default_factory=dict)  # entry -> reason, of those set aside to keep going


@dataclass(frozen=True, slots=True)
class Sent:
    """One batch's success: modifiedEntries, and how many of its entries the service would not have."""

    modified: int
    refused: int = 0


async def run(
    send: Callable[[list[T]], Awaitable[Sent]],
    items: Iterable[T] | AsyncIterable[T],
    parallel: int,
    tally: Tally,
    progress: Progress | None = None,
) -> None:
    """`send` every batch. Raises the first ListsError of one."""
    source = _batches(items)
    failed: list[ListsError] = []
    taking = asyncio.Lock()  # an async generator has one reader at a time

    async def work() -> None:
        while not failed:
            async with taking:
                batch = await anext(source, None)
            if batch is None or failed:
                return
            tally.uncertain += len(batch)
            try:
                sent = await send(batch)  # `+= await` would lose what others add meanwhile
                tally.modified += sent.modified
                tally.confirmed += len(batch) - sent.refused
                tally.uncertain -= len(batch)
            except ListsError as exc:
                failed.append(exc)
                if not isinstance(exc, ListsUnavailable):
                    tally.uncertain -= len(batch)
                return
            if progress is not None:
                progress(len(batch))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(work())
    except ExceptionGroup as several:
        raise several.exceptions[0] from None  # the source's own error: a file that cannot be read
    finally:
        await source.aclose()
    if failed:
        raise failed[0]


async def _batches(items: Iterable[T] | AsyncIterable[T]) -> AsyncGenerator[list[T], None]:
    batch: list[T] = []
    async for item in _each(items):
        batch.append(item)
        if len(batch) == MAX_ENTRIES_PER_REQUEST:
            yield batch
            batch = []
    if batch:
        yield batch


async def _each(items: Iterable[T] | AsyncIterable[T]) -> AsyncIterator[T]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
