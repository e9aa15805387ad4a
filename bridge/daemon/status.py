"""What operators see of a running daemon: levels for /metrics, the answer of /status, why it is not ready.

With several workers, the one that is asked answers for all of them.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry

from bridge import __version__
from bridge.api.scanning import QueueStatus
from bridge.daemon.wiring import worker_count
from bridge.daemon.workers.aggregate import Siblings
from bridge.observe.metrics import Metrics
from bridge.scanner.circuit import State

if TYPE_CHECKING:
    from bridge.daemon.daemon import Daemon

_COLOURS = {None: -1, QueueStatus.GREEN: 0, QueueStatus.YELLOW: 1, QueueStatus.RED: 2}

_SILENT_S = 2.0  # a worker writes once a second
_CIRCUITS = {State.CLOSED: 0, State.HALF_OPEN: 1, State.OPEN: 2}


@dataclass(slots=True)
class Reloads:
    """How often the configuration was read anew, and how that ended the last time."""

    count: int = 0
    ok: bool = True
    problem: str = ""
    read_at: float = 0.0  # Unix time at which the configuration in force was read

    def succeeded(self) -> None:
        self.count, self.ok, self.problem, self.read_at = self.count + 1, True, "", time.time()

    def failed(self, problem: str) -> None:
        self.count, self.ok, self.problem = self.count + 1, False, problem

    def show(self, metrics: Metrics) -> None:
        metrics.reload_success.read = lambda: [((), int(self.ok))]
        metrics.reload_time.read = lambda: [((), self.read_at)]


class View:
    """Of one daemon; `siblings` is None when it is the only process."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._share = daemon.share
        self._started = time.monotonic()
        self._silent = 0
        self.siblings = Siblings(daemon.share, self._words) if daemon.share is not None else None

    def watch_levels(self) -> None:
        """Gauges are read from the parts when somebody asks."""
        daemon, metrics = self._daemon, self._daemon.metrics
        admission, spool = daemon.admission, daemon.spool
        metrics.in_processing.read = lambda: [((), admission.in_processing)]
        metrics.in_processing_limit.read = lambda: [((), admission.settings.max_in_processing)]
        metrics.bytes_in_processing.read = lambda: [((), spool.in_use)]
        metrics.bytes_limit.read = lambda: [((), spool.limit)]
        metrics.connections.read = lambda: [((name,), count) for name, count in self._connections().items()]
        metrics.scanner_status.read = lambda: [((host.url,), _COLOURS[host.status]) for host in daemon.scanner.hosts]
        metrics.scanner_circuit.read = lambda: [
            ((host.url,), _CIRCUITS[host.circuit.state]) for host in daemon.scanner.hosts
        ]
        metrics.late_running.read = lambda: [((), daemon.late.running if daemon.late else 0)]
        metrics.adaptive_limit.read = lambda: [((), daemon.parts.limit.current)] if daemon.parts.limit else []
        metrics.scanner_in_flight.read = lambda: [((host.url,), host.in_flight) for host in daemon.scanner.hosts]
        metrics.workers.read = lambda: [((), 0 if daemon.problem() else 1)]
        metrics.workers_silent.read = lambda: [((), self._silent)]
        if self._share is None:  # else the supervisor says it
            daemon.reloads.show(metrics)

    def _connections(self) -> dict[str, int]:
        listeners = self._daemon.config.listeners
        return {one.name: server.connections for one, server in zip(listeners, self._daemon.servers, strict=False)}

    def _reloads(self) -> dict[str, Any]:
        if self._share is not None:
            return self._share.supervisor_says().get("reload") or asdict(self._daemon.reloads)
        return asdict(self._daemon.reloads)

    def _words(self) -> dict[str, Any]:
        """For the siblings' boards."""
        life = self._share.life if self._share is not None else 0
        now = time.monotonic()  # one clock for all processes of the machine
        return {"life": life, "at": now, "metrics": self._daemon.metrics.snapshot(), "state": self._own_state()}

    async def registry(self) -> CollectorRegistry:
        """Everything, for one scrape."""
        if self.siblings is None:
            return self._daemon.metrics.registry
        others, supervisor, self._silent = await self.siblings.ask()
        snapshots = [words["metrics"] for words in others] + [supervisor.get("metrics", {})]
        return self._daemon.metrics.merged(snapshots).registry

    def problem(self) -> str:
        """Why we are not ready; "" when we are."""
        own = "" if self._daemon.retired else self._daemon.problem()
        if own or self._share is None:
            return own
        phase = self._share.supervisor_says().get("phase", "starting")
        return "" if phase == "ready" else str(phase)

    def summary(self) -> str:
        """One line for `systemctl status`."""
        reloads = self._daemon.reloads
        names = ", ".join(f"{one.name} on {one.address}" for one in self._daemon.config.listeners)
        said = f"taking mail: {names}"
        return said if reloads.ok else f"{said}; the last reload failed: {reloads.problem.splitlines()[0]}"

    def _own_state(self) -> dict[str, Any]:
        daemon = self._daemon
        return {
            "version": __version__,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started),
            "ready": not daemon.problem(),
            "in_processing": daemon.admission.in_processing,
            "max_in_processing": daemon.admission.settings.max_in_processing,
            "bytes_in_processing": daemon.spool.in_use,
            "connections": sum(self._connections().values()),
            "reload": self._reloads(),
            "listeners": [
                {"name": one.name, "protocol": one.protocol, "address": str(one.address)}
                for one in daemon.config.listeners
            ],
            "lists": daemon.keeper.state(),
            "scanner": [
                {
                    "url": host.url,
                    "status": str(host.status or "unknown"),
                    "circuit": str(host.circuit.state),
                    "in_flight": host.in_flight,
                }
                for host in daemon.scanner.hosts
            ],
            "next_hops": [
                {"name": hop.name, "up": hop.is_up, "busy": hop.busy}
                for hop in {hop.name: hop for hop in daemon.parts.hops}.values()
            ],
        }

    async def state(self) -> dict[str, Any]:
        """For `scanbridge status`; `pid` is the process that takes the signals."""
        own = self._own_state()
        if self.siblings is None or self._share is None:
            return {**own, "workers": [_worker(own)]}
        others, supervisor, silent = await self.siblings.ask()
        states = [own, *(words["state"] for words in others)]
        now = time.monotonic()
        workers = [_worker(own), *(_worker(words["state"], now - words["at"]) for words in others)]
        for host in own["scanner"]:
            seen = [one for state in states for one in state["scanner"] if one["url"] == host["url"]]
            host["in_flight"] = sum(one["in_flight"] for one in seen)
            host["circuit"] = max((one["circuit"] for one in seen), key=_CIRCUITS.__getitem__)  # the worst
        down = {hop["name"] for state in states for hop in state["next_hops"] if not hop["up"]}
        for hop in own["next_hops"]:
            hop["up"] = hop["name"] not in down
            hop["busy"] = sum(
                one["busy"] for state in states for one in state["next_hops"] if one["name"] == hop["name"]
            )
        return {
            **own,
            "pid": self._share.supervisor,
            "uptime_s": round(time.monotonic() - supervisor.get("started", self._started)),
            "ready": not self.problem(),
            "connections": sum(state["connections"] for state in states),
            "workers": sorted(workers, key=lambda worker: int(worker["pid"])),
            "workers_wanted": worker_count(self._daemon.config),
            "silent_workers": silent,
        }


def _worker(state: dict[str, Any], age_s: float = 0.0) -> dict[str, Any]:
    """`silent_s`: how long ago it wrote this, if that is longer than a worker that works ever takes."""
    silent_s = int(age_s) if age_s >= _SILENT_S else 0
    return {**{key: state[key] for key in ("pid", "uptime_s", "ready", "connections")}, "silent_s": silent_s}
