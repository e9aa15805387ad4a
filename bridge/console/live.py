"""The daemon's numbers as they are now, for the overview and everyone who watches it.

The daemon is asked every two seconds while anyone watches, once for all of them, and not at all otherwise. The last
minutes are kept for the small plot. Knows neither pages nor people.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from anyio import to_thread

from bridge.observe.cluster_view import ClusterView, Nodes, look
from bridge.observe.sample import Sample, between, take
from bridge.runtime.endpoints import Endpoint

INTERVAL_S = 2.0
_KEPT = 90  # samples: three minutes
_RATE_S = 30.0  # rates are averages over this time
_NODES_FRESH_S = 8.0  # all nodes are asked again after this time
_NODES_WAIT_S, _NODES_FRESH_WAIT_S = 2.0, 0.5  # for the first view, and for a newer one
_FRESH_S = 1.5  # a newer sample is not taken again for another visitor


@dataclass(frozen=True, slots=True)
class Picture:
    """What is known at one moment. `data` is that of `scanbridge top --json`; None if no daemon answers."""

    at: float
    data: dict[str, Any] | None
    rates: tuple[float, ...] = ()  # mails per second, the oldest first


@dataclass(slots=True)
class Live:
    address: Endpoint
    cluster: Nodes = field(default_factory=Nodes)  # the nodes to ask, if there are any
    watchers: int = 0
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _last: Picture | None = None
    _nodes: ClusterView | None = None
    _nodes_at: float = float("-inf")
    _asking: asyncio.Task[None] | None = None
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def now(self) -> Picture:
        """The picture of this moment: at most one and a half seconds old."""
        async with self._taking:
            if self._last is None or time.monotonic() - self._last.at > _FRESH_S:
                self._last = self._drawn(await to_thread.run_sync(take, self.address))
            return self._last

    async def nodes(self) -> ClusterView | None:
        """All nodes of the cluster, as of a few seconds ago; None if the configuration names none.

        No one waits long for nodes that do not answer: until they do, the last view is shown, or None before the first.
        """
        if not self.cluster.bridges:
            return None
        if self._asking is None or (self._asking.done() and time.monotonic() - self._nodes_at > _NODES_FRESH_S):
            self._asking = asyncio.create_task(self._ask_nodes())
        await asyncio.wait({self._asking}, timeout=_NODES_WAIT_S if self._nodes is None else _NODES_FRESH_WAIT_S)
        return self._nodes

    async def _ask_nodes(self) -> None:
        self._nodes = await to_thread.run_sync(look, self.cluster)
        self._nodes_at = time.monotonic()

    async def watch(self) -> AsyncIterator[Picture]:
        """One picture after another, until `stop`."""
        self.watchers += 1
        try:
            while not self._stopping.is_set():
                yield await self.now()
                with suppress(TimeoutError):
                    async with asyncio.timeout(INTERVAL_S):
                        await self._stopping.wait()
        finally:
            self.watchers -= 1

    def stop(self) -> None:
        """End all streams, so that the process can exit."""
        self._stopping.set()

    def _drawn(self, sample: Sample | None) -> Picture:
        at = time.monotonic()
        if sample is None:
            self._samples.clear()
            return Picture(at, None)
        if self._samples and sample.state["pid"] != self._samples[-1].state["pid"]:
            self._samples.clear()  # the daemon was restarted
        self._samples.append(sample)
        nothing = Sample(sample.at, sample.state, {})
        data = between(self._base(), sample)
        data["scan_since_start_s"] = between(nothing, sample)["scan_s"]
        return Picture(at, data, self._rates())

    def _base(self) -> Sample:
        """The sample from which rates are calculated."""
        newest = self._samples[-1].at
        return next(sample for sample in self._samples if newest - sample.at <= _RATE_S)

    def _rates(self) -> tuple[float, ...]:
        totals = [(sample.at, sum(sample.by("action", "scanbridge_mails_total").values())) for sample in self._samples]
        return tuple(
            max(later - earlier, 0.0) / max(end - begin, 0.1) for (begin, earlier), (end, later) in pairwise(totals)
        )
