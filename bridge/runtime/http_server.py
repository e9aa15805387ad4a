"""HTTP servers inside an event loop that belongs to somebody else.

uvicorn wants to own the process: it takes the signals, and ends it when a port is taken. Here it
does neither: `HttpServer` runs any ASGI application on sockets that we bind ourselves, so a
taken port is an exception with a sentence in it. Its protocol bounds what uvicorn leaves open:
the size and time of a request's head, and a refusal before the application is an Error object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bridge.api.failure import Failure
from bridge.errors import BridgeError
from bridge.runtime.endpoints import Address
from bridge.runtime.tls import server_context
from bridge.service.settings import ServiceConfig, Tls

MAX_HEAD_BYTES = 64 * 1024
HEAD_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 2000  # per process; the next one reads 503
BACKLOG = 4096  # a burst that does not fit comes again only after a second
DRAIN_S = 30.0


class CannotListen(BridgeError):
    """An address is taken or not ours; the text says which."""


class HttpServer:
    """One ASGI application on some listening sockets, from `start` to `stop`."""

    def __init__(self, app: Any, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> None:
        self._sockets = list(sockets)
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=75,
        )
        config.load()
        config.ssl = tls
        self._server = _Server(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> list[Address]:
        """Where it listens, ports that were 0 filled in."""
        return [_address_of(sock) for sock in self._sockets]

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=self._sockets), name="http-server")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()
            raise CannotListen("the HTTP server ended before it began")

    def stop_accepting(self) -> None:
        """Others serve these sockets from now on; whoever is connected may still ask."""
        for server in self._server.servers:
            server.close()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Accept nothing more, finish what runs, then end; what is left after `drain_s` is cancelled."""
        if self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(drain_s))
        self._server.leave()
        await self._task
        self._task = None
        for sock in self._sockets:
            sock.close()


class ServiceServer:
    """The scanning service in the running event loop."""

    def __init__(self) -> None:
        self._lifespan: AbstractAsyncContextManager[Any] | None = None
        self._http: HttpServer | None = None

    @property
    def addresses(self) -> list[Address]:
        return self._http.addresses if self._http else []

    async def start(self, config: ServiceConfig, sockets: Sequence[socket.socket] | None = None) -> None:
        """Raises CannotListen, ConfigError, or what the store raises when its database cannot be had."""
        from bridge.service.app import create_app  # the application is heavy; the admin endpoint needs none of it

        bound = list(sockets) if sockets is not None else [bind(config.listen)]
        try:
            tls = tls_context(config.tls, config.directory)
            app = create_app(config)
            self._lifespan = app.router.lifespan_context(app)
            await self._lifespan.__aenter__()
        except BaseException:
            self._lifespan = None
            for sock in bound:
                sock.close()
            raise
        self._http = HttpServer(app, bound, tls)
        await self._http.start()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        if self._http is not None:
            await self._http.stop(drain_s)
            self._http = None
        if self._lifespan is not None:
            await self._lifespan.__aexit__(None, None, None)
            self._lifespan = None


def bind(address: Address) -> socket.socket:
    """A bound socket for `address`. Raises CannotListen."""
    try:
        return _bind_unix(address.path) if address.path else _bind_tcp(address)
    except OSError as exc:
        reason = exc.strerror or type(exc).__name__
        raise CannotListen(f"cannot listen at {address}: {reason}") from exc


def tls_context(tls: Tls | None, directory: Path) -> ssl.SSLContext | None:
    """Server side TLS, 1.2 and later. Raises CannotListen when the files cannot be used."""
    if tls is None:
        return None
    context = server_context()
    try:
        # An encrypted key would stop us for a password on the terminal; refuse it instead.
        context.load_cert_chain(directory / tls.cert_file, directory / tls.key_file, password=lambda: b"")
    except (OSError, ssl.SSLError, ValueError) as exc:
        reason = getattr(exc, "strerror", None) or "the key is encrypted"
        raise CannotListen(f"tls: {tls.cert_file} and {tls.key_file} cannot be used: {reason}") from exc
    return context


def _bind_tcp(address: Address) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, place = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
        sock.listen(BACKLOG)  # now, so that a second server on this port fails here and not later
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(Path(path).stat().st_mode) and not _answers(path):
            os.unlink(path)  # left behind by a process that is gone
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(path)
        Path(path).chmod(0o660)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


def _address_of(sock: socket.socket) -> Address:
    name = sock.getsockname()
    return Address(path=name) if isinstance(name, str) else Address(host=name[0], port=name[1])


class _Server(uvicorn.Server):
    """uvicorn without its hold on the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """A look at the clock every second, and none for the exit: uvicorn's own loop wakes ten times as often."""
        while not await self.on_tick(0):
            try:
                async with asyncio.timeout(1.0):
                    await self._leaving.wait()
            except TimeoutError:
                pass

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class _Protocol(HttpToolsProtocol):
    """Bounds a request's head in size and time, and answers what cannot be parsed as the API answers."""

    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.logger = _QUIET  # uvicorn warns once per bad request: strangers would fill the log
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, Failure("saturated", "too many connections"))
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_done()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES and not self._complete_within(data):
                return self._refuse(431, Failure("head_too_large", "the request's head is too large"))
        if self.transport.is_closing():
            return None
        return super().data_received(data)

    def _complete_within(self, data: bytes) -> bool:
        """Whether a head under the limit ends in `data`: a fast client sends the body right behind it."""
        end = data.find(b"\r\n\r\n")
        return end >= 0 and self._head_bytes - len(data) + end <= MAX_HEAD_BYTES

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._head_done()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, Failure("bad_request", msg))

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.timeout_keep_alive_handler)

    def _head_done(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, failure: Failure) -> None:
        if self.cycle is not None and not self.cycle.response_complete and self.cycle.response_started:
            self.transport.close()  # in the middle of an answer there is no place for another
            return
        body = json.dumps(failure.to_dict()).encode()
        self.transport.write(
            b"HTTP/1.1 %d Refused\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)
        )
        self.transport.close()


_QUIET = logging.getLogger("bridge.service.http")
_QUIET.setLevel(logging.ERROR)
_QUIET.addFilter(lambda record: "without completing response" not in record.getMessage())  # a stream we cut
