"""The process of `scanbridge service` and of a worker: start, signals, reloads, stop.

SIGHUP reloads the configuration. It may arrive at any time: before the start is complete (the reload then follows
it), twice, or during the stop (it is ignored then). A configuration that cannot be used is logged, and the service
continues with the one it has.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge.daemon.reload import Reloader
from bridge.daemon.sockets import Sockets
from bridge.daemon.systemd import feed_watchdog, notify, show_stack_on_abort
from bridge.errors import BridgeError, ConfigError
from bridge.observe.log_writer import set_up_plain_log
from bridge.runtime.build import log_start
from bridge.runtime.early_signals import EarlySignals
from bridge.service.advice import advice
from bridge.service.config_files import Loaded, check_files, load
from bridge.service.server import ServiceServer
from bridge.service.settings import ServiceConfig

log = logging.getLogger("bridge.service")


async def run(process: Process, say: Callable[[str], None], early: EarlySignals) -> None:
    """Run it until SIGTERM or SIGINT. Raises BridgeError if it cannot start."""
    set_up_plain_log()
    log_start("scanbridge service")
    show_stack_on_abort()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, stop.set)
    await process.start()
    for line in process.introduction():
        say(line)
    _warn(process.loaded)
    reloader = Reloader(process.reload, lambda: process.summary)
    early.pass_to(reloader.request, loop)
    feeding = asyncio.create_task(feed_watchdog())
    notify("READY=1")
    await stop.wait()
    early.ignore()
    notify("STOPPING=1")
    say("stopping")
    await reloader.close()
    await process.stop()
    feeding.cancel()


class Process(ABC):
    """A process with the service's configuration, which it can load again."""

    def __init__(self, path: Path, loaded: Loaded) -> None:
        self._path = path
        self.loaded = loaded  # what is in use
        self.summary = "running"
        self.reloaded = (True, time.time())

    async def start(self) -> None:
        try:
            await self._start()
        except BridgeError as exc:
            exc.args = (located(self.loaded, exc),)
            raise
        self.reloaded = (True, time.time())

    @abstractmethod
    async def _start(self) -> None:
        """Raises BridgeError."""

    @abstractmethod
    def introduction(self) -> Iterator[str]:
        """What to say once it has started."""

    @abstractmethod
    async def _use(self, config: ServiceConfig) -> None:
        """Continue with this configuration. If it raises BridgeError, the old one stays in use."""

    @abstractmethod
    async def stop(self) -> None: ...

    async def reload(self) -> None:
        """Never raises: a service that ended here would refuse mail because of a typo."""
        try:
            loaded = await asyncio.to_thread(load, self._path)
            await self._change(loaded)
        except BridgeError as exc:
            self._failed(str(exc))
        except Exception as exc:
            log.exception("reload failed")
            self._failed(f"an unexpected error: {type(exc).__name__}")
        else:
            self.reloaded = (True, time.time())
            self.summary = "running"
            log.info("reload succeeded: the new configuration is in effect")
            _warn(loaded)

    async def _change(self, loaded: Loaded) -> None:
        check_files(self.loaded, loaded)
        try:
            await self._use(loaded.config)
        except BridgeError as exc:
            raise ConfigError(located(loaded, exc)) from exc
        self.loaded = loaded

    def _failed(self, problem: str) -> None:
        self.reloaded = (False, self.reloaded[1])
        self.summary = "running with the old configuration, because the last reload failed"
        for line in problem.splitlines():
            log.error("reload failed, keeping the old configuration: %s", line)


class ServiceProcess(Process):
    """`scanbridge service`"""

    def __init__(self, path: Path, loaded: Loaded) -> None:
        super().__init__(path, loaded)
        self._server = ServiceServer()

    async def _start(self) -> None:
        config, sockets = self.loaded.config, Sockets()
        await self._server.start(config, sockets.open("listen", config.listen))
        sockets.warn_of_idle()
        self._server.show_reloads(lambda: self.reloaded)

    def introduction(self) -> Iterator[str]:
        for address in self._server.addresses:
            place = address if address.path else f"{self.loaded.config.scheme}://{address}"
            yield f"scanning service listening on {place}"

    async def _use(self, config: ServiceConfig) -> None:
        await self._server.reload(config)

    async def stop(self) -> None:
        await self._server.stop()


def located(loaded: Loaded, exc: BridgeError) -> str:
    """The error's lines, each of which begins with a key, with the file and line of that key."""
    return "\n".join(_located(loaded, line) for line in str(exc).splitlines())


def _located(loaded: Loaded, line: str) -> str:
    key = re.match(r"([A-Za-z_]+(?:\.[A-Za-z_]+)*): ", line)
    return f"{loaded.at(*key.group(1).split('.'))}: {line[key.end() :]}" if key else line


def _warn(loaded: Loaded) -> None:
    for text in advice(loaded):
        log.warning("%s", text)
