"""How many connections a listener has, and how many each client may have.

The same rules for every protocol: the protocol's server asks here, and answers its client in its own words. Knows
addresses and counts; knows no sockets. If this is wrong, one client takes all connections.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from bridge.intake.trusted_clients import LOOPBACK, UNKNOWN, Network, TrustedClients

_UNTRUSTED_SHARE = 20  # clients that are not trusted get at most a twentieth of the connections,
_UNTRUSTED_MIN = 5  # but never fewer than this

C = TypeVar("C")  # the protocol's class of connections


class Refusal(Enum):
    """Why a connection is refused; the value is the metric's label."""

    UNTRUSTED = "untrusted"
    FULL = "limit"
    CLIENT_FULL = "client_limit"


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """What every listener needs to know, whatever its protocol."""

    name: str
    trusted: tuple[Network, ...] = LOOPBACK
    max_connections: int = 2000
    max_connections_per_client: int | None = None  # None: only `max_connections` limits a client


class ConnectionLimits(Generic[C]):
    """Counts the open connections, in total and per client."""

    def __init__(self, settings: ListenerSettings) -> None:
        self.draining = False
        self.open: dict[C, tuple[str | None, bool]] = {}  # the client's address, and whether it is trusted
        self.expected: set[C] = set()  # connections that still owe us their PROXY header
        self.per_client: dict[str, int] = {}  # open connections by address
        self.untrusted = 0  # open connections of clients that are not trusted
        self._empty = asyncio.Event()
        self._empty.set()
        self.adopt(settings)

    def adopt(self, settings: ListenerSettings) -> None:
        """Use these settings for new connections, and keep the open ones. For a reload."""
        self.settings = settings
        self.trusted = TrustedClients(settings.trusted)
        self._max_untrusted = max(settings.max_connections // _UNTRUSTED_SHARE, _UNTRUSTED_MIN)

    def expect(self, connection: C, peer: str | None) -> Refusal | None:
        """Whether a peer may stay until its PROXY header says who the client is."""
        if peer not in self.trusted:
            return Refusal.UNTRUSTED
        if self.draining or len(self.open) + len(self.expected) >= self.settings.max_connections:
            return Refusal.FULL
        self.expected.add(connection)
        return None

    def admit(self, connection: C, client: str | None) -> Refusal | None:
        """Count a connection of this client (None: on a unix socket), or return why it is refused."""
        self.expected.discard(connection)
        is_trusted = client in self.trusted
        if len(self.open) >= self.settings.max_connections:
            return Refusal.FULL
        if not is_trusted and self.untrusted >= self._max_untrusted:
            return Refusal.FULL
        if client is not None:
            count, limit = self.per_client.get(client, 0), self.settings.max_connections_per_client
            if limit is not None and count >= limit:
                return Refusal.CLIENT_FULL
            self.per_client[client] = count + 1
        self.untrusted += not is_trusted
        self.open[connection] = client, is_trusted
        self._empty.clear()
        return None

    def still_trusts(self, connection: C) -> bool:
        """Whether an open connection's client is trusted; a reload may have changed that since it was admitted."""
        client, was_trusted = self.open.get(connection, (UNKNOWN, False))
        return was_trusted and client in self.trusted

    def forget(self, connection: C) -> None:
        """The connection is closed."""
        self.expected.discard(connection)
        client, is_trusted = self.open.pop(connection, (None, True))
        self.untrusted -= not is_trusted
        if client is not None:
            self.per_client[client] -= 1
            if not self.per_client[client]:
                del self.per_client[client]
        if not self.open:
            self._empty.set()
