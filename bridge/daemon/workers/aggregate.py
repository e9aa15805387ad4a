"""One scrape shows the numbers of all workers, whichever worker answers it.

The worker that is asked rings the others, waits briefly for them to write fresh snapshots, and adds
everything up. A worker that does not write in time (it hangs, or the machine is very busy) is counted
as silent, and its last snapshot is used, so no counter ever goes backwards. The counts of workers that
have ended are in the supervisor's snapshot. For a killed worker these are the counts it last published:
everything that was ever shown, and everything except its last second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from prometheus_client import CollectorRegistry

from bridge.daemon.admin import OwnStatus, with_health, worker_summary
from bridge.daemon.what_is_wrong import merged_hops
from bridge.daemon.workers.shared_counters import SharedCounters
from bridge.daemon.workers.shared_snapshots import SharedSnapshots
from bridge.observe.metrics import SATURATION
from bridge.scanner.circuit import State

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
_PATIENCE_S = 1.0
_POLL_S = 0.002
_CIRCUITS = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}

Snapshot = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SharedRow:
    """One worker's row in the shared memory."""

    row: int
    counters: SharedCounters
    snapshots: SharedSnapshots
    supervisor: int  # process id
    life: int  # identifies this worker: a process id may be reused
    workers_wanted: int

    def read_supervisor(self) -> Snapshot:
        """The supervisor's phase, its reloads, and the counts of the workers that have ended."""
        text = self.snapshots.read(self.snapshots.supervisor)
        return dict(json.loads(text)) if text else {}


class Aggregate:
    """The admin view (`bridge.daemon.admin.AdminView`) of one of several workers: it answers for all of them."""

    def __init__(self, shared: SharedRow, status: OwnStatus, is_retired: Callable[[], bool]) -> None:
        self._shared = shared
        self._status = status
        self._is_retired = is_retired
        self._silent = 0
        self._too_long = False
        status.metrics.workers_silent.read = lambda: [((), self._silent)]

    # What the admin address shows

    async def registry(self) -> CollectorRegistry:
        others, supervisor, self._silent = await self._ask()
        snapshots = [snapshot["metrics"] for snapshot in others] + [supervisor.get("metrics", {})]
        return self._status.metrics.merged(snapshots).registry

    def _phase(self, supervisor: Snapshot) -> str:
        """Why the daemon accepts no mail; "" if it does."""
        own = "" if self._is_retired() else self._status.problem()
        phase = str(supervisor.get("phase", "starting"))
        return own or ("" if phase == "ready" else phase)

    async def state(self) -> dict[str, Any]:
        own = self._status.state()
        others, supervisor, silent = await self._ask()
        now = time.monotonic()
        workers = [worker_summary(own), *(worker_summary(other["state"], now - other["at"]) for other in others)]
        uptime_s = round(now - supervisor["started"]) if "started" in supervisor else own["uptime_s"]
        states = [snapshot["state"] for snapshot in others]
        state = {
            **merge_states(own, states),
            "pid": self._shared.supervisor,
            "uptime_s": uptime_s,
            "phase": self._phase(supervisor),
            "reload": supervisor.get("reload") or own["reload"],
            "workers": sorted(workers, key=lambda worker: int(worker["pid"])),
            "workers_wanted": self._shared.workers_wanted,
            "silent_workers": silent,
        }
        counts = [self._status.metrics.mails.dump(), supervisor.get("metrics", {}).get("mails", [])]
        counts += [snapshot["metrics"].get("mails", []) for snapshot in others]
        return with_health(state, [worker["recent"] for worker in (own, *states)], chain(*counts), self._status)

    # Writing our snapshot

    def publish(self) -> None:
        try:
            self._shared.snapshots.write(self._shared.row, json.dumps(self._snapshot()).encode())
        except ValueError as exc:
            if not self._too_long:
                log.error("metrics of this worker are missing from scrapes: %s", exc)
            self._too_long = True

    def _snapshot(self) -> Snapshot:
        now = time.monotonic()  # the same clock in all processes of the machine
        status = self._status
        return {"life": self._shared.life, "at": now, "metrics": status.metrics.snapshot(), "state": status.state()}

    async def publish_regularly(self) -> None:
        """Also records our heartbeat and our connections, for the supervisor and the other workers."""
        loop, shared = asyncio.get_running_loop(), self._shared
        bell = shared.snapshots.bell(shared.row)
        loop.add_reader(bell, self._on_bell)
        try:
            while True:
                self.publish()
                shared.counters.beat(shared.row, time.monotonic())
                shared.counters.set_connections(shared.row, self._status.connections)
                await asyncio.sleep(INTERVAL_S)
        finally:
            loop.remove_reader(bell)

    def _on_bell(self) -> None:
        self._shared.snapshots.reset_bell(self._shared.row)
        self.publish()

    # Reading the others'

    async def _ask(self) -> tuple[list[Snapshot], Snapshot, int]:
        """The other workers' snapshots, the supervisor's, and the number of workers that did not answer in time."""
        snapshots, own = self._shared.snapshots, self._shared.row
        versions = {row: snapshots.version(row) for row in range(snapshots.rows) if row != own}
        waiting = {row: version for row, version in versions.items() if version}  # includes workers about to exit
        for row in waiting:
            snapshots.ring(row)
        end = time.monotonic() + _PATIENCE_S
        while waiting and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
            waiting = {row: version for row, version in waiting.items() if snapshots.version(row) == version}
        self.publish()  # numbers that were shown once must survive, even if we are killed right afterwards
        found, supervisor = self._read_all()
        return found, supervisor, len(waiting)

    def _read_all(self) -> tuple[list[Snapshot], Snapshot]:
        """All snapshots during one version of the supervisor's, so that no worker's counts are read twice."""
        snapshots, found, supervisor = self._shared.snapshots, [], {}
        for _ in range(5):
            version = snapshots.version(snapshots.supervisor)
            supervisor = self._shared.read_supervisor()
            texts = [snapshots.read(row) for row in range(snapshots.rows) if row != self._shared.row]
            gone = set(supervisor.get("gone", ()))
            found = [snapshot for snapshot in map(json.loads, filter(None, texts)) if snapshot["life"] not in gone]
            if snapshots.version(snapshots.supervisor) == version:
                break
        return found, supervisor


