"""Accepts connections that begin with a TLS handshake, and checks them before it.

An event loop that is given a TLS context reports a connection only after its handshake. Until then, a client that sends
nothing holds a descriptor for half a minute without being counted: strangers could take all descriptors of the process,
including those that mail needs. So connections are accepted here, refused by their address or number, and only
then passed on. If this is wrong, strangers keep the mail server out.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

_AT_ONCE = 8
_BACKLOG = 4096
_RETRY_S = 0.1  # after an error such as a lack of descriptors
_HANDSHAKE_S = 30.0
_YIELD_S = 0.003

# Called with the peer name and the number of unfinished handshakes: whether the connection may go on.
MayBegin = Callable[[Any, int], bool]


def _ignore(*_: object) -> None:
    """The default for callbacks."""


class TlsAcceptor:
    """Accepts on one listening TCP or unix socket, and owns it."""

    def __init__(
        self,
        sock: socket.socket,
        spawn: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext,
        may_begin: MayBegin,
        is_ahead: Callable[[], bool] | None = None,
        on_end: Callable[[Any], None] = _ignore,
    ) -> None:
        """`on_end`: called with the peer name when a handshake is over, whether it succeeded or not."""
        self._sock = sock
        self._spawn = spawn
        self._tls = tls
        self._may_begin = may_begin
        self._on_end = on_end
        self._is_ahead = is_ahead  # then another worker should get the next connections
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._handshakes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._sock.setblocking(False)
        self._sock.listen(_BACKLOG)
        self._loop.add_reader(self._sock, self._on_waiting)

    def close(self) -> None:
        """Connections in the queue stay there if another process holds the socket."""
        if self._timer is not None:
            self._timer.cancel()
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
        self._sock.close()
        for handshake in self._handshakes:
            handshake.cancel()

    async def wait_closed(self) -> None:
        """Until the handshakes that `close` has cancelled are over."""
        await asyncio.gather(*self._handshakes, return_exceptions=True)

    def _on_waiting(self) -> None:
        """A connection is in the queue; if we are ahead, leave it to another worker for a moment."""
        if self._is_ahead is not None and self._is_ahead():
            self._pause(_YIELD_S)
        else:
            self._accept()

    def _pause(self, seconds: float) -> None:
        self._loop.remove_reader(self._sock)
        self._timer = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._loop.add_reader(self._sock, self._on_waiting)
        self._accept()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor is left
                self._pause(_RETRY_S)
                return
            if self._may_begin(peer, len(self._handshakes)):
                handshake = self._loop.create_task(self._begin(connection))
                self._handshakes.add(handshake)
                handshake.add_done_callback(self._handshakes.discard)
                handshake.add_done_callback(partial(self._end, peer))
            else:
                connection.close()

    def _end(self, peer: Any, _: asyncio.Task[None]) -> None:
        self._on_end(peer)

    async def _begin(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(
                self._spawn, connection, ssl=self._tls, ssl_handshake_timeout=_HANDSHAKE_S
            )
        except (OSError, asyncio.CancelledError):  # no TLS, or none in time; or we are closing
            connection.close()
