"""The process of `scanbridge service worker`: analyses mail from the queue until it is told to stop.

A reload starts a second worker with the new configuration in this process; then the first one takes no more jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bridge.daemon.service_process import Process
from bridge.daemon.sockets import Sockets
from bridge.errors import ConfigError
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.http_server import DRAIN_S, HttpServer
from bridge.service.cluster.site import WorkerSite
from bridge.service.config_files import Loaded
from bridge.service.settings import ServiceConfig


class WorkerProcess(Process):
    def __init__(self, path: Path, loaded: Loaded, listen: Endpoint | None) -> None:
        """`listen` is used instead of the configured address."""
        super().__init__(path, loaded)
        self._listen = listen or loaded.config.worker.listen
        self._site: WorkerSite | None = None
        self._http: HttpServer | None = None

    async def _start(self) -> None:
        sockets = Sockets().open("worker.listen", self._listen) if self._listen is not None else []
        self._site = WorkerSite(self.loaded.config)
        await self._site.start()
        self._site.show_reloads(lambda: self.reloaded)
        if sockets:

            async def answer(scope: object, receive: object, send: object) -> None:
                assert self._site is not None
                await self._site.app(scope, receive, send)  # type: ignore[arg-type]

            self._http = HttpServer(answer, sockets)
            await self._http.start()

    def introduction(self) -> Iterator[str]:
        assert self._site is not None
        nats = self.loaded.config.abby.serviceProviders.core.nats
        assert nats is not None
        yield f"worker with {self._site.slots} slots takes mail from {', '.join(nats.servers)}"
        if self._http is not None:
            for address in self._http.addresses:
                yield f"health and metrics on {address if address.path else f'http://{address}'}"

    async def _use(self, config: ServiceConfig) -> None:
        if self._listen != config.worker.listen and self._listen == self.loaded.config.worker.listen:
            raise ConfigError("worker.listen: cannot be changed by a reload; restart the worker")
        new = WorkerSite(config)
        await new.start()
        new.show_reloads(lambda: self.reloaded)
        old, self._site = self._site, new
        if old is not None:
            await old.stop(DRAIN_S)

    async def stop(self) -> None:
        if self._site is not None:
            await self._site.stop(DRAIN_S)
        if self._http is not None:
            await self._http.stop(0)
