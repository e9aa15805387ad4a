"""Several next hops in order of preference: the second gets the mail while the first is down.

A mail goes to the first next hop that can be connected to and announces what the mail needs. Nothing else moves the
mail to the next one: once a server has received MAIL, its answer is final. If some could not be connected to and the
others lack an extension, the mail is deferred: the first ones may have it. A next hop that was down is skipped for
`SHUN_S`; then a single mail tries it again. If all are down, all are tried, so no mail is refused without an attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.mail.next_hop import NextHopError
from bridge.mail.transaction import Transaction
from bridge.relay.client_replies import LATE, UNREACHABLE
from bridge.relay.commands import FOR_NOW, CannotCarry
from bridge.relay.handshake import CannotConnect
from bridge.relay.relay import Relay
from bridge.relay.who_gets_the_mail import Delivered

log = logging.getLogger("bridge.relay")

SHUN_S = 30.0


@dataclass(slots=True)
class _Hop:
    name: str
    relay: Relay
    down: bool = False
    retry_at: float = 0.0  # while it is down


class Failover:
    """Next hops in order of preference; each has its own connections."""

    def __init__(self, hops: Sequence[tuple[str, Relay]], shun_s: float = SHUN_S) -> None:
        assert hops
        self._hops = [_Hop(name, relay) for name, relay in hops]
        self._shun_s = shun_s

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        failures: list[NextHopError] = []
        for hop in self._in_order():
            if any(isinstance(exc, CannotCarry) for exc in failures) and self._is_shunned(hop):
                failures.append(CannotConnect(UNREACHABLE, f"{hop.name}: skipped, because it was down"))
                continue
            try:
                return await self._try(hop, tx, head, deadline)
            except (CannotConnect, CannotCarry) as exc:
                failures.append(exc)
                if exc.reply is LATE:  # there is no time left for another one; the next mail goes there
                    break
        raise _weightiest(failures)

    async def probe(self) -> tuple[str, ...]:
        """What the first next hop offers; all next hops must answer. Raises NextHopError."""
        offers = [await hop.relay.probe() for hop in self._hops]
        return offers[0]

    async def close(self) -> None:
        await asyncio.gather(*(hop.relay.close() for hop in self._hops))

    def _in_order(self) -> list[_Hop]:
        """Next hops that are up or due for another try, in order of preference; then the others."""
        return sorted(self._hops, key=self._is_shunned)

    def _is_shunned(self, hop: _Hop) -> bool:
        return hop.down and asyncio.get_running_loop().time() < hop.retry_at

    async def _try(self, hop: _Hop, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        if hop.down:  # this mail tries it again; until it is done, other mails skip this next hop
            hop.retry_at = asyncio.get_running_loop().time() + self._shun_s
        try:
            delivered = await hop.relay.deliver(tx, head, deadline)
        except CannotConnect as exc:
            if not hop.down:
                log.warning("next hop %s is down, skipping it for %g s: %s", hop.name, self._shun_s, exc)
            hop.down = True
            hop.retry_at = asyncio.get_running_loop().time() + self._shun_s
            raise
        except NextHopError as exc:
            if exc.reply is not LATE:  # LATE may mean that there never was a connection
                self._mark_up(hop)
            raise
        self._mark_up(hop)
        return delivered

    def _mark_up(self, hop: _Hop) -> None:
        if hop.down:
            log.info("next hop %s is up again", hop.name)
        hop.down = False


def _weightiest(failures: list[NextHopError]) -> NextHopError:
    """Permanent only if no next hop is down and all of them permanently lack an extension."""
    lacking = [exc for exc in failures if isinstance(exc, CannotCarry)]
    if not lacking or not any(exc.reply.is_temporary for exc in failures):
        return failures[-1]
    return CannotCarry(lacking[-1].extension, FOR_NOW, "; ".join(map(str, failures)))
