"""The supervisor: binds the sockets, forks the workers, restarts the dead, takes the signals.

It handles no mail and runs no event loop and no thread: one loop waits for a signal and then looks
at everything there is to do. All sockets are opened here and inherited, so clients that wait in a
socket's queue outlive the worker that would have served them. A worker's end gives its slots back at
once, and what it had counted is added to the supervisor's own board.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from bridge.config.model import Config
from bridge.daemon import embedded, resources, wiring
from bridge.daemon.sockets import Sockets
from bridge.daemon.status import Reloads
from bridge.daemon.systemd import notify, notify_stopping, watchdog_s
from bridge.daemon.workers.child import CONFIG, FAILED, HURRY, RETIRE, STOP, fork, service, worker
from bridge.daemon.workers.rolling_reload import Replacement
from bridge.daemon.workers.shared_counters import Ledger
from bridge.daemon.workers.shared_snapshots import Boards
from bridge.daemon.workers.worker_context import Share
from bridge.observe.metrics import Metrics
from bridge.quarantine.quarantine import Quarantine

log = logging.getLogger(__name__)

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}
_TURN_S = 1.0
_SOON_S = 3.0  # a worker that ends within this has died at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_GRACE_S = 10.0  # beyond the drain time; then a worker is killed
_SERVICE_GRACE_S = 5.0


@dataclass(slots=True)
class Child:
    """One process: a worker, or the embedded service."""

    pid: int
    row: int
    life: int
    started: float
    conf: Config
    is_service: bool = False
    leaving: bool = False  # told to end
    ends_by: float = float("inf")
    aborted: bool = False  # it gave no sign of life

    def __str__(self) -> str:
        return "the scanning service" if self.is_service else f"worker {self.pid}"


class Supervisor:
    """`run` returns the exit code. `reread` gives the configuration anew, for SIGHUP."""

    def __init__(self, conf: Config, reread: Callable[[], Config], on_ready: Callable[[], None] = lambda: None) -> None:
        self.config = conf
        self.sockets = Sockets()
        self.reloads = Reloads()
        self.reloads.succeeded()
        self.reloads.count = 0
        self.children: dict[int, Child] = {}
        self._reread = reread
        self._on_ready = on_ready
        self._wanted = wiring.worker_count(conf)
        rows = 3 * self._wanted + 1  # old workers finish their mail beside the new ones; the last is the service's
        self.ledger, self._boards = Ledger(rows), Boards(rows)
        self._lifeline, self._lifeline_end = os.pipe()
        self._metrics = Metrics(listener.name for listener in conf.listeners)
        self.reloads.show(self._metrics)
        self._lives = 0
        self._gone: list[int] = []  # lives whose numbers are in ours
        self._phase = "starting"
        self._started = time.monotonic()
        self._failures = 0  # workers that died at once, in a row
        self._next_start = 0.0
        self._kill_at = float("inf")
        self._replacement: Replacement | None = None
        self._reload_wanted = False
        self._exit_code: int | None = None
        self._is_trial = True  # the first child of a kind is not up yet
        self._hung_s = watchdog_s()
        self._fed = 0.0

    # Start

    def run(self) -> int:
        """Until told to stop. Raises ConfigError, CannotListen."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._prepare()
        gc.collect()
        gc.freeze()  # what the children share with us stays shared
        self._post()
        if self.config.embedded_service:
            self._start_service()
            self._await_first()
        if self._exit_code is None:
            self.start_worker()
            self._await_first()
        self._is_trial = False
        if self._exit_code is None:
            self._tend()
        while self._exit_code is None or self.children:
            self._turn()
        log.info("stopped")
        return self._exit_code

    def _prepare(self) -> None:
        """All that can be wrong before the first process."""
        conf = self.config
        self._state = resources.make_directory(resources.state_directory(conf.state_directory), "state_directory")
        if conf.embedded_service:
            embedded.make_token(conf)
            self.sockets.hold("service", wiring.service_address(conf))
        wiring.token(conf)
        self.open_sockets(conf)
        self.sockets.warn_of_idle()
        quarantine = Quarantine(wiring.quarantine_place(conf, self._state))
        # A remote one is seen to by the first worker: obstore's threads would not survive the fork.
        if not quarantine.is_remote and (left := quarantine.clean()) > 0:
            log.info("quarantine: %d unfinished files of an earlier run removed", left)

    def open_sockets(self, conf: Config) -> None:
        """Those that are not open yet. Raises CannotListen, ConfigError."""
        for one in conf.listeners:
            self.sockets.hold(one.name, one.address, one.unix_mode, one.unix_owner)
        self.sockets.hold("admin", conf.admin.address)

    def close_sockets(self, conf: Config) -> None:
        """Those that `conf` does not name."""
        service = [("service", wiring.service_address(conf))] if conf.embedded_service else []
        self.sockets.keep_only([*wiring.addresses(conf), *service])

    def _await_first(self) -> None:
        """The first child of a kind shows whether there is any sense in starting others."""
        while not all(self.ledger.is_ready(child.row) for child in self.children.values()):
            self._turn()

    def _share(self, row: int) -> Share:
        self._lives += 1
        return Share(row, self.ledger, self._boards, self.sockets, os.getpid(), self._lifeline, self._lives)

    def start_worker(self, conf: Config | None = None) -> Child:
        conf = conf or self.config
        taken = {child.row for child in self.children.values()}
        row = next(row for row in range(self.ledger.rows - 1) if row not in taken)
        self.ledger.beat(row, time.monotonic())
        share = self._share(row)
        pid = fork(conf, self._lifeline_end, worker(conf, share))
        child = self.children[pid] = Child(pid, row, share.life, time.monotonic(), conf)
        return child

    def _start_service(self) -> None:
        row = self.ledger.rows - 1
        self.ledger.beat(row, time.monotonic())
        share = self._share(row)
        pid = fork(self.config, self._lifeline_end, service(self.config, share, self._state))
        self.children[pid] = Child(pid, row, share.life, time.monotonic(), self.config, is_service=True)

    # The loop

    def _turn(self) -> None:
        """Wait for a signal, then look after everything."""
        pause = _TURN_S if self._next_start <= time.monotonic() else 0.1
        if self._hung_s:
            pause = min(pause, self._hung_s / 4)
        heard = signal.sigtimedwait(_SIGNALS, pause)
        if heard is not None and heard.si_signo in (signal.SIGTERM, signal.SIGINT):
            self._on_stop()
        elif heard is not None and heard.si_signo == signal.SIGHUP:
            self._reload_wanted = True
        self._reap()
        if self._exit_code is not None:
            self._end_others()
        elif not self._is_trial:
            self._tend()
        self._feed_watchdog()

    def workers(self) -> list[Child]:
        """Those that are to stay."""
        return [child for child in self.children.values() if not child.is_service and not child.leaving]

    def _has_room(self) -> bool:
        """Whether all workers can be replaced: those of the last reload may still be finishing their mail."""
        return len(self.children) + self._wanted < self.ledger.rows

    def is_ready(self, child: Child) -> bool:
        return child.pid in self.children and self.ledger.is_ready(child.row)

    def _tend(self) -> None:
        """As many workers as there should be, the service, and what a reload has to do next."""
        self._kill_hung()
        self._kill_late()
        if self._replacement is None:
            self._restart()
            if self._phase == "ready" and self._reload_wanted and self._has_room():
                self._reload_wanted = False
                self._replacement = Replacement(self, self._reread)
        if self._replacement is not None and self._replacement.advance():
            self._replacement = None
            self._post()
        if self._phase == "starting" and self._is_complete():
            self._phase = "ready"
            self._post()
            notify("READY=1")
            notify(f"STATUS={self._wanted} workers take mail")
            self._on_ready()
            log.info("%d workers are ready", self._wanted)

    def _is_complete(self) -> bool:
        workers = self.workers()
        return len(workers) == self._wanted and all(map(self.is_ready, workers))

    def _restart(self) -> None:
        if time.monotonic() < self._next_start:
            return
        if self.config.embedded_service and not any(child.is_service for child in self.children.values()):
            self._start_service()
        for _ in range(self._wanted - len(self.workers())):
            self.start_worker()

    def _kill_hung(self) -> None:
        """As systemd would kill a single process whose event loop stands still: its stack goes to the log."""
        if not self._hung_s:
            return
        for child in [child for child in self.children.values() if not child.leaving]:
            if child.aborted:
                self.tell(child, signal.SIGKILL)
            elif time.monotonic() - self.ledger.last_beat(child.row) > self._hung_s:
                log.error("%s gives no sign of life: it is killed", child)
                child.aborted = True
                self.tell(child, signal.SIGABRT)

    def _kill_late(self) -> None:
        """Old workers that do not come to an end."""
        for child in self.children.values():
            if time.monotonic() >= child.ends_by:
                log.error("worker %d does not end: it is killed", child.pid)
                self.tell(child, signal.SIGKILL)

    def _feed_watchdog(self) -> None:
        if self._hung_s and time.monotonic() - self._fed >= self._hung_s / 4:
            self._fed = time.monotonic()
            notify("WATCHDOG=1")

    # Ends

    def _reap(self) -> None:
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self.children.pop(pid, None)
            if child is not None:
                self._bury(child, os.waitstatus_to_exitcode(status))

    def _bury(self, child: Child, code: int) -> None:
        """Its slots are free, its numbers ours."""
        was_ready = self.ledger.is_ready(child.row)
        self.ledger.clear(child.row)
        if text := self._boards.read(child.row):
            self._metrics.add(json.loads(text)["metrics"])
        self._gone = [*self._gone[-self.ledger.rows :], child.life]
        if not child.leaving and self._exit_code is None:
            self._mourn(child, code, was_ready)
        self._post()
        self._boards.clear(child.row)

    def _mourn(self, child: Child, code: int, was_ready: bool) -> None:
        """It ended unasked: when to start the next one, or that there is no sense in it."""
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        log.error("%s %s", child, how)
        first = self._phase == "starting"
        if not was_ready and (first or (code == CONFIG and not self.workers())):
            self._end(code if code > 0 else FAILED)
            return
        if self._replacement is not None and self._replacement.concerns(child):
            return
        self._metrics.worker_restarts.values[()] += 1
        soon = time.monotonic() - child.started < _SOON_S
        self._failures = self._failures + 1 if soon else 0
        if self._failures > 1:
            pause = min(_FIRST_PAUSE_S * 2 ** (self._failures - 2), _LONGEST_PAUSE_S)
            self._next_start = time.monotonic() + pause
            log.error("the next one is started in %.1f s", pause)

    def _on_stop(self) -> None:
        if self._exit_code is None:
            self._end(0)
            return
        log.warning("told to stop again")
        for child in self.children.values():
            if not child.is_service:
                self.tell(child, HURRY)

    def _end(self, code: int) -> None:
        self._exit_code = code
        self._phase = "stopping"
        self._post()
        notify_stopping(wiring.longest_stop_s(self.config))
        self.sockets.keep_only([])
        self._kill_at = time.monotonic() + self.config.drain_timeout + _GRACE_S
        for child in self.children.values():
            child.leaving = True
            if not child.is_service:
                self.tell(child, STOP)

    def _end_others(self) -> None:
        """The service after the last worker; whoever does not end in time is ended."""
        late = time.monotonic() >= self._kill_at
        only_service = all(child.is_service for child in self.children.values())
        for child in self.children.values():
            if late:
                log.error("process %d does not end: it is killed", child.pid)
                self.tell(child, signal.SIGKILL)
            elif only_service and child.is_service:
                self.tell(child, HURRY)
        if only_service:
            self._kill_at = min(self._kill_at, time.monotonic() + _SERVICE_GRACE_S)

    def retire(self, child: Child) -> None:
        """Another has taken its place."""
        child.leaving = True
        child.ends_by = time.monotonic() + child.conf.drain_timeout + _GRACE_S
        self.tell(child, RETIRE)

    def tell(self, child: Child, number: signal.Signals) -> None:
        os.kill(child.pid, number)  # it is not reaped, so the number is still its own

    # The board

    def _post(self) -> None:
        """What workers must know of us, to answer for all."""
        words = {
            "phase": self._phase,
            "started": self._started,
            "gone": self._gone,
            "reload": asdict(self.reloads),
            "metrics": self._metrics.snapshot(),
        }
        self._boards.write(self._boards.supervisor, json.dumps(words).encode())
