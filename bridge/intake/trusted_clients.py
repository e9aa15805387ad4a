"""Which clients a listener trusts, by their addresses.

The same for every protocol. Knows addresses; knows no sockets. If this is wrong, an unknown client is trusted.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from bridge.mail.session import canonical_ip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LOOPBACK: tuple[Network, ...] = (ipaddress.IPv4Network("127.0.0.0/8"), ipaddress.IPv6Network("::1/128"))

UNKNOWN = "unknown"  # in place of an address
_MAX_REMEMBERED = 10_000


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
