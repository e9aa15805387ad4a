"""The supervisor: starts the workers, restarts those that die, and handles the signals.

It handles no mail and runs no event loop and no thread: one loop waits for a signal and then checks
everything there is to do. When a worker exits, its slots are free immediately, and what it had
counted is added to the supervisor's own snapshot.
"""

from __future__ import annotations

import gc
import json
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import asdict

from bridge.config.model import Config
from bridge.daemon import directories, embedded, quarantine_upkeep, wiring
from bridge.daemon.reload import ReloadHistory
from bridge.daemon.systemd import notify, notify_stopping, watchdog_s
from bridge.daemon.workers.child import CONFIG, FAILED, HURRY, STOP
from bridge.daemon.workers.processes import GRACE_S, Child, Processes
from bridge.daemon.workers.rolling_reload import RollingReload
from bridge.observe.metrics import Metrics
from bridge.quarantine.quarantine import Quarantine
from bridge.runtime.early_signals import EarlySignals

log = logging.getLogger(__name__)

_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1}
_TURN_S = 1.0
_SOON_S = 3.0  # a process that exits within this time has failed to start
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
_SERVICE_GRACE_S = 5.0


class Supervisor:
    """`run` returns the exit code. `reread` reads the configuration again, for SIGHUP."""

    def __init__(
        self,
        conf: Config,
        reread: Callable[[], Config],
        early: EarlySignals,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._state = directories.make_directory(directories.state_directory(conf.state_directory), "state_directory")
        self._processes = Processes(conf, self._state)
        self._reread = reread
        self._on_ready = on_ready
        self._reloads = ReloadHistory()
        self._metrics = Metrics(listener.name for listener in conf.listeners)
        self._reloads.show(self._metrics)
        self._gone: list[int] = []  # lives of workers whose counts are in our metrics
        self._phase = "starting"
        self._is_trial = True  # the first child of a kind is not up yet
        self._started = time.monotonic()
        self._failures = 0  # processes that exited soon after their start, in a row
        self._next_start = 0.0
        self._early = early
        self._reload_wanted = False
        self._reload: RollingReload | None = None  # the one in progress
        self._exit_code: int | None = None  # set once the supervisor stops
        self._kill_at = float("inf")
        self._hung_s = watchdog_s()
        self._fed = 0.0

    # Start

    def run(self) -> int:
        """Run until told to stop. Raises ConfigError, CannotListen."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._reload_wanted = self._early.seen
        self._prepare(self._processes.config)
        gc.collect()
        gc.freeze()  # so that memory shared with the children stays shared
        self._publish()
        if self._processes.config.embedded_service:
            self._processes.start_service()
            self._wait_ready()
        if self._exit_code is None:
            self._processes.start_worker()
            self._wait_ready()
        self._is_trial = False
        if self._exit_code is None:
            self._tend()
        while self._exit_code is None or len(self._processes):
            self._turn()
        log.info("stopped")
        return self._exit_code

    def _prepare(self, conf: Config) -> None:
        """Everything that can fail before the first process is started."""
        if conf.embedded_service:
            embedded.make_secrets(conf)
            self._processes.open_service_socket()
        wiring.token(conf)
        self._processes.open_sockets(conf)
        self._processes.sockets.warn_of_idle()
        # Object storage is left to the first worker: obstore's threads would not survive the fork.
        quarantine_upkeep.clean(Quarantine(wiring.quarantine_place(conf, self._state)))

    def _wait_ready(self) -> None:
        """The first child of a kind shows whether others would start at all."""
        while not all(map(self._processes.is_ready, self._processes)):
            self._turn()

    # The loop

    def _turn(self) -> None:
        """Wait for a signal, then look after everything."""
        pause = _TURN_S if self._next_start <= time.monotonic() else 0.1
        if self._hung_s:
            pause = min(pause, self._hung_s / 4)
        received = signal.sigtimedwait(_SIGNALS, pause)
        if received is not None and received.si_signo in (signal.SIGTERM, signal.SIGINT):
            self._on_stop()
        elif received is not None and received.si_signo == signal.SIGHUP:
            self._reload_wanted = True
        for child, code in self._processes.reap():
            self._on_exit(child, code)
        if self._exit_code is not None:
            self._end_others()
        elif not self._is_trial:
            self._tend()
        self._feed_watchdog()

    def _tend(self) -> None:
        """Keep the wanted number of workers and the service running, and advance a reload."""
        self._kill_hung()
        self._kill_late()
        if self._reload is None:
            self._restart()
            if self._phase == "ready" and self._reload_wanted and self._processes.has_room:
                self._reload_wanted = False
                self._reload = RollingReload(self._processes, self._reloads, self._reread)
        if self._reload is not None and self._reload.advance():
            self._reload = None
            self._publish()
        if self._phase == "starting" and self._is_complete():
            self._on_complete()

    def _is_complete(self) -> bool:
        workers = self._processes.workers()
        return len(workers) == self._processes.workers_wanted and all(map(self._processes.is_ready, workers))

    def _on_complete(self) -> None:
        wanted = self._processes.workers_wanted
        self._phase = "ready"
        self._publish()
        notify("READY=1")
        notify(f"STATUS={wanted} workers accept mail")
        self._on_ready()
        log.info("%d workers are ready", wanted)

    def _restart(self) -> None:
        if time.monotonic() < self._next_start:
            return
        if self._processes.config.embedded_service and not self._processes.has_service:
            self._processes.start_service()
        for _ in range(self._processes.workers_wanted - len(self._processes.workers())):
            self._processes.start_worker()

    def _kill_hung(self) -> None:
        """Just as systemd kills a single process whose event loop is blocked: SIGABRT puts the stack into the log."""
        if not self._hung_s:
            return
        for child in self._processes:
            if child.leaving:
                continue
            if child.aborted:
                self._processes.send(child, signal.SIGKILL)
            elif self._processes.silent_s(child) > self._hung_s:
                log.error("%s is not responding; killing it", child)
                child.aborted = True
                self._processes.send(child, signal.SIGABRT)

    def _kill_late(self) -> None:
        """Kill replaced workers that did not exit within their drain time."""
        for child in self._processes:
            if time.monotonic() >= child.ends_by:
                self._kill(child)

    def _kill(self, child: Child) -> None:
        log.error("%s did not exit in time; killing it", child)
        self._processes.send(child, signal.SIGKILL)

    def _feed_watchdog(self) -> None:
        if self._hung_s and time.monotonic() - self._fed >= self._hung_s / 4:
            self._fed = time.monotonic()
            notify("WATCHDOG=1")

    # When a child exits

    def _on_exit(self, child: Child, code: int) -> None:
        """Free its slots, keep its counts, and decide what comes next."""
        counters, snapshots = self._processes.counters, self._processes.snapshots
        was_ready = counters.is_ready(child.row)
        counters.clear(child.row)
        if text := snapshots.read(child.row):
            self._metrics.add(json.loads(text)["metrics"])
        self._gone = [*self._gone[-counters.rows :], child.life]
        if not child.leaving and self._exit_code is None:
            self._on_unexpected_exit(child, code, was_ready)
        self._publish()
        snapshots.clear(child.row)

    def _on_unexpected_exit(self, child: Child, code: int, was_ready: bool) -> None:
        """Start another one, soon or after a pause; or stop, if another one would fail as well."""
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        log.error("%s %s", child, how)
        if not was_ready and (self._phase == "starting" or (code == CONFIG and not self._processes.workers())):
            self._begin_stop(code if code > 0 else FAILED)
            return
        if self._reload is not None and self._reload.handles(child):
            return
        self._metrics.worker_restarts.values[()] += 1
        soon = time.monotonic() - child.started < _SOON_S
        self._failures = self._failures + 1 if soon else 0
        if self._failures > 1:
            pause = min(_FIRST_PAUSE_S * 2 ** (self._failures - 2), _LONGEST_PAUSE_S)
            self._next_start = time.monotonic() + pause
            log.error("%d processes in a row exited soon after starting; pausing for %.1f s", self._failures, pause)

    # Stop

    def _on_stop(self) -> None:
        if self._exit_code is None:
            self._begin_stop(0)
            return
        log.warning("second stop signal: mail still being processed will be abandoned shortly")
        for child in self._processes:
            if not child.is_service:
                self._processes.send(child, HURRY)

    def _begin_stop(self, code: int) -> None:
        conf = self._processes.config
        self._exit_code = code
        self._phase = "stopping"
        self._publish()
        notify_stopping(wiring.longest_stop_s(conf))
        self._processes.sockets.keep_only([])
        self._kill_at = time.monotonic() + conf.drain_timeout + GRACE_S
        for child in self._processes:
            child.leaving = True
            if not child.is_service:
                self._processes.send(child, STOP)

    def _end_others(self) -> None:
        """Stop the service after the last worker, and kill processes that did not exit in time."""
        late, only_service = time.monotonic() >= self._kill_at, self._processes.only_service
        for child in self._processes:
            if late:
                self._kill(child)
            elif only_service:
                self._processes.send(child, HURRY)
        if only_service:
            self._kill_at = min(self._kill_at, time.monotonic() + _SERVICE_GRACE_S)

    # Our snapshot

    def _publish(self) -> None:
        """Write what workers must know about us, to answer for the whole daemon."""
        snapshot = {
            "phase": self._phase,
            "started": self._started,
            "gone": self._gone,
            "reload": asdict(self._reloads),
            "metrics": self._metrics.snapshot(),
        }
        snapshots = self._processes.snapshots
        snapshots.write(snapshots.supervisor, json.dumps(snapshot).encode())
