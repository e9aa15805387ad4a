"""Which clients a listener trusts, and how many connections each may have.

The same rules for every protocol: the protocol's server asks here, and answers its client in its own words. Knows
addresses and counts; knows no sockets. If this is wrong, an unknown client is trusted, or one client takes all
connections.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from bridge.mail.session import canonical_ip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK: tuple[Network, ...] = (ipaddress.IPv4Network("127.0.0.0/8"), ipaddress.IPv6Network("::1/128"))

UNKNOWN = "unknown"  # in place of an address
_UNTRUSTED_SHARE = 20  # clients that are not trusted get at most a twentieth of the connections,
_UNTRUSTED_MIN = 5  # but never fewer than this
_MAX_REMEMBERED = 10_000

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


class TrustedClients:
    """The clients in `trusted_clients`, by address.

    Each answer is remembered: a mail server connects again and again.
    """

    def __init__(self, networks: tuple[Network, ...]) -> None:
        self._networks = networks
        self._remembered: dict[str, bool] = {}

    def __contains__(self, address: str | None) -> bool:
        if address is None:  # a unix socket: its permissions decide
            return True
        answer = self._remembered.get(address)
        if answer is None:
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            answer = self._remembered[address] = self._look_up(address)
        return answer

    def _look_up(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:  # UNKNOWN
            return False
        return any(ip in network for network in self._networks)


class ConnectionLimits(Generic[C]):
    """Counts the open connections, in all and by client."""

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
        """Use these settings for new connections; open ones stay. For a reload."""
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


def peer_address(peername: Any) -> str | None:
    """The bare address of a socket's other end; None for a unix socket. A mapped IPv4 address is IPv4.

    A client that resets its connection before we accept it has no peer name, but its data still arrives: such a
    client is UNKNOWN, and never trusted.
    """
    if peername is None:
        return UNKNOWN
    if not isinstance(peername, tuple):
        return None
    address = str(peername[0])
    return canonical_ip(address) if ":" in address else address
