"""The daemon: starts all parts, takes the signals, and ends without losing a mail.

Order matters. The embedded service starts first and ends last, because mail in processing still
needs it; listeners start last and end first. Whatever cannot work is said before the first
listener opens, as a ConfigError. One of several workers is the same daemon, with a `Share`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, suppress
from itertools import chain
from pathlib import Path

from bridge.config import model
from bridge.config.model import Config
from bridge.daemon import resources, wiring
from bridge.daemon.admin import create_admin
from bridge.daemon.components import Common, ListenerKey, Parts, Plan, Server
from bridge.daemon.embedded import start_service
from bridge.daemon.levels import Levels
from bridge.daemon.list_refresh import ListKeeper
from bridge.daemon.loop_lag import Lag
from bridge.daemon.malloc_trim import Heap
from bridge.daemon.reload import Reloading
from bridge.daemon.sockets import Sockets
from bridge.daemon.status import Reloads, View
from bridge.daemon.systemd import feed_watchdog, notify, notify_stopping
from bridge.daemon.workers.worker_context import Share
from bridge.errors import ConfigError, StoreError
from bridge.filter.admission import Admission
from bridge.filter.outcome import Record
from bridge.mail.message import Spool
from bridge.observe.log_writer import LineWriter
from bridge.observe.mail_log import MailLog
from bridge.observe.metric_types import Counter
from bridge.observe.metrics import Metrics
from bridge.relay.monitored import RESULTS
from bridge.runtime.http_server import HttpServer
from bridge.scanner.client import Scanner

log = logging.getLogger(__name__)

HURRIED_DRAIN_S = 2.0  # after a second signal
_LAST_QUESTIONS_S = 0.5  # at the admin address, by whoever was connected when another worker took over
_LAST_ANSWERS_S = 1.0  # of next hops, when all other time is over
_FIRST_PURGE_S = 10.0
_PURGE_INTERVAL_S = 3600.0


class Daemon:
    """`start`, then `stop` (or `run`, which does both around the signals)."""

    def __init__(self, conf: Config, writer: LineWriter | None = None, share: Share | None = None) -> None:
        self.config = conf
        self.share = share
        self.state = resources.make_directory(resources.state_directory(conf.state_directory), "state_directory")
        self.metrics = Metrics(listener.name for listener in conf.listeners)
        put = logging.getLogger("scanbridge.mail").info if writer is None else writer.put
        self._mail_log = MailLog(put, as_json=conf.log.format == "json", redaction=wiring.veil(conf))
        self._tracing = wiring.tracing(conf)
        if writer is not None:
            writer.on_lost = self._on_lost_line
            writer.throttle.on_suppressed = lambda: _count(self.metrics.log_lines_held_back)
        slots, room = wiring.admission_settings(conf), wiring.spool_settings(conf)
        self.admission = Admission(slots) if share is None else share.admission(slots)
        self.spool = Spool(*room) if share is None else share.spool(*room)
        self.sockets = Sockets() if share is None else share.sockets
        self.late = wiring.late_decisions(conf, self.state, lambda end: _count(self.metrics.late_scans, end.value))
        self.keeper = ListKeeper(self.state, self.metrics, lambda: share is None or share.is_first)
        self.servers: list[Server] = []  # in the order of the listeners
        if share is not None:
            share.connections = lambda: sum(server.connections for server in self.servers)
        self.leaving: set[Server] = set()  # whose listeners a reload has taken away
        self.reloads = Reloads()
        self.reloads.succeeded()
        self.reloads.count = 0
        self.view = View(self)
        self.lag = Lag()
        self._levels = Levels(self)
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = AsyncExitStack()  # ends what was started, last first
        self.retired = False  # another worker has taken our place, and answers for us
        self._told = asyncio.Event()
        self._stopping = False
        self._ends_by = 0.0  # when stopping: beyond this nobody waits for running mail
        self._hurried_by = math.inf  # the same after a second signal, which may come before the stop has begun
        self._last_wait: asyncio.Timeout | None = None  # for answers of the next hop

    @property
    def scanner(self) -> Scanner:
        return self.parts.scanner

    async def run(self, reread: Callable[[], Config], on_ready: Callable[[], None] = lambda: None) -> None:
        """Until told to stop; SIGHUP has the configuration read anew."""
        loop = asyncio.get_running_loop()
        await self.start()
        reloading = Reloading(self, reread)
        self._ending.push_async_callback(reloading.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, reloading.begin)
        feeding = asyncio.create_task(feed_watchdog())  # to the very end: the last answers of next hops take time
        notify("READY=1")
        notify(f"STATUS={self.view.summary()}")
        on_ready()
        await self.wait_told()
        notify_stopping(wiring.longest_stop_s(self.config))
        await self.stop()
        feeding.cancel()

    def _on_signal(self) -> None:
        if self._told.is_set():
            self.hurry()
        self.tell_stop()

    def tell_stop(self) -> None:
        self._told.set()

    async def wait_told(self) -> None:
        gc.collect()
        gc.freeze()  # what is there now stays; the collector need not look at it again
        await self._told.wait()

    def hurry(self) -> None:
        """Running mail is given up soon: its client keeps it."""
        log.warning("told to stop again: running mail has %.0f s left", HURRIED_DRAIN_S)
        self._hurried_by = time.monotonic() + HURRIED_DRAIN_S
        self._ends_by = min(self._ends_by, self._hurried_by)
        if self._last_wait is not None:
            self._last_wait.reschedule(asyncio.get_running_loop().time() + HURRIED_DRAIN_S)
        if self.late is not None:
            self.late.give_up()
        for server in (*self.servers, *self.leaving):
            self.own(asyncio.get_running_loop().create_task(server.drain(HURRIED_DRAIN_S)))

    def own(self, task: asyncio.Task[None]) -> None:
        """It ends with us at the latest."""
        self._tasks = [one for one in self._tasks if not one.done()]
        self._tasks.append(task)

    async def start(self) -> None:
        """All parts, or none: what was started before one failed is ended again."""
        try:
            await self._start()
        except BaseException:
            await self._ending.aclose()
            raise

    async def _start(self) -> None:
        self._ending.callback(self.sockets.keep_only, [])
        if self._tracing is not None:
            self._ending.push_async_callback(self._tracing.close)
        if self.config.embedded_service and self.share is None:
            service = await start_service(self.config, self.state)
            self._ending.push_async_callback(service.stop, 1)
        self.parts = self.make_parts(self.config)
        self._levels.adopt(self.parts)
        self._ending.push_async_callback(self._close_parts)
        self.view.watch_levels()
        self._levels.watch()
        await self._start_admin()
        if self.late is not None:
            self._ending.push_async_callback(self.late.stop, 0.0)
            await self.late.start()
        quarantine = self.parts.quarantine
        if self.share is None and not quarantine.is_remote and (left := quarantine.clean()) > 0:
            log.info("quarantine: %d unfinished files of an earlier run removed", left)
        self.keeper.adopt(self.config)
        await self.keeper.start()
        self._ending.push_async_callback(self._end_tasks)
        self.servers = await self.listen(self.parts.plans)
        if self.share is None:
            self.sockets.warn_of_idle()
        watches = (self.lag.watch(), self._levels.take_stock(), self.keeper.watch(), Heap().watch())
        for task in (self._purge(), self._reconcile(), *watches):
            self.own(asyncio.create_task(task))
        if self.view.siblings is not None:
            self.own(asyncio.create_task(self.view.siblings.write_always()))
        self._watch = asyncio.create_task(self.parts.scanner.watch())
        self.own(self._watch)

    async def listen(self, plans: list[Plan]) -> list[Server]:
        """New servers: all of them, or none. Raises CannotListen, ConfigError."""
        servers: list[Server] = []
        with ExitStack() as undo:
            bound = [self._open(plan.listener) for plan in plans]
            for sock in chain.from_iterable(bound):
                undo.callback(sock.close)
            for plan, sockets in zip(plans, bound, strict=True):
                servers.append(plan.make())
                for sock in sockets:
                    await servers[-1].serve(sock)
                one = plan.listener
                log.info("listener %s: %s on %s, for %s", one.name, one.protocol, one.address, one.profile)
            undo.pop_all()
        return servers

    def _open(self, listener: model.Listener) -> list[socket.socket]:
        return self.sockets.open(listener.name, listener.address, listener.unix_mode, listener.unix_owner)

    def _common(self) -> Common:
        return Common(
            state=self.state,
            admission=self.admission,
            spool=self.spool,
            late=self.late,
            copies=self.keeper.copies,
            report=self._report,
            trace=self._tracing.begin if self._tracing is not None else None,
            on_refused=lambda listener, reason: _count(self.metrics.refused_connections, listener, reason),
            on_saturated=lambda listener, stage: _count(self.metrics.refused_early, listener, stage),
            on_limit=lambda listener, limit: _count(self.metrics.limits_hit, listener, limit),
            on_handed=lambda next_hop, result: _count(self.metrics.next_hop_mails, next_hop, result),
            is_ahead=self.share.is_ahead if self.share is not None else None,
        )

    def _on_lost_line(self) -> None:
        _count(self.metrics.log_lines_lost)

    def _report(self, record: Record) -> None:
        self.metrics.record(record)
        self._mail_log.decided(record)
        if self._tracing is not None:
            self._tracing.report(record)

    async def _start_admin(self) -> None:
        app = create_admin(self.view.registry, problem=self.view.problem, state=self.view.state)
        self._admin = HttpServer(app, self.sockets.open("admin", self.config.admin.address))
        self._ending.push_async_callback(self.stop_admin)
        await self._admin.start()

    async def stop_admin(self) -> None:
        await self._admin.stop(1)

    def problem(self) -> str:
        """Why this process takes no mail; "" when it does."""
        if self._stopping:
            return "stopping"
        return "" if self.servers else "starting"

    def make_parts(self, conf: Config) -> Parts:
        """All that `conf` names, for a reload beside what runs. Raises ConfigError."""
        parts = Parts(conf, self._common())
        self.metrics.next_hop_mails.start([hop.name for hop in parts.hops], RESULTS)
        return parts

    def swap(self, parts: Parts, fresh: Mapping[ListenerKey, Server]) -> None:
        """For a reload: from now on these parts, with `fresh` servers for the listeners that are new."""
        old, self.parts, self.config = self.parts, parts, parts.config
        self._levels.adopt(parts)
        running = dict(zip((plan.key for plan in old.plans), self.servers, strict=True))
        self.servers = []
        for plan in parts.plans:
            server = running.pop(plan.key, None) or fresh[plan.key]
            plan.change(server)
            self.servers.append(server)
        for server in running.values():
            self.own(asyncio.create_task(self._leave(server)))
        self.admission.settings = wiring.admission_settings(self.config)
        self.spool.limit, self.spool.memory_per_mail, self.spool.directory = wiring.spool_settings(self.config)
        self.sockets.keep_only(wiring.addresses(self.config))
        self.keeper.adopt(self.config)
        self._watch.cancel()
        self._watch = asyncio.create_task(parts.scanner.watch())
        self.own(self._watch)
        self.own(asyncio.create_task(_close_later(old)))

    async def _leave(self, server: Server) -> None:
        self.leaving.add(server)
        await server.drain(self.config.drain_timeout)
        self.leaving.discard(server)

    async def _reconcile(self) -> None:
        """Remote storage may be slow or down when we start, and mail does not wait for it."""
        quarantine = self.parts.quarantine
        if not quarantine.is_remote or (self.share is not None and not self.share.is_first):
            return
        try:
            if (left := await quarantine.reconcile()) > 0:
                log.info("quarantine: %d unfinished objects of an earlier run removed", left)
        except StoreError as exc:
            log.error("the quarantine cannot be used; mail for it is answered with 451: %s", exc)

    async def _purge(self) -> None:
        """Quarantined mail beyond its retention, once an hour, and not in the rush of the start."""
        await asyncio.sleep(_FIRST_PURGE_S)
        while True:
            try:
                if self.share is None or self.share.is_first:
                    await self.parts.quarantine.purge(self.config.quarantine.retention)
                    if self.parts.quarantine.is_remote:
                        await self.parts.quarantine.reconcile()
            except StoreError as exc:
                log.error("old mail could not be removed from the quarantine: %s", exc)
            await asyncio.sleep(_PURGE_INTERVAL_S)

    async def stop(self, drain_s: float | None = None, on_closed: Callable[[], None] = lambda: None) -> None:
        """Running mail is finished within the time, everything else ends now."""
        self._stopping = True
        if self.retired:
            self._admin.stop_accepting()
        self.sockets.keep_only([("admin", self.config.admin.address)])
        limit = self.config.drain_timeout if drain_s is None else drain_s
        self._ends_by = min(time.monotonic() + limit, self._hurried_by)
        drains = [asyncio.create_task(server.drain(limit)) for server in (*self.servers, *self.leaving)]
        await asyncio.sleep(0)  # each of them has closed its listening sockets now
        on_closed()
        await asyncio.gather(*drains)
        if self.late is not None:
            await self.late.stop(max(self._ends_by - time.monotonic(), 0.0))
        if self.retired:
            await asyncio.sleep(_LAST_QUESTIONS_S)
        if self.view.siblings is not None:
            self.view.siblings.write()  # what we have counted outlives us
        await self._ending.aclose()
        log.info("stopped")

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _close_parts(self) -> None:
        """Mail whose final dot is written may still be answered. It is the next hop's in any case."""
        try:
            async with asyncio.timeout(max(self._ends_by - time.monotonic(), _LAST_ANSWERS_S)) as self._last_wait:
                await self.parts.close()
        except TimeoutError:
            log.warning("stopped without the next hop's answer to some mails: their clients send them again")
        finally:
            self._last_wait = None


def _count(counter: Counter, *labels: str) -> None:
    counter.values[labels] += 1


async def _close_later(parts: Parts) -> None:
    """When the last mail that began with them is over; at the latest when we end."""
    try:
        await asyncio.sleep(parts.longest_s)
    except asyncio.CancelledError:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS_S):
                await parts.close()
        raise
    await parts.close()


def load(path: Path | None) -> Config:
    """The file's configuration, or the embedded default. Raises ConfigError."""
    if path is not None:
        return model.load(path)
    state = resources.state_directory(None)
    resources.make_directory(state, "the state directory")
    try:
        return model.embedded(state)
    except ConfigError as exc:
        raise ConfigError(f"the state directory {state} cannot be written into a configuration: {exc}") from exc
