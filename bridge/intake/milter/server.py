"""The milter listener: sockets, who may connect, timers, and an orderly end.

One server serves any number of listening sockets, TCP or unix, made by the daemon (or handed over
by systemd). A single tick looks after every connection: it closes the silent ones, and tells the
mail server of each running scan that we are still at it (SMFIR_PROGRESS restarts its timer), so
that thousands of mails in flight need no timer each.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.filter.pipeline import Filter
from bridge.intake.acceptor import Acceptor
from bridge.intake.milter.connection import Connection
from bridge.intake.milter.mail import Limits, Mail
from bridge.intake.milter.stalwart import WholeMail
from bridge.mail.message import Spool
from bridge.runtime.write_batch import Writes

log = logging.getLogger(__name__)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK: tuple[Network, ...] = (ipaddress.IPv4Network("127.0.0.0/8"), ipaddress.IPv6Network("::1/128"))
_WARN_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class MilterSettings:
    """What one milter listener needs to know."""

    listener: str
    trusted: tuple[Network, ...] = LOOPBACK  # who may connect; peers on a unix socket always may
    max_connections: int = 2000
    max_message_size: int = MAX_MESSAGE_BYTES
    max_recipients: int = 1000
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)  # of recipients; a mail has one tenant
    body_is_whole: bool = False  # the mail server sends the fields with the body as well
    progress_interval_s: float = 5.0
    read_timeout_s: float = 60.0  # a frame, once begun, and the pauses within the content
    content_timeout_s: float = 600.0  # first header to end of body; the mail server sends it from its disk
    idle_timeout_s: float = 7210.0  # libmilter's: twice an SMTP client's hour between two commands


def _ignore(*_: object) -> None:
    """For metrics nobody wants."""


class MilterServer:
    """Everything the connections of one listener share."""

    def __init__(
        self,
        settings: MilterSettings,
        filter_: Filter,
        spool: Spool,
        *,
        on_connections: Callable[[int], None] = _ignore,
        on_refused: Callable[[str], None] = _ignore,  # a connection: untrusted, limit
        on_saturated: Callable[[str], None] = _ignore,  # a mail, at the stage: mail
        on_limit: Callable[[str], None] = _ignore,  # which limit a mail server has passed
        is_ahead: Callable[[], bool] | None = None,  # of other workers, who shall have the next connections
    ) -> None:
        self.on_limit = on_limit
        self.on_saturated = on_saturated
        self._on_connections = on_connections
        self._on_refused = on_refused
        self.spool = spool
        self.adopt(settings, filter_)
        self.draining = False
        self.loop: asyncio.AbstractEventLoop
        self._is_ahead = is_ahead
        self._acceptors: list[Acceptor] = []
        self._connections: set[Connection] = set()
        self._empty: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tick_s = min(1.0, settings.progress_interval_s / 4, settings.read_timeout_s / 4)
        self._warned_at = float("-inf")
        self._unsaid = 0

    def adopt(self, settings: MilterSettings, filter_: Filter) -> None:
        """Also for a reload: new connections, and the next mail of those that are open, go by these."""
        self.settings = settings
        self.filter = filter_
        self._trusted_peer = "unix"  # and then whoever came last: it is nearly always the same
        self.kind_of_mail = WholeMail if settings.body_is_whole else Mail
        self.limits = Limits(
            settings.max_message_size,
            settings.max_recipients,
            filter_.header_prefix.lower().encode("ascii"),
            settings.tenant_by_domain,
            self.on_limit,
        )

    @cached_property
    def writes(self) -> Writes:
        return Writes(self.loop)

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def serve(self, sock: socket.socket) -> None:
        """Accept connections on a bound TCP or unix socket from now on."""
        self.loop = asyncio.get_running_loop()
        self._acceptors.append(Acceptor(sock, lambda: Connection(self), self._is_ahead))
        await self._acceptors[-1].start()

    async def drain(self, timeout_s: float) -> None:
        """Stop accepting, close what is idle, let running mail finish, then close everything."""
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.close()
        for connection in [one for one in self._connections if one.idle]:
            connection.close()
        if not await self._emptied(timeout_s):
            log.warning("%s: %d mails cut off at shutdown", self.settings.listener, len(self._connections))
            for connection in list(self._connections):
                connection.cut()
            await self._emptied(1.0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _emptied(self, timeout_s: float) -> bool:
        if self._connections:
            self._empty = asyncio.Event()
            try:
                await asyncio.wait_for(self._empty.wait(), timeout_s)
            except TimeoutError:
                return False
        return True

    # --- for the connections ---------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay; said once, at its start."""
        if not self._trusts(connection.peer):
            self.warn("%s: refused: not in trusted_clients", connection.peer)
            self._on_refused("untrusted")
            return False
        if len(self._connections) >= self.settings.max_connections or self.draining:
            self.warn("%s: refused: %d connections are open", connection.peer, len(self._connections))
            self._on_refused("limit")
            return False
        self._connections.add(connection)
        self._on_connections(len(self._connections))
        if self._timer is None:
            self._timer = self.loop.call_later(self._tick_s, self._tick)
        return True

    def _trusts(self, peer: str) -> bool:
        if peer == self._trusted_peer or peer == "unix":
            return True
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:  # already gone
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        if not any(address in network for network in self.settings.trusted):
            return False
        self._trusted_peer = peer
        return True

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._on_connections(len(self._connections))
        if not self._connections and self._empty is not None:
            self._empty.set()

    def warn(self, text: str, *args: object) -> None:
        """At most one line a second: whoever causes them must not fill the disk."""
        now = time.monotonic()
        if now - self._warned_at < _WARN_EVERY_S:
            self._unsaid += 1
            return
        if self._unsaid:
            text, args = text + " (and %d more like it)", (*args, self._unsaid)
        self._warned_at, self._unsaid = now, 0
        log.warning("%s: " + text, self.settings.listener, *args)

    def _tick(self) -> None:
        self._timer = None
        if not self._connections:
            return
        now = time.monotonic()
        for connection in list(self._connections):
            connection.look_back(now)
        self._timer = self.loop.call_later(self._tick_s, self._tick)
