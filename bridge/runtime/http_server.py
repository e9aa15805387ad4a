"""An HTTP server inside an event loop that it does not own.

uvicorn expects to own the process: it handles the signals, and exits when a port is taken. Here it does neither:
`HttpServer` runs any ASGI application on sockets that the caller has bound. It also limits what uvicorn leaves
unlimited: the size and duration of a request's head, the number of its fields and of the requests that wait for an
earlier answer (a few bytes each, which become kilobytes in memory), and the number of connections, in total and per
client. `http_old_clients` deals with clients of HTTP/1.0. Knows neither the scanning service nor the admin endpoint. If
this is wrong, a client that sends half a request holds a connection forever, or the body of one request is read as the
next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from bridge.runtime.client_counts import ClientCounts, client_behind
from bridge.runtime.connection_timer import ConnectionTimer
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.http_old_clients import UnchunkedForOldClients
from bridge.runtime.listening_socket import BACKLOG, CannotListen, address_of
from bridge.runtime.tls_acceptor import TlsAcceptor

DRAIN_S = 30.0
_KEEP_ALIVE_S = 75
_CHECK_EVERY_S = 1.0
_CHECKS_PER_TIMEOUT = 4
_FOR_OTHERS = 4  # a quarter of the connections is out of reach for a single client
# Bytes. Linux takes more only when a third of its buffer is free: with its usual megabytes, a client that reads 20 KB/s
# would seem not to read for over a minute.
_SEND_BUFFER = 128 * 1024


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What clients may use."""

    max_head_bytes: int = 64 * 1024
    max_head_fields: int = 200  # each takes 200 bytes of memory, and as few as 5 on the wire
    max_waiting_requests: int = 20  # of a client that does not wait for answers; each takes 2 KiB
    head_timeout_s: float = 30.0
    max_connections: int = 2000  # per process; the next one gets 503
    unread_timeout_s: float = 60.0  # an answer is cut off if the client reads nothing for this long; 0: never

    @property
    def max_per_client(self) -> int:
        """Three quarters: the next one gets 503. A proxy in front of us has one address for all its clients."""
        return self.max_connections - self.max_connections // _FOR_OTHERS


