"""SIGHUP: read the configuration anew while mail goes on.

Everything that can fail comes first and beside what runs; then the swap, in one step. Listeners
that stay keep their sockets and connections, new ones open, removed ones drain. A file that cannot
be used changes nothing, and is said in the log, in the metrics and to `scanbridge reload`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.daemon.systemd import notify
from bridge.errors import BridgeError, ConfigError

if TYPE_CHECKING:
    from bridge.daemon.daemon import Daemon

log = logging.getLogger(__name__)

UNEXPECTED = "an unexpected error; the log has it"


def check_change(old: Config, new: Config) -> None:
    """Raises ConfigError when a restart is needed to go from one to the other."""
    if fixed := [name for name, before, after in _fixed(old, new) if before != after]:
        raise ConfigError("\n".join(f"{name}: can be changed by a restart only" for name in fixed))


def _fixed(old: Config, new: Config) -> Iterator[tuple[str, object, object]]:
    yield "state_directory", old.state_directory, new.state_directory
    yield "workers", wiring.worker_count(old), wiring.worker_count(new)
    yield "admin.address", str(old.admin.address), str(new.admin.address)
    yield "log", old.log, new.log
    yield "tracing", old.tracing, new.tracing
    yield "late_decisions", old.late_decisions, new.late_decisions
    yield "embedded_service", old.embedded_service, new.embedded_service
    if old.embedded_service:
        yield "scanner.urls", old.scanner.urls[0], new.scanner.urls[0]
        yield "scanner.token_file", old.scanner.token_file, new.scanner.token_file


def notify_reloading() -> None:
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")


class Reloading:
    """Of a single process. One after the other: what is asked for meanwhile is done once, afterwards."""

    def __init__(self, daemon: Daemon, reread: Callable[[], Config]) -> None:
        self._daemon = daemon
        self._reread = reread
        self._task: asyncio.Task[None] | None = None
        self._again = False

    def begin(self) -> None:
        if self._task is not None and not self._task.done():
            self._again = True
            return
        self._task = asyncio.create_task(self._reload())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _reload(self) -> None:
        while True:
            self._again = False
            notify_reloading()
            await self._once()
            notify("READY=1")
            notify(f"STATUS={self._daemon.view.summary()}")
            if not self._again:
                return

    async def _once(self) -> None:
        problem = ""
        try:
            await self._apply(self._reread())
        except BridgeError as exc:
            problem = str(exc)
            log.error("SIGHUP: the old configuration stays: %s", problem)
        except Exception:
            problem = UNEXPECTED
            log.exception("SIGHUP: the old configuration stays")
        if problem:
            self._daemon.reloads.failed(problem)
        else:
            self._daemon.reloads.succeeded()
            log.info("SIGHUP: the new configuration is in force")

    async def _apply(self, conf: Config) -> None:
        daemon = self._daemon
        check_change(daemon.config, conf)
        parts = daemon.make_parts(conf)
        known = {plan.key for plan in daemon.parts.plans}
        new = [plan for plan in parts.plans if plan.key not in known]
        daemon.metrics.start(listener.name for listener in conf.listeners)
        try:
            servers = await daemon.listen(new)
        except BaseException:
            daemon.sockets.keep_only(wiring.addresses(daemon.config))
            await parts.close()
            raise
        daemon.swap(parts, dict(zip((plan.key for plan in new), servers, strict=True)))
