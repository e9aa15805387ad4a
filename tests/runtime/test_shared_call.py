"""Work that is done once for all who wait for it."""

from __future__ import annotations

import asyncio

import pytest

from bridge.runtime.shared_call import SharedCall


async def test_all_who_wait_get_one_result() -> None:
    """The next caller after that gets a new one; a caller that gives up does not end the work of the others."""
    started, go = 0, asyncio.Event()

    async def work() -> int:
        nonlocal started
        started += 1
        await go.wait()
        return started

    shared = SharedCall(work)
    impatient = asyncio.create_task(shared())
    others = [asyncio.create_task(shared()) for _ in range(3)]
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    go.set()
    assert await asyncio.gather(*others) == [1, 1, 1]
    assert await shared() == 2


async def test_a_failure_is_everybodys_and_is_not_kept() -> None:
    results = iter([ValueError("first"), None])

    async def work() -> None:
        await asyncio.sleep(0)
        if (found := next(results)) is not None:
            raise found

    shared = SharedCall(work)
    failed = await asyncio.gather(shared(), shared(), return_exceptions=True)
    assert [str(exc) for exc in failed] == ["first", "first"]
    await shared()


async def test_it_can_be_stopped() -> None:
    shared = SharedCall(asyncio.Event().wait)
    waiting = asyncio.create_task(shared())
    await asyncio.sleep(0)
    await shared.stop()
    with pytest.raises(asyncio.CancelledError):
        await waiting
