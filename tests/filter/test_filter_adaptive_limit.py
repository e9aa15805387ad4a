"""The adaptive limit against a simulated scanner: no clock, no sockets."""

from __future__ import annotations

import heapq
import random
from pathlib import Path

import pytest

from bridge.errors import BridgeError, NoRoom, Saturated, ScanTimeout
from bridge.filter.adaptive_limit import AdaptiveLimit
from bridge.filter.scan_slots import Slots
from bridge.testing import running_bridge
from tests.filter.smtp_kit import send

SERVICE_S = 0.05


class Simulation:
    """A scanner with `workers` workers that take 50 ms each; further mail queues inside it."""

    def __init__(self, limit: AdaptiveLimit, workers: int, deadline_s: float = 5.0) -> None:
        self.limit, self.workers, self.deadline_s = limit, workers, deadline_s
        self.now = 0.0
        self.in_processing = 0
        self.done = 0
        self.waits: list[float] = []
        self._free: list[float] = [0.0] * workers  # when each worker is free
        self._ends: list[tuple[float, float, int]] = []  # end, begin, in processing at begin
        self._random = random.Random(7)

    def run(self, seconds: float, per_second: float) -> None:
        """Mail arrives at this rate; mail above the limit is refused."""
        end, next_arrival = self.now + seconds, self.now
        while self.now < end:
            if self._ends and self._ends[0][0] <= next_arrival:
                self._finish()
            else:
                self.now = next_arrival
                next_arrival += self._random.expovariate(per_second)
                if self.in_processing < self.limit.current:
                    self._begin()

    def _begin(self) -> None:
        self.in_processing += 1
        free = max(heapq.heappop(self._free), self.now)
        end = free + SERVICE_S * self._random.uniform(0.8, 1.2)
        heapq.heappush(self._free, end)
        heapq.heappush(self._ends, (end, self.now, self.in_processing))

    def _finish(self) -> None:
        self.now, began, in_processing = heapq.heappop(self._ends)
        self.in_processing -= 1
        took = self.now - began
        if took > self.deadline_s:
            self.limit.overload()
            return
        self.done += 1
        self.waits.append(took)
        self.limit.sample(took, in_processing)

    def resize(self, workers: int) -> None:
        self.workers = workers
        self._free = [self.now] * workers


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_the_limit_finds_the_scanners_capacity(workers: int) -> None:
    """At ten times its capacity the scanner is kept busy, and mail does not queue up inside it."""
    limit = AdaptiveLimit(200)
    simulation = Simulation(limit, workers)
    capacity = workers / SERVICE_S
    simulation.run(20, capacity * 10)
    simulation.done, simulation.waits = 0, []
    simulation.run(20, capacity * 10)
    assert simulation.done / 20 > 0.95 * capacity
    assert max(workers / 3, 2) <= limit.current < 5 * workers  # a third: it is still learning the usual scan time
    assert sorted(simulation.waits)[len(simulation.waits) // 2] < 5 * SERVICE_S


def test_the_limit_follows_a_scanner_that_loses_and_regains_workers() -> None:
    """The limit goes down, and up again."""
    limit = AdaptiveLimit(200)
    simulation = Simulation(limit, 32)
    simulation.run(20, 5000)
    before = limit.current
    simulation.resize(4)
    simulation.run(90, 1000)
    assert limit.current < before / 2
    simulation.resize(32)
    simulation.run(30, 5000)
    simulation.done = 0
    simulation.run(10, 5000)
    assert simulation.done / 10 > 0.9 * 32 / SERVICE_S


@pytest.mark.parametrize("highest", [1, 2, 20])
def test_the_limit_never_exceeds_the_configured_maximum(highest: int) -> None:
    """However fast the scanner is. It never falls below one."""
    limit = AdaptiveLimit(highest)
    for number in range(1000):
        limit.sample(0.001, highest)
        assert 1 <= limit.current <= highest
        if number % 3 == 0:
            limit.overload()
    for _ in range(100):
        limit.overload()
    assert limit.current == 1
    for _ in range(100):
        limit.sample(0.001, highest)
    assert limit.current == highest


def test_quiet_times_change_nothing() -> None:
    """Two concurrent mails say nothing about twenty."""
    limit = AdaptiveLimit(100)
    for _ in range(200):
        limit.sample(0.05, 100)
    before = limit.current
    for seconds in (0.01, 5.0, 0.0) * 50:
        limit.sample(seconds, 1)
    assert limit.current == before


def test_the_adaptive_limit_refuses_mail(tmp_path: Path) -> None:
    """`limit: adaptive`: above it the client receives 451 4.3.2, although max_in_processing is much higher."""
    with running_bridge(tmp_path, {"admission": {"limit": "adaptive", "max_in_processing": 50}}) as bridge:
        assert send(bridge).startswith("250 ")
        for _ in range(10):
            bridge.daemon.admission.enter()
        try:
            assert bridge.daemon.servers[0]._filter.early.closed_before_content() is not None
        finally:
            for _ in range(10):
                bridge.daemon.admission.leave()
        assert send(bridge).startswith("250 ")


@pytest.mark.parametrize(
    ("error", "is_overload"),
    [
        (Saturated("full", 1.0), True),
        (NoRoom("no room for a mail of this size", 1.0), False),
        (ScanTimeout(), True),
        (ScanTimeout(others_pass=True), False),
    ],
)
def test_only_what_concerns_all_mail_lowers_the_limit(error: BridgeError, is_overload: bool) -> None:
    """One large mail for which the scanner had no room made the bridge refuse the mail of others."""
    limit = AdaptiveLimit(100)
    before = limit.current
    Slots(None, limit, None).learn(error, 0.1, 1)  # type: ignore[arg-type]
    assert (limit.current < before) is is_overload
