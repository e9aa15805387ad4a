"""Operators on two machines who release the same quarantined mails at the same time, while nodes die."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.world import ClusterWorld

_EVERY_S = 2.0


class Releases:
    """Call `start`, and at the end `stop`."""

    def __init__(self, world: ClusterWorld, at_a_time: int = 4) -> None:
        self._world, self._at_a_time = world, at_a_time
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
        list(pool.map(lambda number: self._release(ids, number), (1, 2)))

    def _release(self, ids: list[str], number: int) -> None:
        for our_id in ids:
            code, _ = self._world.command("quarantine", "release", our_id, number=number)
            self.codes[our_id].append(code)
