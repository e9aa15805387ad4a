"""SIGHUP: reload the configuration while mail is being processed.

This file knows which changes a reload can make, runs reloads one at a time, and records how the last
one ended. `daemon` (a single process) or `workers.rolling_reload` (several workers) carries it out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bridge.config.model import Config
from bridge.daemon import directories, wiring
from bridge.daemon.systemd import notify
from bridge.errors import ConfigError
from bridge.observe.metrics import Metrics

log = logging.getLogger(__name__)

UNEXPECTED = "an unexpected error; see the log"


@dataclass(slots=True)
class ReloadHistory:
    """How many reloads there were, and how the last one ended."""

    count: int = 0
    ok: bool = True
    problem: str = ""
    read_at: float = field(default_factory=time.time)  # Unix time at which the effective configuration was read

    def succeeded(self) -> None:
        self.count, self.ok, self.problem, self.read_at = self.count + 1, True, "", time.time()
        log.info("reload succeeded: the new configuration is in effect")

    def failed(self, problem: str) -> None:
        self.count, self.ok, self.problem = self.count + 1, False, problem
        log.error("reload failed, keeping the old configuration: %s", problem)

    def show(self, metrics: Metrics) -> None:
        metrics.reload_success.read = lambda: [((), int(self.ok))]
        metrics.reload_time.read = lambda: [((), self.read_at)]


def check_change(old: Config, new: Config) -> None:
    """Raises ConfigError when going from one to the other needs a restart."""
    if fixed := [name for name, before, after in _fixed(old, new) if before != after]:
        raise ConfigError("\n".join(f"{name}: cannot be changed by a reload; restart scanbridge" for name in fixed))


def _fixed(old: Config, new: Config) -> Iterator[tuple[str, object, object]]:
    """Effective values: a key that is left out has the value of its default, which may come from the environment."""
    yield "state_directory", _state(old), _state(new)
    yield "workers", wiring.worker_count(old), wiring.worker_count(new)
    yield "admin.address", str(old.admin.address), str(new.admin.address)
    yield "log", old.log, new.log
    yield "tracing", old.tracing, new.tracing
    yield "history", old.history, new.history
    before = {
        (listener.name, str(listener.address)): listener
        for listener in old.listeners
        if listener.protocol == "mta-hooks"
    }
    for listener in new.listeners:
        if (
            listener.protocol == "mta-hooks"
            and (other := before.get((listener.name, str(listener.address)))) is not None
        ):
            yield f"listener {listener.name}: tls", other.tls is None, listener.tls is None
    yield "state_database", old.state_database, new.state_database  # personal lists are in it even if nothing else is
    yield "state_database_password_file", old.state_database_password_file, new.state_database_password_file
    same_database = new.model_copy(update={"state_database": old.state_database})  # this key has its own line
    yield "late_decisions", wiring.effective_late_decisions(old), wiring.effective_late_decisions(same_database)
    yield "embedded_service", old.embedded_service, new.embedded_service
    if old.embedded_service:
        yield "scanner.urls", old.scanner.urls[0], new.scanner.urls[0]
        yield "scanner.token_file", old.scanner.token_file, new.scanner.token_file


def _state(conf: Config) -> Path:
    """With links resolved: /var/lib/scanbridge is a link if systemd gives the unit a dynamic user."""
    return directories.state_directory(conf.state_directory).resolve()


def notify_reloading() -> None:
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


class Reloader:
    """Runs reloads of a single process one at a time; requests during a reload cause one more, afterwards."""

    def __init__(self, reload: Callable[[], Awaitable[None]], summary: Callable[[], str]) -> None:
        self._reload = reload
        self._summary = summary
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def request(self) -> None:
        if self._task is not None and not self._task.done():
            self._again = True
            return
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._again = False
            notify_reloading()
            await self._reload()
            notify("READY=1")
            notify(f"STATUS={self._summary()}")
            if not self._again:
                return

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
