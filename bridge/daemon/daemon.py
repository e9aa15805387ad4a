"""The daemon: starts everything, follows the signals, and stops without losing a mail.

The order matters. The embedded service starts first and stops last, because mail in processing still
needs it; listeners start last and stop first. Whatever cannot work is reported before the first
listener opens, as a ConfigError. One of several workers is the same daemon in another `WorkerContext`.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from functools import partial

from bridge.config.model import Config
from bridge.daemon import quarantine_upkeep, wiring
from bridge.daemon.addresses import ADMIN_KEY, addresses
from bridge.daemon.admin import AdminView, create_admin
from bridge.daemon.components import Components, Server
from bridge.daemon.core import Core, build_core
from bridge.daemon.embedded import accept_new_token, start_service
from bridge.daemon.event_sources import watch_event_sources
from bridge.daemon.gauges import connect_gauges
from bridge.daemon.http_api.build import build_api
from bridge.daemon.list_refresh import ListRefresh
from bridge.daemon.listeners import Listeners, Servers
from bridge.daemon.malloc_trim import MallocTrim
from bridge.daemon.next_hop_watch import watch_next_hops
from bridge.daemon.personal_refresh import PersonalRefresh
from bridge.daemon.quarantine_upkeep import QuarantineUpkeep
from bridge.daemon.reload import UNEXPECTED, Reloader, ReloadHistory, check_change
from bridge.daemon.running import Running
from bridge.daemon.shutdown import HURRIED_DRAIN_S, Shutdown
from bridge.daemon.status import Status
from bridge.daemon.systemd import feed_watchdog, notify, notify_stopping
from bridge.daemon.tasks import BackgroundTasks
from bridge.daemon.workers.worker_context import SingleProcess, WorkerContext
from bridge.errors import BridgeError
from bridge.filter.admission import Admission
from bridge.filter.late.decisions import LateDecisions
from bridge.history.recorder import Recorder
from bridge.mail.message import Spool
from bridge.observe.log_writer import LineWriter
from bridge.observe.metrics import Metrics
from bridge.runtime.early_signals import EarlySignals
from bridge.runtime.http_server import HttpServer
from bridge.runtime.threads import use_daemon_threads
from bridge.scanner.client import Scanner
from bridge.service.server import ServiceServer

log = logging.getLogger(__name__)

_LAST_QUESTIONS_S = 0.5  # for connected clients of the admin address when another worker has taken over
# New objects before the collector looks for cycles. Mails wait in memory for the threads of history and events: with
# Python's 700, it looked at each of them up to three times (3 us per mail).
_MANY_OBJECTS = 5_000
_LAST_ANSWERS_S = 1.0  # for answers of next hops, when all other time is up


async def run(
    conf: Config,
    writer: LineWriter,
    reread: Callable[[], Config],
    early: EarlySignals,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Run as a single process until SIGTERM or SIGINT; SIGHUP reloads the configuration."""
    loop = asyncio.get_running_loop()
    use_daemon_threads()
    shutdown = Shutdown()
    daemon = await Daemon.start(conf, writer, shutdown=shutdown)
    reloader = Reloader(lambda: daemon.reload(reread), daemon.status.summary)
    daemon.close_with(reloader.close)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shutdown.request_or_hurry)
    early.pass_to(reloader.request, loop)
    feeding = asyncio.create_task(feed_watchdog())  # until the very end: the last answers of next hops take time
    notify("READY=1")
    notify(f"STATUS={daemon.status.summary()}")
    on_ready()
    await daemon.wait_for_stop()
    early.ignore()
    notify_stopping(wiring.longest_stop_s(daemon.config))
    await daemon.stop()
    feeding.cancel()


