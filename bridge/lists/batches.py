"""Sends many entries in requests of at most 500, a few in parallel, and counts what happened.

If a batch fails, no new one is started, and those in flight are finished. So the counts say exactly
what was done; only requests whose answer was lost, or cannot be read, are uncertain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from bridge.api.lists import MAX_ENTRIES_PER_REQUEST
from bridge.lists.errors import ListsError, ListsUnavailable, ListsUncertain

T = TypeVar("T")
Progress = Callable[[int], None]  # called with the number of entries that were just processed


@dataclass(slots=True)
class Tally:
    """The counts of one operation, correct at any time, even after a failure or an interruption."""

    confirmed: int = 0  # entries in requests that the service confirmed
    modified: int = 0  # the sum of its modifiedEntries
    uncertain: int = 0  # entries in requests without a readable answer: they may or may not have been processed
    refused: dict[str, str] = field(default_factory=dict)  # entry -> reason, of entries skipped with keep_going


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A confirmed batch: its modifiedEntries, and how many of its entries the service refused."""

    modified: int
    refused: int = 0


async def run(
    send: Callable[[list[T]], Awaitable[BatchResult]],
    items: Iterable[T] | AsyncIterable[T],
    parallel: int,
    tally: Tally,
    progress: Progress | None = None,
) -> None:
    """Call `send` for every batch. Raises the first ListsError."""
    source = _batches(items)
    failed: list[ListsError] = []
    reading = asyncio.Lock()  # an async generator allows only one reader at a time

    async def work() -> None:
        while not failed:
            async with reading:
                batch = await anext(source, None)
            if batch is None or failed:
                return
            tally.uncertain += len(batch)
            try:
                result = await send(batch)  # not `+= await send(...)`: that would lose concurrent additions
                tally.modified += result.modified
                tally.confirmed += len(batch) - result.refused
                tally.uncertain -= len(batch)
            except ListsError as exc:
                failed.append(exc)
                if not isinstance(exc, ListsUnavailable | ListsUncertain):
                    tally.uncertain -= len(batch)
                return
            if progress is not None:
                progress(len(batch))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(parallel):
                group.create_task(work())
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from None  # an error of the source, such as an unreadable file
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
