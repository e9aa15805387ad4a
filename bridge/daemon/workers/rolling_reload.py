"""A reload with several workers: each is replaced by one with the new configuration, one after another.

The new worker starts first, then the old one drains: ports never close, and mail in processing is
finished by the worker that has it. The first new worker is the test: if it does not start, the old
configuration is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from bridge.config.model import Config
from bridge.daemon.reload import UNEXPECTED, ReloadHistory, check_change, notify_reloading
from bridge.daemon.systemd import notify
from bridge.daemon.workers.processes import Child, Processes
from bridge.errors import BridgeError

log = logging.getLogger(__name__)

_NOT_STARTED = "a worker did not start with the new configuration; see the log"


class RollingReload:
    """Call `advance` after each signal, until it returns True."""

    def __init__(self, processes: Processes, reloads: ReloadHistory, reread: Callable[[], Config]) -> None:
        self._processes = processes
        self._reloads = reloads
        self._old = processes.workers()
        self._retired: list[Child] = []
        self._new: Child | None = None  # the worker that is starting
        notify_reloading()
        self._conf, self._problem = self._read(reread)

    def _read(self, reread: Callable[[], Config]) -> tuple[Config | None, str]:
        """The new configuration, with its sockets open; or None and the problem."""
        try:
            conf = reread()
            check_change(self._processes.config, conf)
            self._processes.open_sockets(conf)
            return conf, ""
        except BridgeError as exc:
            return None, str(exc)
        except Exception:
            log.exception("reload: unexpected error")
            return None, UNEXPECTED

    def handles(self, child: Child) -> bool:
        """Whether the exit of this child is dealt with here: it is the worker that is starting."""
        return child is self._new

    def advance(self) -> bool:
        """Do what can be done now. Returns True when the reload is over."""
        if self._conf is None:
            return self._finish()
        if self._new is not None:
            if self._new not in self._processes:
                self._problem = _NOT_STARTED
                return self._finish()
            if not self._processes.is_ready(self._new):
                return False
            self._replace_one(self._conf)
        if not self._old:  # over when no old worker accepts connections any more
            return not any(map(self._processes.is_ready, self._retired)) and self._finish()
        self._new = self._processes.start_worker(self._conf)
        return False

    def _replace_one(self, conf: Config) -> None:
        """The new worker accepts mail: the configuration works, and an old worker can go."""
        self._processes.use(conf)
        self._new = None
        old = self._old.pop(0)
        if old in self._processes:
            self._processes.retire(old)
            self._retired.append(old)

    def _finish(self) -> bool:
        self._processes.close_unused_sockets()
        if not self._problem:
            self._reloads.succeeded()
            self._notify("reloaded; accepting mail")
            return True
        if self._processes.config is self._conf:
            self._problem = (
                "only some workers have the new configuration; the others still have the old one: " + self._problem
            )
        self._reloads.failed(self._problem)
        self._notify(f"the last reload failed: {self._problem.partition(chr(10))[0]}")
        return True

    def _notify(self, status: str) -> None:
        notify("READY=1")
        notify(f"STATUS={status}")