class Daemon:
    """A running daemon, from `Daemon.start` to `stop`."""

    def __init__(
        self,
        running: Running,
        shutdown: Shutdown,
        status: Status,
        view: AdminView,
        admin: HttpServer,
        tasks: BackgroundTasks,
        ending: AsyncExitStack,
        service: ServiceServer | None,
    ) -> None:
        self.status = status
        self.view = view
        self._running = running
        self._core = running.core
        self._shutdown = shutdown
        self._admin = admin
        self._tasks = tasks
        self._ending = ending  # stops what was started, last first
        self._service = service  # the embedded one, if it runs in this process
        self._scanner_watch = tasks.keep(running.scanner.watch, "scanner")
        shutdown.call_on_hurry(self._hurry)

    @classmethod
    async def start(
        cls,
        conf: Config,
        writer: LineWriter | None = None,
        worker: WorkerContext | None = None,
        shutdown: Shutdown | None = None,
    ) -> Daemon:
        """Start everything, or nothing: if a step fails, the steps before it are undone. Raises BridgeError."""
        core = build_core(conf, writer, worker or SingleProcess())
        ending = AsyncExitStack()
        try:
            return await _start(conf, core, shutdown or Shutdown(), ending)
        except BaseException:
            await ending.aclose()
            raise

    @property
    def config(self) -> Config:
        return self._running.config

    @property
    def components(self) -> Components:
        return self._running.components

    @property
    def scanner(self) -> Scanner:
        return self._running.scanner

    @property
    def servers(self) -> list[Server]:
        return self._running.listeners.servers

    @property
    def admission(self) -> Admission:
        return self._core.admission

    @property
    def spool(self) -> Spool:
        return self._core.spool

    @property
    def late(self) -> LateDecisions | None:
        return self._core.late

    @property
    def metrics(self) -> Metrics:
        return self._core.metrics

    @property
    def list_refresh(self) -> ListRefresh:
        return self._core.list_refresh

    @property
    def personal(self) -> PersonalRefresh:
        return self._core.personal

    @property
    def history(self) -> Recorder | None:
        return self._core.history

    @property
    def reloads(self) -> ReloadHistory:
        return self._core.reloads

    # Reload

    async def reload(self, reread: Callable[[], Config]) -> None:
        """Switch to a new configuration while mail is being processed; a bad one changes nothing."""
        try:
            await self._apply(reread())
        except BridgeError as exc:
            self.reloads.failed(str(exc))
        except Exception:
            log.exception("reload: unexpected error")
            self.reloads.failed(UNEXPECTED)
        else:
            self.reloads.succeeded()

    async def _apply(self, conf: Config) -> None:
        """Everything that can fail comes first, next to what is running; then the switch, in one step."""
        check_change(self.config, conf)
        new = Components(conf, self._core)
        self.metrics.start(listener.name for listener in conf.listeners)
        opened: Servers = {}
        try:
            opened = await self._running.listeners.open_missing(new.plans)
            if self._service is not None:
                await accept_new_token(self._service, conf, self._core.state)
            if self._shutdown.has_begun:
                raise BridgeError("the daemon is stopping")
        except BaseException:
            await self._running.listeners.close_unused(opened)
            self._core.worker.sockets.keep_only(addresses(self.config))
            await new.close()
            raise
        old = self.components
        for server in self._running.switch_to(new, opened):
            self._tasks.start(self._running.listeners.drain_removed(server, conf.drain_timeout))
        self._scanner_watch.cancel()
        self._scanner_watch = self._tasks.keep(new.scanner.watch, "scanner")
        self._tasks.start(_close_later(old))

    # Stop

    async def wait_for_stop(self) -> None:
        gc.collect()
        gc.freeze()  # everything allocated so far lives as long as the process; the collector can skip it
        gc.set_threshold(_MANY_OBJECTS)
        await self._shutdown.wait_requested()

    def close_with(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` before anything else is closed."""
        self._ending.push_async_callback(close)

    async def stop(self, drain_s: float | None = None, on_closed: Callable[[], None] = lambda: None) -> None:
        """Finish mail in processing within `drain_s` (default: `drain_timeout`), then close everything.

        `on_closed` is called when no listener accepts connections any more.
        """
        core, retired = self._core, self._core.worker.is_retired
        limit_s = self.config.drain_timeout if drain_s is None else drain_s
        self._shutdown.begin(limit_s)
        if retired:
            self._admin.stop_accepting()
        core.worker.sockets.keep_only([(ADMIN_KEY, self.config.admin.address)])
        drains = self._running.listeners.start_drain(limit_s)
        await asyncio.sleep(0)  # lets each of them close its listening sockets
        on_closed()
        await asyncio.gather(*drains)
        if core.late is not None:
            await core.late.stop(self._shutdown.remaining_s)
        if retired:
            await asyncio.sleep(_LAST_QUESTIONS_S)
        await core.events.close()
        self.view.publish()  # what this process has counted must outlive it
        await self._ending.aclose()
        log.info("stopped")

    def _hurry(self) -> None:
        if self._core.late is not None:
            self._core.late.give_up()
        for task in self._running.listeners.start_drain(HURRIED_DRAIN_S):
            self._tasks.own(task)


async def _start(conf: Config, core: Core, shutdown: Shutdown, ending: AsyncExitStack) -> Daemon:
    """Every step that must be undone adds its undoing to `ending`."""
    worker, tasks = core.worker, BackgroundTasks()
    ending.callback(worker.sockets.keep_only, [])
    if core.tracing is not None:
        ending.push_async_callback(core.tracing.close)
    if core.history is not None:
        core.history.start()
        ending.push_async_callback(asyncio.to_thread, core.history.close)  # after the last answers of next hops
    ending.push_async_callback(core.events.close)
    service = None
    if conf.embedded_service and not worker.has_supervisor:
        service = await start_service(conf, core.state)
        ending.push_async_callback(service.stop, 1)
    running = Running(core, Components(conf, core), Listeners(worker))
    ending.push_async_callback(_close_components, running, shutdown)
    upkeep = QuarantineUpkeep(running)
    status = Status(running, shutdown, upkeep)
    connect_gauges(running, status, upkeep)
    view = worker.admin_view(status)
    api = build_api(running)
    ending.push_async_callback(api.close)
    admin_app = create_admin(view, api, lambda: running.config.admin.names)
    admin = HttpServer(admin_app, worker.sockets.open(ADMIN_KEY, conf.admin.address))
    ending.push_async_callback(admin.stop, 1)
    await admin.start()
    await _open_stores(running, ending)
    ending.push_async_callback(tasks.close)
    core.events.adopt(running.components.event_plans)
    await _listen(running)
    tasks.start(upkeep.reconcile())
    background: dict[str, Callable[[], Coroutine[None, None, None]]] = {
        "quarantine: purge": upkeep.purge_regularly,
        "quarantine: count": upkeep.count_regularly,
        "event loop lag": core.lag.watch,
        "lists": core.list_refresh.watch,
        "personal lists": core.personal.watch,
        "mail rates": core.rate_exchange.watch,
        "malloc_trim": MallocTrim().watch,
        "status": view.publish_regularly,
        "next hops": partial(watch_next_hops, running),
        "event sources": partial(watch_event_sources, running),
        "feedback": partial(core.feedback.watch, lambda: running.config),
        "digests": partial(
            core.digests.watch, lambda: running.config, lambda: running.components.quarantine.owner
        ),
    }  # fmt: skip
    for name, work in background.items():
        tasks.keep(work, name)
    return Daemon(running, shutdown, status, view, admin, tasks, ending, service)


async def _open_stores(running: Running, ending: AsyncExitStack) -> None:
    """Late decisions, the quarantine, and the copies of lists: ready before the first connection."""
    core = running.core
    if core.late is not None:
        ending.push_async_callback(core.late.stop, 0.0)
        await core.late.start()
    if not core.worker.has_supervisor:  # otherwise the supervisor has done it
        quarantine_upkeep.clean(running.components.quarantine)
    await core.list_refresh.start()
    ending.callback(core.personal.close)
    ending.callback(core.rate_exchange.close)
    ending.callback(core.feedback.close)
    ending.callback(core.digests.close)
    await core.personal.start()


async def _listen(running: Running) -> None:
    plans = running.components.plans
    running.listeners.adopt(plans, await running.listeners.open_missing(plans))
    if not running.core.worker.has_supervisor:
        running.core.worker.sockets.warn_of_idle()


async def _close_components(running: Running, shutdown: Shutdown) -> None:
    """Wait for the next hop's answers to mail whose final dot was sent: it may already have been delivered."""
    try:
        async with shutdown.time_left(at_least_s=_LAST_ANSWERS_S):
            await running.components.close()
    except TimeoutError:
        log.warning(
            "daemon stopped before the next hop had answered for some mails; their clients will send them again"
        )


async def _close_later(components: Components) -> None:
    """Close them when the last mail that started with them is finished, or when the daemon stops."""
    try:
        await asyncio.sleep(components.longest_s)
    except asyncio.CancelledError:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS_S):
                await components.close()
        raise
    await components.close()
