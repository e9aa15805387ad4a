"""One next hop as operators see it: the results of the mails it was given, and whether it can be reached.

Wraps the relay that does the work, and passes on its results unchanged. A next hop that has had no mail for a while
is tested with a separate connection (`test`): otherwise no one would know that the next mail will fail. If this is
wrong, a next hop that is down is reported as up.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from time import monotonic

from bridge.mail.next_hop import Interrupted, NextHopError
from bridge.mail.transaction import Transaction
from bridge.relay.client_replies import LATE, LOST
from bridge.relay.handshake import CannotConnect
from bridge.relay.relay import Relay, SmtpRelay
from bridge.relay.who_gets_the_mail import Delivered

log = logging.getLogger(__name__)

RESULTS = ("taken", "deferred", "refused", "unreachable", "lost")
STATES = ("busy", "idle")
_QUIT_S = 5.0  # in addition to the time to connect


class MonitoredRelay:
    """A relay with a name, whose results are counted."""

    def __init__(self, name: str, relay: Relay, on_result: Callable[[str, str], None]) -> None:
        self.name = name
        self.pool = relay.pool if isinstance(relay, SmtpRelay) else None  # a Maildir has no connections
        self._relay = relay
        self._on_result = on_result
        self.is_up: bool | None = None  # None: not tried yet
        self.problem = ""  # why it is not up
        self._learned_at = -math.inf

    @property
    def age_s(self) -> float:
        """The age of what we know; infinite if the next hop has not been tried."""
        return monotonic() - self._learned_at

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
        except Interrupted:  # an answer that comes now is late: no client reads it
            self._on_result(self.name, "lost")
            raise
        self._learn(True)
        self._on_result(self.name, "taken")
        return delivered

    def _on_failure(self, exc: NextHopError) -> None:
        if exc.reply == LATE:  # the mail may have had too little time: one mail must not make a next hop look down
            result = "lost"
        elif isinstance(exc, CannotConnect):
            self._learn(False, exc)
            result = "unreachable"
        elif exc.reply == LOST:
            self._learn(True)
            result = "lost"
        else:
            self._learn(True)
            result = "deferred" if exc.reply.is_temporary else "refused"
        self._on_result(self.name, result)

    async def test(self, limit_s: float) -> None:
        """Connect, read the greeting, send EHLO and QUIT; no mail is mentioned."""
        try:
            async with asyncio.timeout(limit_s + _QUIT_S):
                await self._relay.probe()
        except (NextHopError, TimeoutError) as exc:
            self._learn(False, exc)
        else:
            self._learn(True)

    def _learn(self, is_up: bool, exc: Exception | None = None) -> None:
        self._learned_at = monotonic()
        if is_up is self.is_up:
            return
        if exc is not None:
            text = str(exc) or "it does not answer"
            self.problem = text.removeprefix(f"{self.name}: ").removeprefix(f"{self.name.partition('://')[2]}: ")
            log.warning("next hop %s cannot be used: %s", self.name, self.problem)
        elif self.is_up is False:
            self.problem = ""
            log.info("next hop %s can be used again", self.name)
        self.is_up = is_up

    async def probe(self) -> tuple[str, ...]:
        return await self._relay.probe()

    async def close(self) -> None:
        await self._relay.close()
