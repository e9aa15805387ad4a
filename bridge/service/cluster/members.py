"""The workers and the other API nodes that are running, by their last sign of life.

Pure: knows signs and the clock, no connection. From the signs follow the limits of the whole cluster: what all workers
together take, less what the other API nodes have put in.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bridge.service.cluster.wire import NodeSign, WorkerSign

SIGN_INTERVAL_S = 0.5
GONE_S = 2.0  # without a sign; a worker that is killed is noticed by its connection much earlier
DOUBT_S = 0.75  # without a sign from any worker: signs are overdue


class Members:
    def __init__(self, own_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._own_id = own_id
        self._clock = clock
        self._workers: dict[str, tuple[float, WorkerSign]] = {}
        self._nodes: dict[str, tuple[float, NodeSign]] = {}
        self._seen_at = float("-inf")  # the last time that there was a worker

    def worker(self, sign: WorkerSign) -> None:
        if sign.leaving:
            self._workers.pop(sign.id, None)
            return
        self._seen_at = self._clock()
        self._workers[sign.id] = self._seen_at, sign

    def node(self, sign: NodeSign) -> None:
        if sign.id != self._own_id:
            self._nodes[sign.id] = self._clock(), sign

    def nobody(self) -> None:
        """No worker is connected, whatever the signs say."""
        self._workers.clear()

    def renew(self) -> None:
        """After a period in which no sign could reach us: those that were there before may still be there."""
        now = self._clock()
        self._workers = {id_: (now, sign) for id_, (_, sign) in self._workers.items()}
        self._nodes = {id_: (now, sign) for id_, (_, sign) in self._nodes.items()}
        if self._workers:
            self._seen_at = now

    def expire(self) -> None:
        oldest = self._clock() - GONE_S
        self._workers = {id_: known for id_, known in self._workers.items() if known[0] >= oldest}
        self._nodes = {id_: known for id_, known in self._nodes.items() if known[0] >= oldest}

    @property
    def in_doubt(self) -> bool:
        """Whether signs are overdue, so that all workers may be gone."""
        return self._clock() - self._seen_at > DOUBT_S

    def alone_for(self) -> float:
        """Seconds for which there has been no worker."""
        return 0.0 if self._workers else self._clock() - self._seen_at

    @property
    def workers(self) -> list[WorkerSign]:
        return [sign for _, sign in self._workers.values()]

    @property
    def elsewhere(self) -> int:
        """Mails that the other API nodes have in the queue."""
        return sum(sign.waiting for _, sign in self._nodes.values())

    @property
    def slots(self) -> int:
        return sum(sign.slots for sign in self.workers)

    @property
    def busy(self) -> int:
        return sum(sign.busy for sign in self.workers)

    def limits(self) -> tuple[int, int]:
        """How many mails this node may have in processing, and from how many on it slows down."""
        limit = sum(sign.limit for sign in self.workers)
        threshold = sum(sign.threshold for sign in self.workers)
        return max(0, limit - self.elsewhere), max(0, threshold - self.elsewhere)
