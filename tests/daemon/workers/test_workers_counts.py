"""Counters shared by several processes are exact, whatever happens to the processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.daemon.sockets import Sockets
from bridge.daemon.workers.aggregate import SharedRow
from bridge.daemon.workers.shared_counters import SharedCounters
from bridge.daemon.workers.shared_snapshots import SharedSnapshots
from bridge.daemon.workers.worker_context import SupervisedWorker
from bridge.errors import Saturated
from bridge.filter.admission import Admission, AdmissionSettings
from bridge.mail.message import Spool
from tests.daemon.process_kit import ROOT, environment


def test_random_kills_neither_exceed_the_limit_nor_lose_a_slot() -> None:
    """Four processes take and give back for two seconds while about a hundred are killed; the sums end at 0."""
    hammer = [sys.executable, str(Path(__file__).with_name("hammer.py")), "2", "4", "7", "100000"]
    done = subprocess.run(
        hammer, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=300, check=True
    )
    seen = json.loads(done.stdout)
    assert seen["wrong"] == 0 and seen["most"] == 7 and seen["most_bytes"] <= 100_000
    assert seen["killed"] > 20 and seen["fullest_deaths"] > 0  # some were killed while they held slots
    assert (seen["left"], seen["left_bytes"]) == (0, 0)


def test_a_process_that_dies_holding_the_lock_blocks_no_other() -> None:
    """The kernel releases the lock when the process ends."""
    counters = SharedCounters(2)
    with locked_by_another(counters), pytest.raises(BlockingIOError):
        fcntl.lockf(counters._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert counters.mails(1).take(1, 1) == 0


def test_a_slot_far_from_the_limit_needs_no_lock() -> None:
    """With 7 slots and 2 rows, 5 are taken without the lock and the last 2 under it."""
    counters = SharedCounters(2)
    first, second = counters.mails(0), counters.mails(1)
    with locked_by_another(counters):
        assert [column.take_one(7) for column in (first, second, first, second, first)] == [0, 1, 2, 3, 4]
    assert [column.take_one(7) for column in (second, first, second)] == [5, 6, None]
    assert (first.own, second.own) == (4, 3)


@pytest.mark.parametrize(("others", "before"), [(6, 6), (7, None)])
def test_a_slot_lost_to_others_meanwhile_is_decided_under_the_lock(others: int, before: int | None) -> None:
    """Between reading the sum and taking the slot, other processes took all but one, or all."""
    counters = SharedCounters(2)
    column = counters.mails(0)

    class ChangedMeanwhile(list[int]):
        def __setitem__(self, row: Any, count: Any) -> None:
            super().__setitem__(row, count)
            super().__setitem__(1, others)

    column._cells = ChangedMeanwhile([0, 0])  # type: ignore[assignment]
    assert column.take_one(7) == before
    assert column._cells == [int(before is not None), others]


def test_admission_counts_all_rows() -> None:
    """Two workers share slots and throttle; the slots of a dead one are free immediately."""
    counters = SharedCounters(2)
    first, second = (Admission(AdmissionSettings(6, 2, 10.0), counters.mails(row)) for row in range(2))
    assert [first.enter(), second.enter(), first.enter(), second.enter(), first.enter()] == pytest.approx(
        [0, 0, 2.5, 5, 7.5]
    )
    assert first.delay() == second.delay() == 10 and first.in_processing == 5 and not second.is_full
    assert second.enter() == 10 and first.is_full
    with pytest.raises(Saturated):
        first.enter()
    counters.clear(1)
    assert first.in_processing == 3
    for _ in range(3):
        first.leave()
    assert second.in_processing == 0


def shared_spool(limit: int, counters: SharedCounters, row: int) -> Spool:
    return context(counters, row).spool(limit, 10, None)


def context(counters: SharedCounters, row: int) -> SupervisedWorker:
    """A worker's, without a supervisor."""
    shared = SharedRow(row, counters, SharedSnapshots(1), supervisor=0, life=0, workers_wanted=counters.rows)
    return SupervisedWorker(shared, Sockets(), lifeline=-1)


def test_bytes_count_in_all_rows() -> None:
    """Bytes that one worker holds are not available to the other."""
    counters = SharedCounters(2)
    first, second = (shared_spool(100, counters, row) for row in range(2))
    first.take(60)
    with pytest.raises(Saturated):
        second.take(41)
    second.take(40)
    assert first.in_use == 100
    first.give_back(60)
    assert second.in_use == 40


def test_a_worker_with_mail_keeps_a_reserve_and_one_without_mail_keeps_none() -> None:
    """Small amounts need no lock; near the limit only the reserve is left, and the limit is not exceeded."""
    counters = SharedCounters(2)
    first, second = (shared_spool(100_000, counters, row) for row in range(2))
    first.take(50)
    assert first.in_use == 150  # a thousandth of the limit is in reserve
    with locked_by_another(counters):
        first.take(100)  # from the reserve, without the lock
    assert first.in_use == 150
    second.take(99_850)
    with pytest.raises(Saturated):
        first.take(1)
    with pytest.raises(Saturated):
        second.take(1)
    assert first.in_use == 100_000
    first.give_back(100)
    first.take(60)
    assert first.in_use == 100_000
    for spool, count in ((first, 50), (second, 99_850), (first, 60)):
        spool.give_back(count)
    assert first.in_use == second.in_use == 0


def test_a_worker_with_many_more_connections_than_another_is_ahead() -> None:
    """Only live workers that accept connections count; others could not take them over."""
    counters = SharedCounters(4)
    counts = [20, 12, 0, 0]
    checks = []
    for row in range(4):
        counters.set_ready(row, True)
        counters.beat(row, time.monotonic())
        check = context(counters, row).balance(lambda row=row: counts[row])  # type: ignore[misc]
        assert check is not None
        checks.append(check)
    assert not checks[0]()  # no other worker has reported yet
    for row in (1, 2):
        counters.set_connections(row, counts[row])
    assert checks[0]() and checks[1]()  # of the third; the fourth is not a worker
    counts[2] = 10
    assert not checks[2]()
    assert not checks[0]()  # by less than eight and a quarter
    counts[0] = 21
    assert checks[0]()
    counters.set_ready(2, False)  # it closes
    assert not checks[0]()
    counts[0] = 23
    assert checks[0]()  # of the second
    counters.beat(1, time.monotonic() - 3)  # it hangs
    assert not checks[0]()


@contextmanager
def locked_by_another(counters: SharedCounters) -> Iterator[None]:
    """A process that takes the lock in this context would wait forever."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(counters._lock, fcntl.LOCK_EX)
        os.write(writing, b"locked")
        signal.pause()
    try:
        assert os.read(reading, 6) == b"locked"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        for fd in (reading, writing):
            os.close(fd)


def test_a_snapshot_reads_as_its_last_complete_version() -> None:
    """Even if its writer was killed in the middle of writing the next one."""
    snapshots = SharedSnapshots(2)
    assert snapshots.read(0) == b""
    for text in (b"one", b"two", b"three" * 1000):
        snapshots.write(0, text)
        assert snapshots.read(0) == text and snapshots.read(1) == b""
    half = snapshots._half(0, snapshots.version(0) + 1)
    snapshots._memory[half : half + 100] = b"x" * 100  # killed in the middle
    assert snapshots.read(0) == b"three" * 1000
    with pytest.raises(ValueError, match="do not fit"):
        snapshots.write(0, b"x" * 2_000_000)
    snapshots.clear(0)
    assert snapshots.read(0) == b""
