"""One listener: its sockets, its connections within their limits, and the shutdown.

The same for every protocol. Knows nothing of SMTP, milter or mail. If this is wrong, a stop cuts off mail that is being
processed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

from bridge.intake.acceptor import Acceptor
from bridge.intake.connection_limits import C, ConnectionLimits, ListenerSettings, Refusal
from bridge.intake.trusted_clients import peer_address
from bridge.runtime.tls_acceptor import TlsAcceptor

log = logging.getLogger(__name__)


class Listener(ConnectionLimits[C]):
    """Accepts on the sockets it is given, within the limits, and drains the open connections."""

    def __init__(self, settings: ListenerSettings, *, is_ahead: Callable[[], bool] | None = None) -> None:
        super().__init__(settings)
        self._is_ahead = is_ahead
        self._acceptors: list[Acceptor | TlsAcceptor] = []

    async def serve(self, sock: socket.socket, make_connection: Callable[[], asyncio.Protocol]) -> None:
        """Accept on a bound TCP or unix socket: our own, or one from systemd or an earlier worker."""
        self._acceptors.append(Acceptor(sock, make_connection, self._is_ahead))
        await self._acceptors[-1].start()

    async def serve_tls(
        self,
        sock: socket.socket,
        make_connection: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        on_refused: Callable[[str | None, Refusal], None],
    ) -> None:
        """The same, with a TLS handshake at the beginning of each connection. `on_refused`: one that had none."""

        def may_begin(peername: Any, handshakes: int) -> bool:
            peer = peer_address(peername)
            is_full = len(self.open) + handshakes >= self.settings.max_connections
            refusal = Refusal.UNTRUSTED if peer not in self.trusted else Refusal.FULL if is_full else None
            if refusal is not None:
                on_refused(peer, refusal)
            return refusal is None

        self._acceptors.append(TlsAcceptor(sock, make_connection, tls, may_begin, self._is_ahead))
        await self._acceptors[-1].start()

    async def drain(self, timeout_s: float, finish: Callable[[C], None], cut: Callable[[C], None]) -> bool:
        """Stop accepting, `finish` every connection, and `cut` those still open after the timeout.

        Returns whether all of them finished in time. A second call with a shorter timeout hurries the first.
        """
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in tuple(self.open):
            finish(connection)
        if await self.wait_until_empty(timeout_s):
            return True
        log.warning("listener %s: connections cut off by the drain timeout: %d", self.settings.name, len(self.open))
        for connection in tuple(self.open):
            cut(connection)
        return False

    async def wait_until_empty(self, timeout_s: float) -> bool:
        """Whether all connections are closed within the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
