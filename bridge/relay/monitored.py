"""One next hop as operators see it: what became of the mails it was given, and whether it can be reached.

Wraps the relay that does the work, and passes on its results unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bridge.mail.next_hop import NextHopError
from bridge.mail.transaction import Transaction
from bridge.relay.answers import Delivered
from bridge.relay.handshake import CannotConnect
from bridge.relay.relay import Relay, SmtpRelay
from bridge.relay.replies import LATE, LOST

RESULTS = ("taken", "deferred", "refused", "unreachable", "lost")
STATES = ("busy", "idle")
DOWN_S = 60.0  # a failed connection attempt says nothing about the state a minute later


class MonitoredRelay:
    """A relay with a name, whose results are counted."""

    def __init__(self, name: str, relay: Relay, on_result: Callable[[str, str], None]) -> None:
        self.name = name
        self.pool = relay.pool if isinstance(relay, SmtpRelay) else None  # a Maildir has no connections
        self._relay = relay
        self._on_result = on_result
        self._failed_at: float | None = None

    @property
    def is_up(self) -> bool:
        """False if the last attempt to connect failed recently."""
        return self._failed_at is None or asyncio.get_running_loop().time() - self._failed_at > DOWN_S

    @property
    def busy(self) -> int:
        """Connections that are carrying a mail, or being opened for one."""
        return self.pool.connections[0] if self.pool is not None else 0

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        try:
            delivered = await self._relay.deliver(tx, head, deadline)
        except NextHopError as exc:
            self._on_failure(exc)
            raise
        self._failed_at = None
        self._on_result(self.name, "taken")
        return delivered

    def _on_failure(self, exc: NextHopError) -> None:
        if isinstance(exc, CannotConnect):
            self._failed_at = asyncio.get_running_loop().time()
            result = "unreachable"
        elif exc.reply in (LATE, LOST):  # after LATE there may never have been a connection
            result = "lost"
        else:
            self._failed_at = None
            result = "deferred" if exc.reply.is_temporary else "refused"
        self._on_result(self.name, result)

    async def probe(self) -> tuple[str, ...]:
        return await self._relay.probe()

    async def close(self) -> None:
        await self._relay.close()