class HttpServer:
    """One ASGI application on some listening sockets, from `start` to `stop`."""

    def __init__(
        self,
        app: Any,
        sockets: Sequence[socket.socket],
        tls: ssl.SSLContext | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        limits = limits or HttpLimits()
        self._sockets = list(sockets)
        clients = ClientCounts()
        config = _config(app, partial(HttpConnection, limits=limits, timer=_timer(limits), clients=clients))
        config.ssl = tls
        self._server = _Server(config, limits, clients)
        self._task: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> list[Endpoint]:
        """Where it listens, with the actual port for port 0."""
        return [address_of(sock) for sock in self._sockets]

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=self._sockets), name="http-server")
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            self._task.result()
            raise CannotListen("the HTTP server ended before it was ready")

    def stop_accepting(self) -> None:
        """Leave these sockets to other processes; open connections are still served."""
        for server in self._server.servers:
            server.close()

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop accepting, finish running requests, and cancel those that take longer than `drain_s`."""
        if self._task is None:
            return
        self._server.config.timeout_graceful_shutdown = max(1, round(drain_s))
        self._server.leave()
        await self._task
        self._task = None
        for sock in self._sockets:
            sock.close()


class HttpApplication:
    """One ASGI application on connections that the caller accepts: what an `HttpConnection` needs to be made."""

    def __init__(self, app: Any, limits: HttpLimits) -> None:
        self.needed: dict[str, Any] = {
            "config": _config(app, HttpConnection),
            "server_state": ServerState(),
            "app_state": {},
            "limits": limits,
            "timer": _timer(limits),
            "clients": ClientCounts(),
        }


def _config(app: Any, protocol: Any) -> uvicorn.Config:
    config = uvicorn.Config(
        UnchunkedForOldClients(app),
        http=cast("type[asyncio.Protocol]", protocol),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    config.load()
    return config


def _timer(limits: HttpLimits) -> ConnectionTimer:
    interval_s = min(_CHECK_EVERY_S, limits.head_timeout_s / _CHECKS_PER_TIMEOUT)
    return ConnectionTimer(asyncio.get_running_loop(), interval_s)


class _Server(uvicorn.Server):
    """uvicorn's server, without its control of the process."""

    def __init__(self, config: uvicorn.Config, limits: HttpLimits, clients: ClientCounts) -> None:
        super().__init__(config)
        self._limits = limits
        self._clients = clients
        self._handshakes = ClientCounts()
        self.ready = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """Tick once a second, and exit immediately when told: uvicorn's own loop polls ten times as often."""
        while not await self.on_tick(0):
            try:
                async with asyncio.timeout(1.0):
                    await self._leaving.wait()
            except TimeoutError:
                pass

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, which waits a tenth of a second before it looks at all, and then looks every tenth."""
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await self._finished()
        except TimeoutError:
            tasks = self.server_state.tasks
            logging.getLogger("uvicorn.error").error(
                "Cancel %s running task(s), timeout graceful shutdown exceeded", len(tasks)
            )
            for task in tasks:
                task.cancel(msg="Task cancelled, timeout graceful shutdown exceeded")

    async def _finished(self) -> None:
        """Wait until all requests have been answered and all connections are closed."""
        pause_s = 0.0
        while self.server_state.connections or self.server_state.tasks:
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s + 0.005, 0.1)
        for server in self.servers:
            await server.wait_closed()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """With TLS, connections are counted before their handshake, and not only after it."""
        tls = self.config.ssl
        await super().startup(sockets if tls is None else [])
        if tls is not None:
            for sock in sockets or ():
                acceptor = TlsAcceptor(sock, self._make_connection, tls, self._may_begin, on_end=self._handshake_ended)
                self.servers.append(cast(asyncio.Server, acceptor))  # uvicorn only closes it
                await acceptor.start()
        self.ready.set()

    def _make_connection(self) -> asyncio.Protocol:
        options = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        make: Any = self.config.http_protocol_class
        return cast(asyncio.Protocol, make(**options))

    def _may_begin(self, peer: Any, handshakes: int) -> bool:
        client = client_behind(peer)
        if len(self.server_state.connections) + handshakes >= self._limits.max_connections:
            return False
        if self._clients.of(client) + self._handshakes.of(client) >= self._limits.max_per_client:
            return False
        self._handshakes.add(client)
        return True

    def _handshake_ended(self, peer: Any) -> None:
        """It failed, or the connection counts from now on."""
        self._handshakes.remove(client_behind(peer))


class _Excess(Exception):
    """Stops the parser, which would otherwise read everything that has arrived."""


class HttpConnection(HttpToolsProtocol):
    """Limits a request's head in size and time, ignores upgrades, and answers bad requests in the API's format.

    RFC 9110 7.8: a server may ignore an Upgrade field. The parser cannot: it stops after the head and leaves the body
    unread, which would then be the next request (https://github.com/Kludex/uvicorn/issues/2722). So the head is read a
    second time without the field. Java's HTTP client and `curl --http2` send it by default.
    """

    def __init__(
        self, *args: Any, limits: HttpLimits, timer: ConnectionTimer, clients: ClientCounts, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.logger = _log
        self._clients = clients
        self._client: str | None = None  # counted
        self._limits = limits
        self._timer = timer
        self._head_bytes = 0
        self._head_until: float | None = None  # None: no head is awaited
        self._head_to_read_again: bytes | None = None  # without the request to upgrade
        self._bytes_without_body = 0  # received since a head or a byte of a body: chunk sizes, trailers
        self._in_body = False  # the head of a request is complete, its body is not
        self._rest_until: float | None = None  # for the rest of a body whose request is answered already
        self._excess: tuple[int, str, str] | None = None  # why the parser was stopped: what to `refuse` with
        self._last_answer: bytes | None = None  # a refusal that waits for the answers to earlier requests
        self._unread = (0, 0.0)  # bytes that the client has not read yet, and since when it reads none of them

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if len(self.connections) > self._limits.max_connections:
            self.refuse(503, "saturated", "too many connections")
            return
        client = client_behind(transport.get_extra_info("peername"))
        if self._clients.of(client) >= self._limits.max_per_client:
            self.refuse(503, "saturated", "too many connections from your address")
            return
        self._clients.add(client)
        self._client = client
        self._timer.add(self)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.discard(self)
        self._clients.remove(self._client)
        self._client = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._last_answer is not None:
            return
        if self._head_until is None and not self._in_body:
            self._await_head()  # an empty line may precede a head, but does not begin one for the parser
        if self._head_until is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_head_bytes and not self._ends_within(data):
                self.refuse(431, "head_too_large", "the request header is too large")
                return
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._bytes_without_body += len(data)
        self._feed(memoryview(data))
        if self._head_until is None and self._bytes_without_body > self._limits.max_head_bytes + len(data):
            self.refuse(431, "trailer_too_large", "the request trailer is too large")

    def _feed(self, data: memoryview) -> None:
        """Parse everything; each request to upgrade makes the parser stop once."""
        try:
            while (rest := self._parse(data)) is not None:
                data = rest
        except httptools.HttpParserError:
            if self._excess is None:
                self.refuse(400, "bad_request", "Invalid HTTP request received.")
            else:
                self.refuse(*self._excess)

    def _parse(self, data: memoryview) -> memoryview | None:
        """What is left after a head that has to be read again; None when everything is parsed."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as exc:
            head, self._head_to_read_again = self._head_to_read_again, None
            if head is None:
                self.refuse(405, "method_not_allowed", "CONNECT is not supported")
                return None
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
            self.parser.feed_data(head)
            return data[exc.args[0] :]
        return None

    def _ends_within(self, data: bytes) -> bool:
        """Whether a head under the limit ends in `data`: a fast client sends the body right after it."""
        end = data.find(b"\r\n\r\n")
        return end >= 0 and self._head_bytes - len(data) + end <= self._limits.max_head_bytes

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_until is None:
            self._await_head()
            self._head_bytes = 1  # at least

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_until is None:  # a trailer is not a header field: it must not authorize anything
            return
        if len(self.headers) >= self._limits.max_head_fields:
            self._excess = (431, "head_too_large", "the request has too many header fields")
            raise _Excess
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            method = self.parser.get_method()
            if method != b"CONNECT":
                version = self.parser.get_http_version().encode("ascii")
                self._head_to_read_again = _plain_head(method, self.url, version, self.headers)
            return
        if len(self.pipeline) >= self._limits.max_waiting_requests:
            self._excess = (503, "saturated", "too many requests were sent before the first one was answered")
            raise _Excess
        self._head_until = None
        self._bytes_without_body = 0
        if self.parser.get_http_version() != "1.1":
            self.expect_100_continue = False  # RFC 9110 10.1.1
        super().on_headers_complete()  # raises if the target is no URL: then there is no request yet to answer
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            self._in_body = False
            self._rest_until = None
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._last_answer is not None and not self.pipeline and not self.transport.is_closing():
            self.transport.write(self._last_answer)
            self.transport.close()
        if self._in_body and not self.pipeline:
            self._rest_until = self.loop.time() + self._limits.head_timeout_s
        super().on_response_complete()

    def check_deadlines(self) -> None:
        now = self.loop.time()
        if self._limits.unread_timeout_s and self._is_not_reading(now):
            self.transport.abort()  # closing it would wait for the client
            return
        if self._rest_until is not None and now >= self._rest_until:
            self.transport.close()
            return
        if self._head_until is None or now < self._head_until:
            return
        self._head_until = None
        if self._head_bytes:
            self.refuse(408, "head_timeout", "the request header did not arrive in time")
        else:  # a connection opened in advance, whose client would take this for the answer to its first request
            self.timeout_keep_alive_handler()

    def cut(self) -> None:
        self.transport.abort()

    def resume_writing(self) -> None:
        self._unread = (0, 0.0)  # it has read, even if just as much is waiting for it when we look again
        super().resume_writing()

    def _is_not_reading(self, now: float) -> bool:
        size = self.transport.get_write_buffer_size()
        before, since = self._unread
        if size == 0 or size != before:
            self._unread = (size, now)
            return False
        return now - since >= self._limits.unread_timeout_s

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_until = self.loop.time() + self._limits.head_timeout_s

    def refuse(self, status: int, error: str, message: str) -> None:
        """Answer with the API's Error object (bridge.api.failure), and close.

        Earlier requests of a client that does not wait for answers are answered first, so that none of them gets
        this answer.
        """
        must_wait = self.cycle is not None and not self.cycle.response_complete
        if self._in_body and self.pipeline:
            self.pipeline.popleft()  # this request; earlier ones are not answered yet
        elif self._in_body:
            if self.cycle.response_started:
                self.transport.close()  # a request has one answer, and nothing may begin inside it
                return
            must_wait = False
        body = self.error_body(error, message)
        answer = (
            b"HTTP/1.1 %d %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        ) % (status, HTTPStatus(status).phrase.encode(), len(body), body)
        if must_wait:
            self._head_until = None
            self._last_answer = answer
            return
        self.transport.write(answer)
        self.transport.close()

    def error_body(self, error: str, message: str) -> bytes:
        return json.dumps({"error": error, "message": message}).encode()


def _plain_head(method: bytes, url: bytes, version: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A parsed head without its wish to upgrade (RFC 9110 7.8, RFC 7540 3.2.1)."""
    lines = [b"%b %b HTTP/%b" % (method, url, version)]
    for name, value in headers:
        if name == b"connection":
            tokens = [token.strip() for token in value.split(b",")]
            value = b", ".join(token for token in tokens if token.lower() not in (b"upgrade", b"http2-settings"))
        if name not in (b"upgrade", b"http2-settings") and (value or name != b"connection"):
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


# uvicorn warns once per bad request, so any client could fill the log; our own errors are still logged.
_log = logging.getLogger(__name__)
_log.setLevel(logging.ERROR)
_log.addFilter(lambda record: "without completing response" not in record.getMessage())  # a response that we cut
