"""How many connections each client of a server has, so that one client cannot take them all.

A client is an IPv4 address, or the /64 network of an IPv6 address: whoever has one address of such a network has all
of them. If this is wrong, one client keeps everybody else out.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from typing import Any


class ClientCounts:
    """The open connections of each client. A unix socket's clients (None) are not told apart, and not counted."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def of(self, client: str | None) -> int:
        return 0 if client is None else self._open[client]

    def add(self, client: str | None) -> None:
        if client is not None:
            self._open[client] += 1

    def remove(self, client: str | None) -> None:
        if client is not None:
            self._open[client] -= 1
            if self._open[client] <= 0:
                del self._open[client]


def client_of(peername: Any) -> str | None:
    """The client behind what a socket calls its other end; None on a unix socket."""
    if not isinstance(peername, tuple):
        return None
    address = str(peername[0])
    if ":" not in address:
        return address
    ip = ipaddress.IPv6Address(address)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, 64)))
