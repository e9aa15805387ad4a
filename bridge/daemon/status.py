"""What this process knows about itself: its part of /status, why it is not ready, one line for systemd.

Reads the running daemon and changes nothing. With several workers, `workers.aggregate` combines the
statuses of all of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import asdict
from typing import Any

from bridge import __version__
from bridge.daemon.quarantine_upkeep import QuarantineUpkeep
from bridge.daemon.running import Running
from bridge.daemon.shutdown import Shutdown
from bridge.daemon.what_is_wrong import RECENT_S, Health, assess, merged_hops
from bridge.observe.metrics import SATURATION, Metrics
from bridge.relay.monitored import MonitoredRelay
from bridge.runtime.build import built_from
from bridge.scanner.client import Host
from bridge.scanner.discovery import Discovery


class Status:
    def __init__(self, running: Running, shutdown: Shutdown, upkeep: QuarantineUpkeep) -> None:
        self._running = running
        self._shutdown = shutdown
        self._upkeep = upkeep
        self._started = time.monotonic()

    @property
    def metrics(self) -> Metrics:
        return self._running.core.metrics

    @property
    def connections(self) -> int:
        return self._running.listeners.connections

    def problem(self) -> str:
        """Why this process accepts no mail; "" if it does."""
        if self._shutdown.has_begun:
            return "stopping"
        return "" if self._running.listeners.servers else "starting"

    def summary(self) -> str:
        """One line for `systemctl status`."""
        reloads = self._running.core.reloads
        names = ", ".join(f"{listener.name} on {listener.address}" for listener in self._running.config.listeners)
        summary = f"accepting mail: {names}"
        return summary if reloads.ok else f"{summary}; the last reload failed: {reloads.problem.splitlines()[0]}"

    def state(self) -> dict[str, Any]:
        running, core = self._running, self._running.core
        return {
            "version": __version__,
            "build": built_from(),
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started),
            "ready": not self.problem(),
            "phase": self.problem(),
            "in_processing": core.admission.in_processing,
            "max_in_processing": core.admission.settings.max_in_processing,
            "bytes_in_processing": core.spool.in_use,
            "connections": self.connections,
            "saturated": [cause for cause, is_so in zip(SATURATION, running.saturation, strict=True) if is_so],
            "spool_problem": self._spool_problem(),
            "quarantine_problem": self._quarantine_problem(),
            "history": {"problem": core.history.problem if core.history else "", "lost": self._history_lost()},
            "recent": list(core.recent.last),
            "reload": asdict(core.reloads),
            "listeners": [
                {"name": listener.name, "protocol": listener.protocol, "address": str(listener.address)}
                for listener in running.config.listeners
            ],
            "lists": core.list_refresh.state(),
            "personal_lists": {"entries": len(core.personal.table), "problem": core.personal.problem},
            "feedback": core.feedback.state(),
            "events": core.events.state(),
            "events_problem": core.events.problem,
            "scanner": [_scanner(host) for host in running.scanner.hosts],
            "discovery": [_discovered(name) for name in running.scanner.discoveries],
            "next_hops": merged_hops([self._next_hop(hop) for hop in running.components.hops]),
        }

    def health(self, state: dict[str, Any]) -> Health:
        """What is wrong, judging by the state of all workers together."""
        return assess(state, self._running.config)

    def _next_hop(self, hop: MonitoredRelay) -> dict[str, Any]:
        is_up = self._running.components.is_up(hop)
        return {
            "name": hop.name,
            "up": is_up,
            "busy": hop.busy,
            "problem": hop.problem if is_up is False else "",
            "age_s": None if is_up is None else round(hop.age_s),
        }

    def _history_lost(self) -> int:
        """Mails that were not recorded."""
        return int(sum(self.metrics.history.values[result,] for result in ("overflow", "failed")))

    def _spool_problem(self) -> str:
        spool = self._running.core.spool
        hangs_s = 0.0 if spool.disk is None else spool.disk.hangs_s()
        return f"the spool's disk has not responded for {hangs_s:.0f} s" if hangs_s else ""

    def _quarantine_problem(self) -> str:
        recent = self._running.core.recent
        is_recent = time.monotonic() - recent.quarantine_at < RECENT_S
        return self._upkeep.problem or (recent.quarantine_problem if is_recent else "")


def _discovered(name: Discovery) -> dict[str, Any]:
    age_s = name.age_s
    return {
        "url": name.url,
        "hosts": len(name.places),
        "problem": name.problem,
        "age_s": None if age_s is None else round(age_s),
    }


def _scanner(host: Host) -> dict[str, Any]:
    problem, case = host.outage
    age_s = host.age_s(asyncio.get_running_loop().time())
    return {
        "url": host.url,
        "dialect": host.dialect.name,
        "status": str(host.status or "unknown"),
        "circuit": str(host.circuit.state),
        "in_flight": host.in_flight,
        "problem": problem,
        "case": case,
        "status_problem": host.status_problem,
        "age_s": None if age_s is None else round(age_s),
        "tried": host.untried_since is None or host.decided_since > host.untried_since,
    }
