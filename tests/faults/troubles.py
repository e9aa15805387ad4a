"""The faults of a run, in an order that a seed decides.

Two sequences run in parallel: one for processes (bridge, scanner, next hop), one for the disk. So the bridge is also
killed, started and reloaded while its disk is full. Each fault is recorded with its time, to explain duplicates.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.chain import until
from tests.faults.tracing import end_tracer, is_traced, tracer_of
from tests.faults.world import World, signal_all
from tests.processes import children
from tests.rewriting import rewrite

_OTHERS = ("scanner killed", "next hop killed")  # not the bridge


@dataclass
class Fault:
    name: str
    began: float
    ended: float = float("inf")


class Troubles:
    """Call `start`, and at the end `heal`."""

    def __init__(self, world: World, seed: int, pace: float = 1.0) -> None:
        """`pace` below 1 makes faults and the pauses between them shorter."""
        self.world = world
        self._pace = pace
        self.faults: list[Fault] = []
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._bridge_is_ours = threading.Lock()  # held while a fault has stopped the bridge and will start it again
        disk = [self.disk_full, self.disk_full, self.fsync_fails, self.fsync_says_full, self.killed_at_fsync]
        processes = [
            *(self.bridge_killed, self.bridge_killed, self.all_killed, self.worker_killed, self.worker_killed),
            *(self.bridge_stopped, self.bridge_stopped_twice, self.bridge_reloaded, self.bridge_reloaded_badly),
            *(self.scanner_killed, self.scanner_frozen),
            *(self.next_hop_killed, self.next_hop_stopped, self.next_hop_frozen),
        ]
        self._lanes = [
            threading.Thread(target=self._lane, args=(random.Random(seed + n), list(faults), pause), daemon=True)
            for n, (faults, pause) in enumerate([(processes, (0.3, 1.5)), (disk, (1.0, 3.0))])
        ]
        self._lanes.append(threading.Thread(target=self._manage, daemon=True))

    def start(self) -> None:
        for lane in self._lanes:
            lane.start()

    def heal(self) -> None:
        self._stop.set()
        for lane in self._lanes:
            lane.join(90)
            assert not lane.is_alive(), "a fault does not come to its end"
        if self.errors:
            raise self.errors[0]
        self._revive()

    def counts(self) -> Counter[str]:
        return Counter(fault.name for fault in self.faults)

    def nearest(self, began: float, ended: float, words: tuple[str, ...]) -> str:
        """The fault in this period, or a second before, whose name has one of these words; earlier words win."""
        near = [fault for fault in self.faults if fault.began <= ended and fault.ended >= began - 1]
        for word in words:
            found = [fault for fault in near if word in fault.name and not (word == "killed" and fault.name in _OTHERS)]
            if found:
                return min(found, key=lambda fault: abs(fault.began - began)).name
        return ""

    def _lane(
        self, dice: random.Random, faults: list[Callable[[random.Random], None]], pause: tuple[float, float]
    ) -> None:  # fmt: skip
        """Each fault once in random order, then all over again."""
        try:
            while True:
                for fault in dice.sample(faults, len(faults)):
                    if self._stop.wait(self._pace * dice.uniform(*pause)):
                        return
                    entry = Fault(fault.__name__.replace("_", " "), time.time())
                    self.faults.append(entry)
                    fault(dice)
                    entry.ended = time.time()
        except BaseException as exc:
            self.errors.append(exc)

    def _manage(self) -> None:
        """Restarts a bridge that has died, as a service manager does."""
        try:
            while not self._stop.wait(0.1):
                with self._bridge_is_ours:
                    self._revive()
        except BaseException as exc:
            self.errors.append(exc)

    def _revive(self) -> None:
        if not self.world.bridge.is_alive():
            self.world.bridge.start(self.world.bridge.workers)

    def _for(self, dice: random.Random, longest_s: float) -> None:
        self._stop.wait(self._pace * dice.uniform(0.2, longest_s))

    # The bridge

    def _start_bridge(self, dice: random.Random) -> None:
        self.world.bridge.start(dice.choice([1, 2]))

    def bridge_killed(self, dice: random.Random) -> None:
        """A single process; or the supervisor, whose workers notice."""
        with self._bridge_is_ours:
            self.world.bridge.kill()
            self._start_bridge(dice)

    def all_killed(self, dice: random.Random) -> None:
        with self._bridge_is_ours:
            self.world.bridge.kill_all()
            self._for(dice, 1.0)
            self._start_bridge(dice)

    def worker_killed(self, dice: random.Random) -> None:
        """One of two workers; or the single process."""
        with self._bridge_is_ours:
            bridge = self.world.bridge
            if bridge.workers == 1:
                bridge.kill_all()
                bridge.start(2)
                self._for(dice, 0.5)
            pids = bridge.pids()
            if pids:
                signal_all([dice.choice(pids)], signal.SIGKILL)
            until(lambda: len(children(bridge.pid)) >= 2, "another worker", 60)

    def bridge_stopped(self, dice: random.Random) -> None:
        with self._bridge_is_ours:
            self.world.bridge.stop()
            self._start_bridge(dice)

    def bridge_stopped_twice(self, dice: random.Random) -> None:
        with self._bridge_is_ours:
            self.world.bridge.stop(again_after_s=dice.uniform(0.0, 0.3))
            self._start_bridge(dice)

    def bridge_reloaded(self, dice: random.Random) -> None:
        self.world.bridge.reload()
        self._for(dice, 1.0)

    def bridge_reloaded_badly(self, dice: random.Random) -> None:
        with self._bridge_is_ours:
            bridge = self.world.bridge
            good = bridge.config.read_text()
            rewrite(bridge.config, good + "nonsense: true\n")
            bridge.reload()
            self._for(dice, 1.0)
            rewrite(bridge.config, good)

    # Its neighbours

    def scanner_killed(self, dice: random.Random) -> None:
        self.world.scanner.kill()
        self._for(dice, 1.5)
        self.world.scanner.start()

    def scanner_frozen(self, dice: random.Random) -> None:
        self.world.scanner.signal(signal.SIGSTOP)
        self._for(dice, 3.0)
        self.world.scanner.signal(signal.SIGCONT)

    def next_hop_killed(self, dice: random.Random) -> None:
        self.world.behind.kill()
        self._for(dice, 1.0)
        self.world.behind.start()

    def next_hop_stopped(self, dice: random.Random) -> None:
        self.world.behind.stop()
        self._for(dice, 1.0)
        self.world.behind.start()

    def next_hop_frozen(self, dice: random.Random) -> None:
        """Sometimes longer than the bridge waits for an answer."""
        pids = self.world.behind.pids()
        signal_all(pids, signal.SIGSTOP)
        self._for(dice, 4.0)
        signal_all(pids, signal.SIGCONT)

    # The disk

    def disk_full(self, dice: random.Random) -> None:
        self.world.disk.fill()
        try:
            self._for(dice, 3.0)
        finally:
            self.world.disk.heal()

    def fsync_fails(self, dice: random.Random) -> None:
        self._inject(dice, "fsync,fdatasync:error=EIO")

    def fsync_says_full(self, dice: random.Random) -> None:
        self._inject(dice, "fsync,fdatasync:error=ENOSPC")

    def killed_at_fsync(self, dice: random.Random) -> None:
        """kill -9 in the middle of a quarantine write: its first file, its second, its directory."""
        self._inject(dice, f"fsync:signal=KILL:when={dice.randrange(1, 4)}")

    def _inject(self, dice: random.Random, how: str) -> None:
        """In the processes that accept mail now; later ones are not affected."""
        pids = self.world.bridge.pids()
        if not pids:
            return
        tracer = tracer_of(pids, how)
        try:
            until(lambda: tracer.poll() is not None or all(map(is_traced, pids)), "strace to attach")
            self._for(dice, 3.0)
        finally:
            end_tracer(tracer)
