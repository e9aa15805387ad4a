"""Operators on two machines who release the same quarantined mails at the same time, while nodes die.

Some of their commands are killed when they have recorded their attempt: at about the time of the next hop's answer. The
operators try again whatever was not released for certain, without `--again`.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.world import ClusterWorld

_EVERY_S = 2.0
_KILL_EVERY = 4  # rounds
_KILL_WITHIN_S = 0.3  # after the attempt is recorded
_LONGEST_S = 30.0  # until it is
_REPEATED = 2  # of the mails that were not released for certain, in each round


class Releases:
    """Call `start`, and at the end `stop`."""

    def __init__(self, world: ClusterWorld, seed: int, at_a_time: int = 4) -> None:
        self._world, self._at_a_time, self._dice = world, at_a_time, random.Random(seed)
        self._round = 0
        self.codes: dict[str, list[int]] = defaultdict(list)  # exit codes of all tries, by the bridge's id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    @property
    def done(self) -> set[str]:
        return {our_id for our_id, codes in self.codes.items() if 0 in codes}

    def counts(self) -> Counter[int]:
        return Counter(code for codes in self.codes.values() for code in codes)

    def _run(self) -> None:
        with ThreadPoolExecutor(2) as pool:
            while not self._stop.wait(_EVERY_S):
                self._release_some(pool)
            if not self.codes:  # a short run on a slow machine
                self._release_some(pool)

    def _release_some(self, pool: ThreadPoolExecutor) -> None:
        code, text = self._world.command("quarantine", "list", "--state", "kept", "--json", "--limit", "20")
        if code:
            return  # the database is away
        ids = [json.loads(line)["id"] for line in text.splitlines()][-self._at_a_time :]
        self._round += 1
        if ids and self._round % _KILL_EVERY == 0:
            self._cut_off(ids[-1])
        unfinished = [our_id for our_id, codes in self.codes.items() if our_id not in ids and not {0, 4} & set(codes)]
        ids += self._dice.sample(unfinished, min(_REPEATED, len(unfinished)))
        list(pool.map(lambda number: self._release(ids, number), (1, 2)))

    def _cut_off(self, our_id: str) -> None:
        """Kill a command between the record of its attempt and that of the result, or somewhat later."""
        process = self._world.start_command("quarantine", "release", our_id)
        recorded = self._world.disks["storage1"].place / "mail" / f"{our_id}.releases"
        until = time.monotonic() + _LONGEST_S
        while process.poll() is None and not recorded.exists() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(self._dice.uniform(0.0, _KILL_WITHIN_S))
        process.kill()
        self.codes[our_id].append(process.wait())

    def _release(self, ids: list[str], number: int) -> None:
        for our_id in ids:
            code, _ = self._world.command("quarantine", "release", our_id, number=number)
            self.codes[our_id].append(code)
