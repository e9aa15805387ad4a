"""The scanning service on listening sockets, in the running event loop.

Combines the service's configuration (address, TLS, application) with the generic HTTP server.
`scanbridge service` and the daemon's embedded service both start it this way.

A reload leaves sockets and connections alone. The new configuration gets its own parts, which start next to
the old ones; only when all of them work does the next request go there. Requests that are being answered keep the
configuration they began with. So no request can fail because of a reload, and a configuration that does not work
changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.errors import ConfigError
from bridge.mail.spool import SpoolDisk
from bridge.runtime import whole_file
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.http_server import DRAIN_S, HttpLimits, HttpServer
from bridge.runtime.listening_socket import CannotListen, bind
from bridge.runtime.tls import chain_problem, server_context, use_reloaded_certificate
from bridge.service.settings import ServiceConfig, Timings, Tls

if TYPE_CHECKING:
    from bridge.service.app import Lasting, Site


class ServiceServer:
    """The scanning service, from `start` to `stop`."""

    def __init__(self, timings: Timings | None = None, disk: SpoolDisk | None = None) -> None:
        self._timings = timings or Timings()
        self._disk = disk
        self._http: HttpServer | None = None
        self._site: Site | None = None
        self._lasting: Lasting | None = None
        self._tls: ssl.SSLContext | None = None
        self._retired: set[asyncio.Task[None]] = set()

    @property
    def addresses(self) -> list[Endpoint]:
        return self._http.addresses if self._http else []

    @property
    def config(self) -> ServiceConfig:
        assert self._site is not None, "it is not running"
        return self._site.config

    async def start(self, config: ServiceConfig, sockets: Sequence[socket.socket] | None = None) -> None:
        """Raises CannotListen, ConfigError, or StoreUnavailable if the database cannot be used."""
        from bridge.service.app import Lasting, Site  # slow to import; a daemon without this service does not need it

        bound = list(sockets) if sockets is not None else [bind(config.listen, "listen")]
        try:
            self._tls = tls_context(config.tls, config.directory)
            self._lasting = Lasting.new(self._timings, self._disk)
            self._site = Site(config, self._timings, self._lasting)
            await self._site.start()
        except BaseException:
            self._site = None
            for sock in bound:
                sock.close()
            raise
        self._site.enter()

        async def answer(scope: Any, receive: Any, send: Any) -> None:
            assert self._site is not None
            await self._site(scope, receive, send)

        limits = HttpLimits(head_timeout_s=self._timings.head_s)
        self._http = HttpServer(answer, bound, self._switching_tls(), limits)
        await self._http.start()

    async def reload(self, config: ServiceConfig) -> None:
        """Use `config` for all further requests. Raises what `start` raises, and then keeps the old configuration."""
        from bridge.service.app import Site

        assert self._site is not None and self._lasting is not None
        check_change(self._site.config, config)
        tls = tls_context(config.tls, config.directory)
        new = Site(config, self._timings, self._lasting)
        await new.start()
        if self._site.loaded and not new.loaded:
            await new.stop()
            raise ConfigError("the database cannot be read at the moment; see the log")
        old, self._site, self._tls = self._site, new, tls
        new.enter()
        task = asyncio.create_task(_retire(old), name="retired-configuration")
        self._retired.add(task)
        task.add_done_callback(self._retired.discard)

    def show_reloads(self, last: Callable[[], tuple[bool, float]]) -> None:
        assert self._lasting is not None
        self._lasting.metrics.show_reloads(last)

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        if self._http is not None:
            await self._http.stop(drain_s)
            self._http = None
        for task in self._retired:  # no request is left that they would wait for
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        if self._site is not None:
            await self._site.stop()
            self._site = None

    def _switching_tls(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        outer = server_context()
        use_reloaded_certificate(outer, lambda: self._tls)
        return outer


async def _retire(site: Site) -> None:
    try:
        await site.idle()
    finally:
        await site.stop()


def check_change(old: ServiceConfig, new: ServiceConfig) -> None:
    """Raises ConfigError when going from one to the other needs a restart."""
    fixed = [
        ("listen", str(old.listen), str(new.listen)),
        ("tls", old.tls is None, new.tls is None),
    ]
    if changed := [name for name, before, after in fixed if before != after]:
        raise ConfigError("\n".join(f"{name}: cannot be changed by a reload; restart the service" for name in changed))


def tls_context(tls: Tls | None, directory: Path) -> ssl.SSLContext | None:
    """Server-side TLS, 1.2 and later. Raises CannotListen if the files cannot be used."""
    if tls is None:
        return None
    context = server_context()
    try:
        for name in (tls.cert_file, tls.key_file):
            whole_file.refuse_endless(directory / name)
        # OpenSSL would ask for the password of an encrypted key on the terminal; refuse the key instead.
        context.load_cert_chain(directory / tls.cert_file, directory / tls.key_file, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as exc:
        problem = chain_problem(exc, directory / tls.cert_file, directory / tls.key_file)
        raise CannotListen(f"tls: {tls.cert_file} and {tls.key_file} cannot be used: {problem}") from exc
    return context
