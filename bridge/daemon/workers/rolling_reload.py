"""A reload with workers: each is replaced by a new one with the new configuration, one after the other.

The new worker first, then the old one drains: ports never close, and mail in processing is finished
by the worker that has it. The first new worker is the trial: if it does not come up, the old
configuration stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bridge.config.model import Config
from bridge.daemon.reload import UNEXPECTED, check_change, notify_reloading
from bridge.daemon.systemd import notify
from bridge.errors import BridgeError

if TYPE_CHECKING:
    from bridge.daemon.workers.supervisor import Child, Supervisor

log = logging.getLogger(__name__)

_NOT_UP = "a worker did not come up with it; the log says why"


class Replacement:
    """`advance` after each signal, until it says that it is over."""

    def __init__(self, supervisor: Supervisor, reread: Callable[[], Config]) -> None:
        self._supervisor = supervisor
        self._conf: Config | None = None
        self._old = supervisor.workers()
        self._new: Child | None = None
        self._retired: list[Child] = []
        self._problem = ""
        notify_reloading()
        try:
            conf = reread()
            check_change(supervisor.config, conf)
            supervisor.open_sockets(conf)
            self._conf = conf
        except BridgeError as exc:
            self._problem = str(exc)
        except Exception:
            log.exception("SIGHUP: an unexpected error")
            self._problem = UNEXPECTED

    def concerns(self, child: Child) -> bool:
        """Whether this end of a child is ours to deal with."""
        return child is self._new

    def advance(self) -> bool:
        """Do what can be done now. True when the reload is over."""
        supervisor = self._supervisor
        if self._conf is None:
            return self._end()
        if self._new is not None:
            if self._new.pid not in supervisor.children:
                self._problem = _NOT_UP
                return self._end()
            if not supervisor.is_ready(self._new):
                return False
            supervisor.config = self._conf
            self._new = None
            old = self._old.pop(0)
            if old.pid in supervisor.children:
                supervisor.retire(old)
                self._retired.append(old)
        if not self._old:  # over when no old worker takes connections any more
            return not any(map(supervisor.is_ready, self._retired)) and self._end()
        self._new = supervisor.start_worker(self._conf)
        return False

    def _end(self) -> bool:
        supervisor = self._supervisor
        supervisor.close_sockets(supervisor.config)
        if self._problem:
            if supervisor.config is self._conf:
                self._problem = "only some workers have the new one, others the old one still: " + self._problem
            supervisor.reloads.failed(self._problem)
            log.error("SIGHUP: the old configuration stays: %s", self._problem)
        else:
            supervisor.reloads.succeeded()
            log.info("SIGHUP: the new configuration is in force")
        notify("READY=1")
        failed = f"the last reload failed: {self._problem.partition(chr(10))[0]}"
        notify(f"STATUS={failed if self._problem else 'reloaded; taking mail'}")
        return True
