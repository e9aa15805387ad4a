"""The daemon: starts all parts, takes the signals, and ends without losing a mail.

Order matters. The embedded service starts first and ends last, because mail in processing still
needs it; listeners start last and end first. Whatever cannot work is said before the first
listener opens, as a ConfigError.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bridge import __version__, config
from bridge.address import Address
from bridge.api.scanning import QueueStatus
from bridge.config import Config
from bridge.daemon import files, wiring
from bridge.daemon.admin import create_admin
from bridge.daemon.notify import feed_watchdog, notify
from bridge.daemon.sockets import open_listening
from bridge.delivery.quarantine import Quarantine
from bridge.errors import ConfigError, StoreError
from bridge.filter.admission import Admission
from bridge.filter.decide import Filter, Record
from bridge.filter.headers import HeaderEditor
from bridge.intake.milter.transport import MilterServer
from bridge.intake.server import SmtpServer
from bridge.mail.message import Spool
from bridge.maillog import LineWriter, MailLog
from bridge.metrics import Count, Metrics
from bridge.scanner.client import Scanner
from bridge.service import settings as service_settings
from bridge.service.serve import HttpServer, ServiceServer

log = logging.getLogger(__name__)

_HURRIED_DRAIN_S = 2.0  # after a second signal
_PURGE_INTERVAL_S = 3600.0
_COLOURS = {None: -1, QueueStatus.GREEN: 0, QueueStatus.YELLOW: 1, QueueStatus.RED: 2}


class Daemon:
    """`start`, then `stop` (or `run`, which does both around the signals)."""

    def __init__(self, conf: Config, writer: LineWriter | None = None) -> None:
        self.config = conf
        self.state = files.make_directory(files.state_directory(conf.state_directory), "state_directory")
        self.metrics = Metrics(listener.name for listener in conf.listeners)
        put = logging.getLogger("scanbridge.mail").info if writer is None else writer.put
        self._mail_log = MailLog(put, as_json=conf.log.format == "json")
        if writer is not None:
            writer.on_lost = self._on_lost_line
        self.admission = Admission(wiring.admission_settings(conf))
        self.spool = Spool(conf.admission.max_bytes_in_processing, conf.spool.memory_per_mail, conf.spool.directory)
        self.quarantine = Quarantine(wiring.quarantine_directory(conf, self.state))
        self.servers: list[SmtpServer | MilterServer] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._ending = AsyncExitStack()  # ends what was started, last first
        self._started = time.monotonic()
        self._stopping = False

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Until told to stop."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set():
                log.warning("told to stop again: running mail has %.0f s left", _HURRIED_DRAIN_S)
                for server in self.servers:
                    self._tasks.append(loop.create_task(server.drain(_HURRIED_DRAIN_S)))
            stop.set()

        await self.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        loop.add_signal_handler(signal.SIGHUP, log.warning, "SIGHUP: to change the configuration, restart")
        notify("READY=1")
        on_ready()
        gc.collect()
        gc.freeze()  # what is there now stays; the collector need not look at it again
        await stop.wait()
        notify("STOPPING=1")
        await self.stop()

    async def start(self) -> None:
        """All parts, or none: what was started before one failed is ended again."""
        try:
            await self._start()
        except BaseException:
            await self._ending.aclose()
            raise

    async def _start(self) -> None:
        if self.config.embedded_service:
            await self._start_service()
        self.scanner = Scanner(wiring.scanner_settings(self.config, wiring.token(self.config)))
        self._ending.callback(self.scanner.close)
        self._watch_levels()
        await self._start_admin()
        self.relay = wiring.relay(self.config)
        if self.relay is not None:
            self._ending.push_async_callback(self.relay.close)
        if (left := self.quarantine.clean()) > 0:
            log.info("quarantine: %d unfinished files of an earlier run removed", left)
        servers = [(listener, self._server(listener)) for listener in self.config.listeners]
        sockets = [self._open(one.address, one.unix_mode, one.unix_owner) for one in self.config.listeners]
        for (listener, server), bound in zip(servers, sockets, strict=True):
            for sock in bound:
                await server.serve(sock)
            self.servers.append(server)
            log.info(
                "listener %s: %s on %s, for %s", listener.name, listener.protocol, listener.address, listener.profile
            )
        self._ending.push_async_callback(self._end_tasks)
        for task in (self.scanner.watch(), feed_watchdog(), self._purge()):
            self._tasks.append(asyncio.create_task(task))

    def _open(self, address: Address, unix_mode: str = "0660", unix_owner: str | None = None) -> list[socket.socket]:
        sockets = open_listening(address, unix_mode, unix_owner)
        for sock in sockets:
            self._ending.callback(sock.close)
        return sockets

    async def _start_service(self) -> None:
        """The scanning service in this process, at the first scanner URL."""
        path = files.locate(self.config.scanner.token_file, self.config.directory)
        files.make_secret(path, "scanner.token_file")
        parts = urlsplit(self.config.scanner.urls[0])
        listen = Address(parts.hostname or "127.0.0.1", parts.port or 80)
        secret = files.read_secret(path, "scanner.token_file")
        service = ServiceServer()
        self._ending.push_async_callback(service.stop, 1)
        await service.start(service_settings.embedded(self.state, str(listen), secret))
        log.info("scanning service on %s", listen)

    def _server(self, listener: config.Listener) -> SmtpServer | MilterServer:
        headers = HeaderEditor(self.config.headers.prefix, wiring.hostname(self.config), self.config.headers.received)
        milter = listener.protocol == "milter"
        filter_ = Filter(
            wiring.filter_settings(self.config, listener),
            scanner=self.scanner,
            admission=self.admission,
            headers=headers,
            quarantine=self.quarantine,
            relay=None if milter else self.relay,
            report=self._report,
        )
        count = {
            "on_refused": lambda reason: self._count(self.metrics.refused_connections, listener.name, reason),
            "on_saturated": lambda stage: self._count(self.metrics.refused_early, listener.name, stage),
        }
        if milter:
            return MilterServer(wiring.milter_settings(self.config, listener), filter_, self.spool, **count)
        return SmtpServer(wiring.smtp_settings(self.config, listener), filter_, self.spool, **count)

    @staticmethod
    def _count(counter: Count, *labels: str) -> None:
        counter.values[labels] += 1

    def _on_lost_line(self) -> None:
        self._count(self.metrics.log_lines_lost)

    def _report(self, record: Record) -> None:
        self.metrics.record(record)
        self._mail_log.decided(record)

    async def _start_admin(self) -> None:
        app = create_admin(self.metrics.registry, problem=self._problem, state=self.describe)
        admin = HttpServer(app, self._open(self.config.admin.address))
        await admin.start()
        self._ending.push_async_callback(admin.stop, 1)

    def _watch_levels(self) -> None:
        """Gauges are read from the parts when somebody asks."""
        metrics, admission, spool, hosts = self.metrics, self.admission, self.spool, self.scanner.hosts
        metrics.in_processing.read = lambda: [((), admission.in_processing)]
        metrics.in_processing_limit.read = lambda: [((), admission.settings.max_in_processing)]
        metrics.bytes_in_processing.read = lambda: [((), spool.in_use)]
        metrics.bytes_limit.read = lambda: [((), spool.limit)]
        metrics.connections.read = lambda: [
            ((listener.name,), server.connections)
            for listener, server in zip(self.config.listeners, self.servers, strict=False)
        ]
        metrics.scanner_status.read = lambda: [((host.url,), _COLOURS[host.status]) for host in hosts]
        metrics.scanner_in_flight.read = lambda: [((host.url,), host.in_flight) for host in hosts]

    def _problem(self) -> str:
        if self._stopping:
            return "stopping"
        return "" if self.servers else "starting"

    def describe(self) -> dict[str, Any]:
        """For `scanbridge status`."""
        return {
            "version": __version__,
            "uptime_s": round(time.monotonic() - self._started),
            "ready": not self._problem(),
            "in_processing": self.admission.in_processing,
            "max_in_processing": self.admission.settings.max_in_processing,
            "bytes_in_processing": self.spool.in_use,
            "listeners": [
                {"name": one.name, "protocol": one.protocol, "address": str(one.address)}
                for one in self.config.listeners
            ],
            "scanner": [
                {"url": host.url, "status": str(host.status or "unknown"), "in_flight": host.in_flight}
                for host in self.scanner.hosts
            ],
        }

    async def _purge(self) -> None:
        """Quarantined mail beyond its retention, once an hour."""
        while True:
            try:
                await self.quarantine.purge(self.config.quarantine.retention)
            except StoreError as exc:
                log.error("old mail could not be removed from the quarantine: %s", exc)
            await asyncio.sleep(_PURGE_INTERVAL_S)

    async def stop(self, drain_s: float | None = None) -> None:
        """Running mail is finished within the time, everything else ends now."""
        self._stopping = True
        limit = self.config.drain_timeout if drain_s is None else drain_s
        await asyncio.gather(*(server.drain(limit) for server in self.servers))
        await self._ending.aclose()
        log.info("stopped")

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def load(path: Path | None) -> Config:
    """The file's configuration, or the embedded default. Raises ConfigError."""
    if path is not None:
        return config.load(path)
    state = files.state_directory(None)
    files.make_directory(state, "the state directory")
    try:
        return config.embedded(state)
    except ConfigError as exc:
        raise ConfigError(f"the state directory {state} cannot be written into a configuration: {exc}") from exc