def merge_states(own: dict[str, Any], others: list[dict[str, Any]]) -> dict[str, Any]:
    """Our state with the sums of all workers, the worst circuit of each scanner, and every next hop that is down."""
    states = [own, *others]
    return {
        **own,
        "connections": sum(state["connections"] for state in states),
        "saturated": [cause for cause in SATURATION if any(cause in state["saturated"] for state in states)],
        "spool_problem": next((text for state in states if (text := state.get("spool_problem", ""))), ""),
        "quarantine_problem": next((text for state in states if (text := state["quarantine_problem"])), ""),
        "history": {
            "problem": next((text for state in states if (text := state["history"]["problem"])), ""),
            "lost": sum(state["history"]["lost"] for state in states),
        },
        "feedback": max((state["feedback"] for state in states), key=lambda known: sum(known["reports"].values())),
        "events_problem": next((text for state in states if (text := state["events_problem"])), ""),
        "scanner": [_merged_host([host, *_others(others, "scanner", "url", host)]) for host in own["scanner"]],
        "next_hops": merged_hops(
            [hop for own_hop in own["next_hops"] for hop in (own_hop, *_others(others, "next_hops", "name", own_hop))]
        ),
    }


def _merged_host(seen: list[dict[str, Any]]) -> dict[str, Any]:
    """A scanner host is in the worst state that any worker has seen."""
    worst = next((host for host in seen if host["problem"]), seen[0])
    return {
        **worst,
        "in_flight": sum(host["in_flight"] for host in seen),
        "circuit": max((host["circuit"] for host in seen), key=_CIRCUITS.__getitem__),
    }


def _others(states: list[dict[str, Any]], section: str, key: str, own: dict[str, Any]) -> list[dict[str, Any]]:
    """What the other workers say about the same host or next hop."""
    return [entry for state in states for entry in state[section] if entry[key] == own[key]]
