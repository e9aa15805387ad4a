"""Counts over several processes: exact, whatever happens to the processes."""

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
from bridge.daemon.workers.shared_counters import Ledger
from bridge.daemon.workers.shared_snapshots import Boards
from bridge.daemon.workers.worker_context import Share, SharedAdmission, SharedSpool
from bridge.errors import Saturated
from bridge.filter.admission import AdmissionSettings
from tests.daemon.process_kit import ROOT, environment


def test_random_deaths_neither_pass_the_limit_nor_lose_a_slot() -> None:
    """Four processes take and give back for two seconds, about a hundred are killed; the sums hold and end at 0."""
    hammer = [sys.executable, str(Path(__file__).with_name("hammer.py")), "2", "4", "7", "100000"]
    done = subprocess.run(
        hammer, env=environment(PYTHONPATH=str(ROOT)), capture_output=True, text=True, timeout=90, check=True
    )
    seen = json.loads(done.stdout)
    assert seen["wrong"] == 0 and seen["most"] == 7 and seen["most_bytes"] <= 100_000
    assert seen["killed"] > 20 and seen["fullest_deaths"] > 0  # some died with slots in their hands
    assert (seen["left"], seen["left_bytes"]) == (0, 0)


def test_a_process_that_dies_with_the_lock_blocks_nobody() -> None:
    """The kernel ends the lock with the process."""
    ledger = Ledger(2)
    with ledger_locked_by_another(ledger), pytest.raises(BlockingIOError):
        fcntl.lockf(ledger._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert ledger.mails(1).take(1, 1) == 0


def test_a_slot_far_from_the_limit_needs_no_lock() -> None:
    """Of 7 slots and 2 rows: 5 at once, the last 2 under the lock."""
    ledger = Ledger(2)
    one, two = ledger.mails(0), ledger.mails(1)
    with ledger_locked_by_another(ledger):
        assert [one.take_one(7), two.take_one(7), one.take_one(7), two.take_one(7), one.take_one(7)] == [0, 1, 2, 3, 4]
    assert [two.take_one(7), one.take_one(7), two.take_one(7)] == [5, 6, None]
    assert (one.own, two.own) == (4, 3)


@pytest.mark.parametrize(("others", "before"), [(6, 6), (7, None)])
def test_who_was_slow_to_take_a_slot_asks_under_the_lock(others: int, before: int | None) -> None:
    """Between his look at the sum and his taking, others have taken all but one, or all."""
    ledger = Ledger(2)
    column = ledger.mails(0)

    class Meanwhile(list[int]):
        def __setitem__(self, row: Any, count: Any) -> None:
            super().__setitem__(row, count)
            super().__setitem__(1, others)

    column._cells = Meanwhile([0, 0])  # type: ignore[assignment]
    assert column.take_one(7) == before
    assert column._cells == [int(before is not None), others]


def test_admission_counts_all_rows() -> None:
    """Two workers share slots and throttle; a dead one's are free at once."""
    ledger = Ledger(2)
    one, two = (SharedAdmission(AdmissionSettings(6, 2, 10.0), ledger.mails(row)) for row in range(2))
    assert [one.enter(), two.enter(), one.enter(), two.enter(), one.enter()] == pytest.approx([0, 0, 2.5, 5, 7.5])
    assert one.delay() == two.delay() == 10 and one.in_processing == 5 and not two.is_full
    assert two.enter() == 10 and one.is_full
    with pytest.raises(Saturated):
        one.enter()
    ledger.clear(1)
    assert one.in_processing == 3
    for _ in range(3):
        one.leave()
    assert two.in_processing == 0


def test_bytes_count_in_all_rows() -> None:
    """What one worker holds is not there for the other."""
    ledger = Ledger(2)
    one, two = (SharedSpool(100, 10, None, ledger.bytes(row)) for row in range(2))
    one.take(60)
    with pytest.raises(Saturated):
        two.take(41)
    two.take(40)
    assert one.in_use == 100
    one.give_back(60)
    assert two.in_use == 40


def test_a_worker_with_mail_keeps_a_reserve_and_one_without_keeps_nothing() -> None:
    """Small takes need no lock; near the limit the reserve is what is left, and the limit is not passed."""
    ledger = Ledger(2)
    one, two = (SharedSpool(100_000, 10, None, ledger.bytes(row)) for row in range(2))
    one.take(50)
    assert one.in_use == 150  # a thousandth of the limit is in reserve
    with ledger_locked_by_another(ledger):
        one.take(100)  # from the reserve: it waits for nobody
    assert one.in_use == 150
    two.take(99_850)
    with pytest.raises(Saturated):
        one.take(1)
    with pytest.raises(Saturated):
        two.take(1)
    assert one.in_use == 100_000
    one.give_back(100)
    one.take(60)
    assert one.in_use == 100_000
    for spool, count in ((one, 50), (two, 99_850), (one, 60)):
        spool.give_back(count)
    assert one.in_use == two.in_use == 0


def test_who_has_many_more_connections_than_another_is_ahead() -> None:
    """Of those that take some, and live; a process that takes none, or hangs, is nobody to wait for."""
    ledger = Ledger(4)
    shares = [Share(row, ledger, Boards(1), Sockets(), supervisor=0, lifeline=-1) for row in range(4)]
    counts = [20, 12, 0, 0]
    for share in shares:
        ledger.set_ready(share.row, True)
        ledger.beat(share.row, time.monotonic())
        share.connections = lambda row=share.row: counts[row]  # type: ignore[misc]
    assert not shares[0].is_ahead()  # nobody else has told
    for share in shares[1:3]:
        share.tell_connections()
    assert shares[0].is_ahead() and shares[1].is_ahead()  # of the third; the fourth is no worker
    counts[2] = 10
    assert not shares[2].is_ahead()
    assert not shares[0].is_ahead()  # by less than eight and a quarter
    counts[0] = 21
    assert shares[0].is_ahead()
    ledger.set_ready(2, False)  # it closes
    assert not shares[0].is_ahead()
    counts[0] = 23
    assert shares[0].is_ahead()  # of the second
    ledger.beat(1, time.monotonic() - 3)  # it hangs
    assert not shares[0].is_ahead()


@contextmanager
def ledger_locked_by_another(ledger: Ledger) -> Iterator[None]:
    """Whoever wants the lock meanwhile waits for ever."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        fcntl.lockf(ledger._lock, fcntl.LOCK_EX)
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


def test_a_board_shows_the_last_whole_edition() -> None:
    """Also when its writer was killed in the middle of the next one."""
    boards = Boards(2)
    assert boards.read(0) == b""
    for text in (b"one", b"two", b"three" * 1000):
        boards.write(0, text)
        assert boards.read(0) == text and boards.read(1) == b""
    half = boards._half(0, boards.edition(0) + 1)
    boards._memory[half : half + 100] = b"x" * 100  # the death in the middle
    assert boards.read(0) == b"three" * 1000
    with pytest.raises(ValueError, match="do not fit"):
        boards.write(0, b"x" * 2_000_000)
    boards.clear(0)
    assert boards.read(0) == b""
