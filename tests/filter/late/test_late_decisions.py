"""Scans that continue after the deadline: how they are awaited, what is stored, and how they end early."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import Saturated, ScanUnavailable
from bridge.filter.late.decisions import LateDecisions, LateScanEnd, LateSettings, LateStatus, _this_process
from bridge.filter.late.fingerprint import envelope_hash, fingerprint
from bridge.filter.late.store import Entry, LateStore, LateStoreError, MemoryStore, SqlStore
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.testing import eventually

ENVELOPE = Envelope("a@example.org", (Recipient("b@example.org"),))
RESULT = AnalysisResult(Decision.DELIVER, "ggrid", "clean")


def message(content: bytes = b"Subject: x\r\n\r\nx\r\n") -> Message:
    mail = Message(Spool(1 << 30))
    mail.write(content)
    return mail


class FakeScan:
    """Ends when the test sets its result."""

    def __init__(self) -> None:
        self.end: asyncio.Future[AnalysisResult] = asyncio.get_running_loop().create_future()
        self.abandoned = 0
        self.released = 0

    async def result(self) -> AnalysisResult:
        return await self.end

    def abandon(self) -> None:
        self.abandoned += 1

    def release(self) -> None:
        self.released += 1


class Case:
    """Late decisions under test, and a mail for them."""

    def __init__(self, late: LateDecisions, ends: list[LateScanEnd]) -> None:
        self.late, self.ends = late, ends

    async def follow(self, content: bytes = b"Subject: x\r\n\r\nx\r\n") -> FakeScan:
        scan = FakeScan()
        await self.late.follow(None, ENVELOPE, message(content), scan, scan.release)
        return scan

    async def look(self, content: bytes = b"Subject: x\r\n\r\nx\r\n") -> AnalysisResult | LateStatus | None:
        return await self.late.look_up(None, ENVELOPE, message(content))

    async def all_ended(self) -> None:
        await eventually(lambda: not self.late.running, "all scans to end")


@asynccontextmanager
async def running(store: LateStore | None = None, **settings: Any) -> AsyncIterator[Case]:
    ends: list[LateScanEnd] = []
    late = LateDecisions(LateSettings(**settings), store or MemoryStore(), ends.append)
    await late.start()
    try:
        yield Case(late, ends)
    finally:
        await late.stop(0.0)


def stores(tmp_path: Path) -> list[LateStore]:
    return [MemoryStore(), SqlStore.in_file(tmp_path / "late.sqlite")]


@pytest.mark.parametrize("which", [0, 1], ids=["memory", "sqlite"])
async def test_a_mail_that_is_sent_again_gets_its_decision(tmp_path: Path, which: int) -> None:
    """RUNNING first, then the decision, any number of times; another mail of the same sender is not affected."""
    async with running(stores(tmp_path)[which]) as case:
        assert case.late.is_empty() and await case.look() is None
        scan = await case.follow()
        assert not case.late.is_empty() and case.late.running == 1
        assert await case.look() is LateStatus.RUNNING
        assert await case.look(b"other\r\n") is None
        assert scan.released == 0
        scan.end.set_result(RESULT)
        await case.all_ended()
        assert scan.released == 1
        assert [await case.look() for _ in range(3)] == [RESULT] * 3
        assert case.ends == [LateScanEnd.KEPT]


@pytest.mark.parametrize(
    "end",
    [ScanUnavailable("gone"), Saturated("full"), AnalysisResult(Decision.UNDECIDED)],
    ids=["unavailable", "saturated", "undecided"],
)
async def test_a_scan_without_decision_lets_the_next_try_scan(end: Any) -> None:
    """If "undecided" were stored, it would be the answer for a day."""
    async with running() as case:
        scan = await case.follow()
        if isinstance(end, AnalysisResult):
            scan.end.set_result(end)
        else:
            scan.end.set_exception(end)
        await case.all_ended()
        assert scan.released == 1 and case.ends == [LateScanEnd.FAILED]
        assert await case.look() is None


async def test_a_scan_is_given_up_at_its_limit() -> None:
    """The slot is free again, and the connection is closed."""
    async with running(scan_limit_s=0.05) as case:
        scan = await case.follow()
        await eventually(lambda: scan.released, "the slot to be free")
        assert scan.abandoned and await case.look() is None


async def test_the_same_mail_twice_keeps_one_scan() -> None:
    """The slot of the second scan is given back."""
    async with running() as case:
        first, second = await case.follow(), await case.follow()
        assert (second.abandoned, second.released) == (1, 1)
        assert (first.abandoned, first.released) == (0, 0)
        assert await case.look() is LateStatus.RUNNING


async def test_a_decision_is_not_kept_beyond_its_age() -> None:
    """After a day the mail is scanned again."""
    store = MemoryStore()
    async with running(store, max_age_s=86400.0) as case:
        (await case.follow()).end.set_result(RESULT)
        await case.all_ended()
        assert await case.look() == RESULT
        (entry,) = store._entries.values()
        for age_s, found in ((86300.0, RESULT), (86500.0, None)):
            store.put(replace(entry, changed_at=time.time() - age_s))
            assert await case.look() == found


async def test_a_stop_waits_for_running_scans_and_then_ends_them(tmp_path: Path) -> None:
    """One ends in time and survives the restart; the other is abandoned and scanned again."""
    store = SqlStore.in_file(tmp_path / "late.sqlite")
    async with running(store) as case:
        quick, slow = await case.follow(b"quick\r\n"), await case.follow(b"slow\r\n")
        asyncio.get_running_loop().call_later(0.05, quick.end.set_result, RESULT)
        await case.late.stop(0.2)
        assert quick.released == slow.released == 1 and slow.abandoned
    async with running(store) as case:
        assert await case.look(b"quick\r\n") == RESULT
        assert await case.look(b"slow\r\n") is None


async def test_after_a_stop_no_scan_is_followed() -> None:
    """A mail whose session was closed at the end of the drain time leaves nothing behind."""
    async with running() as case:
        await case.late.stop(0.0)
        scan = await case.follow()
        assert (scan.abandoned, scan.released) == (1, 1) and case.late.is_empty()


async def test_a_scan_of_a_dead_process_is_not_awaited(tmp_path: Path) -> None:
    """After kill -9 its answer will never arrive."""
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()

    key = await fingerprint(None, ENVELOPE, message())
    entry = Entry(key, envelope_hash(None, ENVELOPE), time.time(), f"{os.uname().nodename}/{dead.pid}/12345")
    elsewhere = f"not-{os.uname().nodename}/1/2"
    store = SqlStore.in_file(tmp_path / "late.sqlite")
    store.open()
    for owner, expected in [
        (entry.owner, None),
        (f"{os.uname().nodename}/{os.getpid()}/12345", None),  # another process has its pid now
        (_this_process(), LateStatus.RUNNING),
        (elsewhere, LateStatus.RUNNING),
        ("damaged", None),
    ]:
        store.put(replace(entry, owner=owner))
        async with running(SqlStore.in_file(tmp_path / "late.sqlite")) as case:
            assert await case.look() is expected
    store.put(replace(entry, owner=elsewhere, changed_at=time.time() - 200))
    async with running(SqlStore.in_file(tmp_path / "late.sqlite")) as case:
        assert await case.look() is None  # that machine has not updated its entry for three minutes
    store.close()


async def test_a_clock_that_was_ahead_had_a_mail_deferred_until_that_time(tmp_path: Path) -> None:
    """Another machine died during a scan, and its entry seemed recent for as long as its clock had been ahead."""
    key = await fingerprint(None, ENVELOPE, message())
    owner = f"not-{os.uname().nodename}/1/2"
    store = SqlStore.in_file(tmp_path / "late.sqlite")
    store.open()
    for ahead_s, expected in ((600.0, LateStatus.RUNNING), (86_400.0, None)):
        store.put(Entry(key, envelope_hash(None, ENVELOPE), time.time() + ahead_s, owner))
        async with running(SqlStore.in_file(tmp_path / "late.sqlite")) as case:
            assert await case.look() is expected
    store.close()


async def test_a_clock_that_was_ahead_kept_a_decision_until_that_time(tmp_path: Path) -> None:
    """A mail was delivered on the decision of a year ago, and newer decisions were removed in its place."""
    key = await fingerprint(None, ENVELOPE, message())
    store = SqlStore.in_file(tmp_path / "late.sqlite")
    store.open()
    for ahead_s, expected in ((600.0, RESULT), (86_400.0 * 365, None)):
        store.put(Entry(key, envelope_hash(None, ENVELOPE), time.time() + ahead_s, "", RESULT))
        async with running(SqlStore.in_file(tmp_path / "late.sqlite"), purge_s=0.05, refresh_s=0.01) as case:
            assert await case.look() == expected
            if expected is None:
                await eventually(lambda: store.get(key) is None, "the entry to be removed")
    store.close()


async def test_workers_learn_of_each_others_mail(tmp_path: Path) -> None:
    """The retry may immediately reach another process than the first attempt."""
    async with (
        running(SqlStore.in_file(tmp_path / "late.sqlite"), refresh_s=60.0) as first,
        running(SqlStore.in_file(tmp_path / "late.sqlite"), refresh_s=60.0) as second,
    ):
        assert second.late.is_empty()
        scan = await first.follow()
        assert not second.late.is_empty()
        assert await second.look() is LateStatus.RUNNING
        scan.end.set_result(RESULT)
        await first.all_ended()
        await first.look()  # queued after the write
        assert await second.look() == RESULT


async def test_expired_envelopes_are_forgotten(tmp_path: Path) -> None:
    """When the store is empty again, mail is no longer hashed."""
    for store in stores(tmp_path):
        async with running(store, max_age_s=0.2, refresh_s=0.01, purge_s=0.02) as case:
            (await case.follow()).end.set_result(RESULT)
            await case.all_ended()
            running_scan = await case.follow(b"second\r\n")
            await eventually(lambda: len(case.late._envelopes) == 1, "the first entry to expire", 5.0)
            assert await case.look(b"second\r\n") is LateStatus.RUNNING
            running_scan.end.set_exception(ScanUnavailable("gone"))
            await eventually(case.late.is_empty, "the store to be empty", 5.0)


class Broken(MemoryStore):
    """A store on a full disk."""

    def put(self, entry: Entry) -> None:
        raise LateStoreError("disk full")

    get = remove = envelopes = purge = put  # type: ignore[assignment]


async def test_a_store_that_fails_is_replaced_by_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Entries it did not accept are kept in memory, and the failure is logged once."""
    async with running(Broken()) as case:
        for content in (b"1\r\n", b"2\r\n"):
            (await case.follow(content)).end.set_result(RESULT)
        await case.all_ended()
        assert await case.look(b"1\r\n") == await case.look(b"2\r\n") == RESULT
    assert [r.getMessage() for r in caplog.records].count(
        "late decisions: the store failed (disk full); new entries are kept only in memory"
    ) == 1


async def test_a_store_that_cannot_be_opened_does_not_stop_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Late decisions are then kept in memory."""
    async with running(SqlStore.in_file(tmp_path / "nowhere/late.sqlite")) as case:
        (await case.follow()).end.set_result(RESULT)
        await case.all_ended()
        assert await case.look() == RESULT
    assert "only in memory" in caplog.text


async def test_a_store_that_hangs_does_not_block_mail() -> None:
    """The mail is scanned after a short while."""

    class Hanging(MemoryStore):
        def put(self, entry: Entry) -> None:
            threading.Event().wait(0.3)

    async with running(Hanging(), lookup_limit_s=0.05, close_limit_s=0.05) as case:
        (await case.follow()).end.set_result(RESULT)
        await case.all_ended()
        assert await case.look() is None


async def test_a_client_that_goes_away_while_its_large_mail_is_hashed_costs_nothing() -> None:
    """Slot and connection are given back."""
    async with running() as case:
        scan, large = FakeScan(), message(b"x" * 5_000_000)
        task = asyncio.create_task(case.late.follow(None, ENVELOPE, large, scan, scan.release))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        large.close()
        assert (scan.abandoned, scan.released) == (1, 1) and case.late.running == 0
