"""How many connections each client of a server has, so that one client cannot take them all.

If this is wrong, one client keeps all others out.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from bridge.runtime.ip import client_of


class ClientCounts:
    """The open connections of each client. Clients of a unix socket (None) have no address and are not counted."""

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


def client_behind(peername: Any) -> str | None:
    """The client, from the peer name of its socket; None on a unix socket."""
    if not isinstance(peername, tuple):
        return None
    return client_of(str(peername[0]))
