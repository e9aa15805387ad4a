"""The automatic purge does not trust a clock that may be wrong: quarantined mail is the only copy."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge.daemon.quarantine_upkeep import QuarantineUpkeep
from bridge.errors import StoreError
from bridge.quarantine.purge_guard import ClockInDoubt, PurgeGuard
from bridge.quarantine.quarantine import Quarantine
from tests.quarantine.quarantine_kit import HEAD, make_tx

DAY_S = 86400.0
RETENTION_S = 30 * DAY_S


class Clock:
    """A machine's two clocks."""

    def __init__(self) -> None:
        self.now, self.up = 1_800_000_000.0, 1000.0

    def guard(self) -> PurgeGuard:
        return PurgeGuard(lambda: self.now, lambda: self.up)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.up += seconds

    def check(self, guard: PurgeGuard, *kept_at: float, retention_s: float = RETENTION_S) -> bool:
        """Whether the purge may run."""
        try:
            guard.check(kept_at, self.now - retention_s)
        except ClockInDoubt:
            return False
        return True


async def test_a_clock_that_was_ahead_emptied_the_quarantine(tmp_path: Path) -> None:
    """The daemon started with it; an operator's own command still removes the mail."""
    quarantine = Quarantine(tmp_path)
    for age_s in (31 * DAY_S, 40 * DAY_S):  # as they look by that clock
        tx = make_tx()
        await quarantine.keep(tx, HEAD, {})
        os.utime(tmp_path / f"{tx.id}.json", (time.time() - age_s,) * 2)
    running = SimpleNamespace(
        core=SimpleNamespace(worker=None, state=tmp_path),
        components=SimpleNamespace(quarantine=quarantine),
        config=SimpleNamespace(quarantine=SimpleNamespace(retention=RETENTION_S)),
    )
    upkeep = QuarantineUpkeep(cast(Any, running))
    await quarantine.keep(make_tx(), HEAD, {})  # by the same clock: it proves nothing
    for _ in range(2):
        with pytest.raises(StoreError, match="2 of 3 mails would be removed at once"):
            await upkeep._purge()
    assert len(quarantine.ids()) == 3
    assert await quarantine.purge(RETENTION_S) == 2
    await quarantine.close()


def test_a_clock_that_jumped_while_the_daemon_ran_emptied_the_quarantine() -> None:
    clock = Clock()
    guard, kept_at = clock.guard(), clock.now
    clock.pass_time(3600)
    assert clock.check(guard, kept_at)
    clock.now += 31 * DAY_S
    new = clock.now
    clock.pass_time(3600)
    assert not clock.check(guard, kept_at, new, new, new), "though most of the store is new"
    clock.now -= 31 * DAY_S  # somebody has set it right
    assert clock.check(guard, kept_at)


def test_a_jump_is_believed_after_a_day_even_if_others_follow() -> None:
    """A machine that is suspended every night removes old mail all the same."""
    clock = Clock()
    guard, kept_at = clock.guard(), clock.now
    assert clock.check(guard, kept_at)
    allowed = []
    for _ in range(3):
        clock.now += 8 * 3600
        for _ in range(16):
            clock.pass_time(3600)
            allowed.append(clock.check(guard, kept_at))
    assert allowed.index(True) == 24  # hours that the machine was awake


def test_a_store_that_really_is_old_is_removed_after_a_day() -> None:
    clock = Clock()
    kept_at = clock.now - 60 * DAY_S
    guard = clock.guard()
    assert not clock.check(guard, kept_at)
    clock.pass_time(DAY_S - 60)
    assert not clock.check(guard, kept_at)
    clock.pass_time(60)
    assert clock.check(guard, kept_at)


def test_ordinary_purges_are_not_delayed() -> None:
    """A backlog after a start, a shorter retention, the last mail of a quiet store, a clock that is set back."""
    clock = Clock()
    old, recent = clock.now - 31 * DAY_S, clock.now - 3600
    guard = clock.guard()
    assert clock.check(guard, old, old, old, recent)
    assert clock.check(guard, recent, retention_s=60.0)
    clock.pass_time(31 * DAY_S)
    assert clock.check(guard, recent)
    clock.now -= 400 * DAY_S
    assert clock.check(guard, recent)
    clock.now += 120
    assert clock.check(guard)
