"""The scanning service on listening sockets, in the running event loop.

Combines the service's configuration (address, TLS, application) with the generic HTTP server.
`scanbridge service` and the daemon's embedded service both start it this way.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from bridge.runtime.endpoints import Endpoint
from bridge.runtime.http_server import DRAIN_S, HttpLimits, HttpServer
from bridge.runtime.listening_socket import CannotListen, bind
from bridge.runtime.tls import server_context
from bridge.service.settings import ServiceConfig, Timings, Tls


class ServiceServer:
    """The scanning service, from `start` to `stop`."""

    def __init__(self, timings: Timings | None = None) -> None:
        self._timings = timings or Timings()
        self._lifespan: AbstractAsyncContextManager[Any] | None = None
        self._http: HttpServer | None = None

    @property
    def addresses(self) -> list[Endpoint]:
        return self._http.addresses if self._http else []

    async def start(self, config: ServiceConfig, sockets: Sequence[socket.socket] | None = None) -> None:
        """Raises CannotListen, ConfigError, or StoreUnavailable if the database cannot be used."""
        from bridge.service.app import create_app  # slow to import; a daemon without this service does not need it

        bound = list(sockets) if sockets is not None else [bind(config.listen)]
        try:
            tls = tls_context(config.tls, config.directory)
            app = create_app(config, self._timings)
            self._lifespan = app.router.lifespan_context(app)
            await self._lifespan.__aenter__()
        except BaseException:
            self._lifespan = None
            for sock in bound:
                sock.close()
            raise
        self._http = HttpServer(app, bound, tls, HttpLimits(head_timeout_s=self._timings.head_s))
        await self._http.start()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        if self._http is not None:
            await self._http.stop(drain_s)
            self._http = None
        if self._lifespan is not None:
            await self._lifespan.__aexit__(None, None, None)
            self._lifespan = None


def tls_context(tls: Tls | None, directory: Path) -> ssl.SSLContext | None:
    """Server-side TLS, 1.2 and later. Raises CannotListen if the files cannot be used."""
    if tls is None:
        return None
    context = server_context()
    try:
        # OpenSSL would ask for the password of an encrypted key on the terminal; refuse the key instead.
        context.load_cert_chain(directory / tls.cert_file, directory / tls.key_file, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or "the key is encrypted"
        raise CannotListen(f"tls: {tls.cert_file} and {tls.key_file} cannot be used: {reason}") from exc
    return context
