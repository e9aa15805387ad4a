"""The process of `scanbridge console`: start, upkeep, signals, stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from bridge.console.app import create_app, create_console
from bridge.console.audit import Audit
from bridge.console.console import Console
from bridge.console.database import ConsoleStoreError
from bridge.console.sources import Sources
from bridge.quarantine.purge_guard import ClockInDoubt, PurgeGuard
from bridge.runtime.early_signals import EarlySignals
from bridge.runtime.http_server import HttpLimits, HttpServer
from bridge.runtime.lasting import lasting

log = logging.getLogger(__name__)

_LIMITS = HttpLimits(max_head_bytes=32 * 1024, head_timeout_s=15.0, max_connections=500, unread_timeout_s=30.0)
_UPKEEP_S = 3600.0
_NICE = 5  # mail comes first, whatever people ask for
_SWITCH_S = 0.001  # threads switch this often, so that pages do not wait long for one that counts or reads a list
_DRAIN_S = 5.0
_JOBS_S = 15.0  # together with the time before, less than the unit's TimeoutStopSec


def give_way_to_mail() -> None:
    """Lowers the priority of this process, and lets its threads switch more often."""
    sys.setswitchinterval(_SWITCH_S)
    if os.nice(0) <= 0:  # the unit may have done it
        os.nice(_NICE)


def explain_hangup(early: EarlySignals, name: str) -> None:
    """From now on, a SIGHUP is logged and does not end the process."""

    def explain() -> None:
        log.warning("%s: SIGHUP does not reload the configuration; restart this process", name)

    early.pass_to(explain, asyncio.get_running_loop())


async def run(
    sources: Sources,
    sockets: Sequence[socket.socket],
    on_ready: Callable[[HttpServer], None],
    early: EarlySignals,
    *,
    ends_with_input: bool = False,
) -> None:
    """Answer until SIGTERM or SIGINT, or until standard input ends: that means that our parent process is gone."""
    give_way_to_mail()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    explain_hangup(early, "console")
    if ends_with_input:
        loop.add_reader(0, lambda: None if os.read(0, 4096) else stop.set())
    console = create_console(sources)
    server = HttpServer(create_app(console), sockets, limits=_LIMITS)
    await server.start()
    upkeep = asyncio.create_task(lasting(partial(_upkeep, console), "console", _UPKEEP_S))
    on_ready(server)
    await stop.wait()
    early.ignore()
    console.live.stop()
    upkeep.cancel()
    await server.stop(_DRAIN_S)
    await console.uploads.stop()
    await console.jobs.stop(_JOBS_S)
    await asyncio.to_thread(sources.store.close)
    await asyncio.to_thread(sources.history.close)


def delete_old_entries(audit: Audit, retention_s: float, guard: PurgeGuard) -> None:
    """Raises ClockInDoubt, ConsoleStoreError."""
    oldest = time.time() - retention_s
    guard.check((), oldest)
    audit.delete_before(oldest)


async def _upkeep(console: Console) -> None:
    """Delete what is too old, once an hour."""
    sources, guard = console.sources, PurgeGuard(what="old entries of the audit log will be deleted", now="")
    while True:
        console.uploads.forget_old()
        try:
            await asyncio.to_thread(delete_old_entries, sources.audit, sources.console.audit_retention, guard)
        except (ConsoleStoreError, ClockInDoubt) as exc:
            log.warning("console: %s", exc)
        await asyncio.sleep(_UPKEEP_S)
