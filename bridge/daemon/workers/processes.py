"""The supervisor's processes: workers and the embedded service, with the sockets and memory they share.

Starts them, signals them and collects those that have exited. When a process is started, replaced or given
up is decided by `supervisor` and `rolling_reload`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.daemon.addresses import ADMIN_KEY, SERVICE_KEY, addresses, listener_key
from bridge.daemon.sockets import Sockets
from bridge.daemon.workers.aggregate import SharedRow
from bridge.daemon.workers.child import RETIRE, fork, service, worker
from bridge.daemon.workers.shared_counters import SharedCounters
from bridge.daemon.workers.shared_snapshots import SharedSnapshots
from bridge.daemon.workers.worker_context import SupervisedWorker

GRACE_S = 10.0  # beyond the drain time; after that a worker is killed


@dataclass(slots=True)
class Child:
    """One process: a worker, or the embedded service."""

    pid: int
    row: int
    life: int
    started: float
    conf: Config
    is_service: bool = False
    leaving: bool = False  # was told to exit
    ends_by: float = float("inf")
    aborted: bool = False  # was sent SIGABRT because it hangs

    def __str__(self) -> str:
        return "the scanning service" if self.is_service else f"worker {self.pid}"


class Processes:
    """All children of this process. New workers get `config` unless another one is given."""

    def __init__(self, conf: Config, state: Path) -> None:
        self.config = conf
        self.workers_wanted = wiring.worker_count(conf)
        rows = 3 * self.workers_wanted + 1  # old workers finish their mail next to new ones; the last is the service's
        self.counters, self.snapshots = SharedCounters(rows), SharedSnapshots(rows)
        self.sockets = Sockets()
        self._state = state
        self._lifeline, self._lifeline_end = os.pipe()
        self._lives = 0
        self._children: dict[int, Child] = {}

    def use(self, conf: Config) -> None:
        """Start new workers with this configuration from now on."""
        self.config = conf

    # Sockets: opened here and inherited, so waiting clients outlive the worker that would have served them

    def open_sockets(self, conf: Config) -> None:
        """Open those that are not open yet. Raises CannotListen, ConfigError."""
        for listener in conf.listeners:
            key = listener_key(listener)
            self.sockets.hold(key, listener.address, listener.unix_mode, listener.unix_owner)
        self.sockets.hold(ADMIN_KEY, conf.admin.address)

    def open_service_socket(self) -> None:
        self.sockets.hold(SERVICE_KEY, wiring.service_address(self.config))

    def close_unused_sockets(self) -> None:
        """Close those that the current configuration does not name."""
        conf = self.config
        service = [(SERVICE_KEY, wiring.service_address(conf))] if conf.embedded_service else []
        self.sockets.keep_only([*addresses(conf), *service])

    # Starting

    def start_worker(self, conf: Config | None = None) -> Child:
        conf = conf or self.config
        taken = {child.row for child in self}
        row = next(row for row in range(self.counters.rows - 1) if row not in taken)
        context = self._context(row)
        pid = fork(conf, self._lifeline_end, worker(conf, context))
        return self._add(Child(pid, row, context.life, time.monotonic(), conf))

    def start_service(self) -> Child:
        context = self._context(self.counters.rows - 1)
        pid = fork(self.config, self._lifeline_end, service(self.config, context, self._state))
        row = self.counters.rows - 1
        return self._add(Child(pid, row, context.life, time.monotonic(), self.config, is_service=True))

    def _context(self, row: int) -> SupervisedWorker:
        self.counters.beat(row, time.monotonic())
        self._lives += 1
        shared = SharedRow(row, self.counters, self.snapshots, os.getpid(), self._lives, self.workers_wanted)
        return SupervisedWorker(shared, self.sockets, self._lifeline)

    def _add(self, child: Child) -> Child:
        self._children[child.pid] = child
        return child

    # Looking

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._children.values()))

    def __len__(self) -> int:
        return len(self._children)

    def __contains__(self, child: Child) -> bool:
        return child.pid in self._children

    def workers(self) -> list[Child]:
        """The workers that are to stay."""
        return [child for child in self if not child.is_service and not child.leaving]

    @property
    def has_service(self) -> bool:
        return any(child.is_service for child in self)

    @property
    def only_service(self) -> bool:
        """Whether the service is the only process left, or there is none."""
        return all(child.is_service for child in self)

    @property
    def has_room(self) -> bool:
        """Whether all workers can be replaced: those of the last reload may still be finishing their mail."""
        return len(self) + self.workers_wanted < self.counters.rows

    def is_ready(self, child: Child) -> bool:
        return child in self and self.counters.is_ready(child.row)

    def silent_s(self, child: Child) -> float:
        """The time since its last heartbeat."""
        return time.monotonic() - self.counters.last_beat(child.row)

    # Ending

    def retire(self, child: Child) -> None:
        """Another worker has replaced it: let it finish its mail and exit."""
        child.leaving = True
        child.ends_by = time.monotonic() + child.conf.drain_timeout + GRACE_S
        self.send(child, RETIRE)

    def send(self, child: Child, number: signal.Signals) -> None:
        os.kill(child.pid, number)  # not reaped yet, so the process id cannot belong to another process

    def reap(self) -> Iterator[tuple[Child, int]]:
        """The children that have exited, with their exit codes (negative: a signal)."""
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is not None:
                yield child, os.waitstatus_to_exitcode(status)
