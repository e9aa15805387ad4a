"""The MTA Hooks listener that the daemon starts: serve, reload, drain.

Connections are the HTTP connections of `runtime`, counted and trusted like those of every other listener. If this is
wrong, a stop cuts off mail in processing, or a renewed certificate is not used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from bridge.filter.pipeline import Filter
from bridge.intake.connection_limits import Refusal
from bridge.intake.hooks.app import HooksApp, error_body
from bridge.intake.hooks.context import HooksContext, HooksSettings
from bridge.intake.listener import Listener
from bridge.intake.reports import NO_REPORTS, IntakeReports
from bridge.intake.trusted_clients import peer_address
from bridge.mail.message import Spool
from bridge.runtime.http_server import HttpApplication, HttpConnection, HttpLimits
from bridge.runtime.tls import use_reloaded_certificate

_UNREAD_S = 60.0
_ANY = 1_000_000
_AFTER_CUT_S = 1.0


class HooksServer:
    """Accepts on the sockets it is given, until it is drained."""

    def __init__(
        self,
        settings: HooksSettings,
        filter_: Filter,
        spool: Spool,
        *,
        reports: IntakeReports = NO_REPORTS,
        is_ahead: Callable[[], bool] | None = None,
    ) -> None:
        self.listener = Listener[HooksConnection](settings.listener, is_ahead=is_ahead)
        self.context = HooksContext(settings, filter_, spool, reports)
        limits = HttpLimits(
            head_timeout_s=settings.head_timeout_s,
            max_connections=_ANY,  # the listener counts them
            unread_timeout_s=_UNREAD_S,
        )
        self._application = HttpApplication(HooksApp(self.context), limits)
        self._tls = settings.tls
        if self._tls is not None:
            use_reloaded_certificate(self._tls, lambda: self.context.settings.tls)

    @property
    def connections(self) -> int:
        return len(self.listener.open)

    def adopt(self, settings: HooksSettings, filter_: Filter) -> None:
        """Use these for new connections, and for the next request on open ones. For a reload."""
        self.listener.adopt(settings.listener)
        self.context.adopt(settings, filter_)

    async def serve(self, sock: socket.socket) -> None:
        """Start accepting on a bound TCP or unix socket."""
        if self._tls is None:
            await self.listener.serve(sock, lambda: HooksConnection(self))
        else:
            await self.listener.serve_tls(sock, lambda: HooksConnection(self), self._tls, self.context.refused)

    def make_needed(self) -> dict[str, Any]:
        return self._application.needed

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, close what is idle, let running mail finish, then close everything."""
        finished = await self.listener.drain(timeout_s, HooksConnection.shutdown, self._cut)
        if not finished:
            await self.listener.wait_until_empty(_AFTER_CUT_S)

    def _cut(self, connection: HooksConnection) -> None:
        self.context.filter.is_stopping = True
        connection.cut()


class HooksConnection(HttpConnection):
    def __init__(self, server: HooksServer) -> None:
        super().__init__(**server.make_needed())
        self._server = server

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        listener, context = self._server.listener, self._server.context
        peer = peer_address(transport.get_extra_info("peername"))
        if peer not in listener.trusted:
            context.refused(peer, Refusal.UNTRUSTED)
            transport.abort()
            return
        refusal = Refusal.FULL if listener.draining else listener.admit(self, peer)
        if refusal is not None:
            context.refused(peer, refusal)
            self.refuse(503, "saturated", "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.listener.forget(self)
        super().connection_lost(exc)

    def error_body(self, error: str, message: str) -> bytes:
        return error_body(error.upper(), message)
