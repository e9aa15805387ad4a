"""The connection to NATS: one at a time, made again as long as someone wants it.

Each connection is a `Session` that ends with the TCP connection. The library could reconnect by itself, but gives up
for good after some errors (a refused password, for example) and keeps what was sent in between. Here, every part sees
that a session has ended, and decides what to send again in the next one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.errors import Error
from nats.js import JetStreamContext

from bridge.errors import ConfigError
from bridge.runtime import whole_file
from bridge.runtime.nats_client import NatsClient
from bridge.service.nats_settings import Nats

CONNECT_S = 2
REQUEST_S = 3.0  # for one answer from the servers; longer only while a new leader is elected
RETRY_S = 0.25
PING_S = 1  # a server that answers none of three pings is gone

NATS_ERRORS = (Error, OSError, TimeoutError)  # of a request; OSError includes ssl.SSLError

log = logging.getLogger("bridge.service")


class Session:
    """One connection, from its start to its end."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.stream: JetStreamContext = client.jetstream(timeout=REQUEST_S)
        self.ended = asyncio.Event()
        self.problem = ""  # with the streams, as logged

    async def publish(self, subject: str, data: bytes = b"") -> None:
        """For messages that may be lost: does nothing if the session has ended."""
        try:
            await self.client.publish(subject, data)
        except NATS_ERRORS:
            pass


class Link:
    """Keeps a session open from `start` to `stop`."""

    def __init__(self, settings: Nats, begin: Callable[[Session], Awaitable[None]], name: str) -> None:
        """`begin` prepares each session, before anyone else gets it; `name` is what the server's operator sees."""
        self._settings = settings
        self._begin = begin
        self._name = name
        self._options = options(settings)
        self._task: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._changed = asyncio.Event()
        self.problem = "not connected yet"  # the last one, as logged
        self.lost_at = float("-inf")  # when the last session ended

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="nats")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def session(self) -> Session | None:
        return self._session

    async def wait(self, seconds: float) -> Session | None:
        """The session, or the next one if it comes within this time."""
        try:
            async with asyncio.timeout(seconds):
                while self._session is None:
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._session

    async def _keep(self) -> None:
        servers = list(self._settings.servers)
        random.SystemRandom().shuffle(servers)
        while True:
            for server in servers:
                await self._use(server)
            await asyncio.sleep(RETRY_S)

    async def _use(self, server: str) -> None:
        """Connect to this server and stay until the connection ends."""
        client = NatsClient()
        session: Session | None = None

        async def end() -> None:
            if session is not None:
                session.ended.set()

        try:
            async with asyncio.timeout(CONNECT_S * 2):
                await client.connect([server], name=self._name, closed_cb=end, disconnected_cb=end, **self._options)
                session = Session(client)
                await self._begin(session)
            self._set(session)
            log.info("nats=%s connected", server)
            self.problem = ""
            await session.ended.wait()
            self._failed(server, "the connection ended")
        except NATS_ERRORS as exc:
            self._failed(server, connect_reason(exc, client, self._settings))
            if isinstance(exc, (Error, ssl.SSLError)):
                self._reread()
        except Exception as exc:  # not the answer that the library expects
            self._failed(server, f"unexpected answer ({type(exc).__name__})")
        finally:
            self._set(None)
            if session is not None:
                session.ended.set()
            await client.close()
            await asyncio.sleep(0)  # the library's own tasks have been cancelled, and end now

    def _reread(self) -> None:
        """The server refuses us: a password or certificate may have been changed since we read it."""
        with suppress(ConfigError):  # then what we have is the best guess
            self._options = options(self._settings)

    def _set(self, session: Session | None) -> None:
        if self._session is not None:
            self.lost_at = time.monotonic()
        self._session = session
        if session is None:
            self._changed.clear()
        else:
            self._changed.set()

    def _failed(self, server: str, problem: str) -> None:
        """Log each problem once, not per attempt."""
        text = f"nats={server} {problem}"
        if text != self.problem:
            log.warning("%s", text)
        self.problem = text


def options(settings: Nats) -> dict[str, Any]:
    """Arguments of the library's `connect`. Raises ConfigError if a file cannot be used."""
    found: dict[str, Any] = {
        "allow_reconnect": False,
        "connect_timeout": CONNECT_S,
        "ping_interval": PING_S,
        "max_outstanding_pings": 2,
        "error_cb": _ignore,
        "pending_size": 64 * 1024 * 1024,  # the library's own limit is below two large mails
    }
    if settings.is_encrypted:
        found["tls"] = tls_context(settings)
    if settings.credentials_file is not None:
        _read(settings, "credentials_file", settings.credentials_file)
        if find_spec("nkeys") is None:
            raise ConfigError(f"{WHERE}.credentials_file: a library is missing: pip install 'scanbridge[nats]'")
        found["user_credentials"] = str(settings.path(settings.credentials_file))
    if settings.token_file is not None:
        found["token"] = _read(settings, "token_file", settings.token_file)
    if settings.user is not None and settings.password_file is not None:
        found |= {"user": settings.user, "password": _read(settings, "password_file", settings.password_file)}
    return found


WHERE = "abby.serviceProviders.core.nats"


def tls_context(settings: Nats) -> ssl.SSLContext:
    context = _trust(settings)
    if settings.client_cert_file is not None and settings.client_key_file is not None:
        certificate, key = settings.path(settings.client_cert_file), settings.path(settings.client_key_file)
        try:
            for file in (certificate, key):
                whole_file.refuse_endless(file)
            context.load_cert_chain(certificate, key, password=lambda: b"")
        except (OSError, ssl.SSLError, ValueError) as exc:
            raise ConfigError(f"{WHERE}.client_cert_file: cannot be used: {reason(exc)}") from exc
    return context


def _trust(settings: Nats) -> ssl.SSLContext:
    try:
        if settings.ca_file:
            whole_file.refuse_endless(settings.path(settings.ca_file))
        context = ssl.create_default_context(cafile=settings.ca_file and str(settings.path(settings.ca_file)))
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"{WHERE}.ca_file: cannot load certificates: {reason(exc)}") from exc
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _read(settings: Nats, key: str, name: str) -> str:
    path: Path = settings.path(name)
    try:
        text = whole_file.read_text(path).strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{WHERE}.{key}: cannot read {name}: {reason(exc)}") from exc
    if not text:
        raise ConfigError(f"{WHERE}.{key}: {name} is empty")
    return text


def connect_reason(exc: BaseException, client: Client, settings: Nats) -> str:
    """Why the server refused us. Without a certificate that it demands, the error depends on who closes first."""
    if client._server_info.get("tls_verify") and settings.client_cert_file is None:
        return f"the server requires a certificate: set client_cert_file and client_key_file ({reason(exc)})"
    return reason(exc)


def reason(exc: BaseException) -> str:
    """What happened, without anything secret: the library's texts contain nothing secret."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"the server's certificate is not valid: {exc.verify_message}"
    if isinstance(exc, ssl.SSLError):
        return f"TLS failed: {exc.reason or type(exc).__name__}"
    if isinstance(exc, TimeoutError):
        return "no answer"
    if isinstance(exc, OSError):
        return (os.strerror(exc.errno) if exc.errno else exc.strerror) or type(exc).__name__
    return str(exc) or type(exc).__name__


async def _ignore(_error: Exception) -> None:
    """What matters is raised where it happens, or ends the session."""
