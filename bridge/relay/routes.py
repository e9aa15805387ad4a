"""Several next hops: one after the other when one is down, and different ones for different domains.

`Failover` hands a mail to the first next hop that can be connected to. Only a failed connection
moves it on to the next: once a server has heard MAIL, its word is the answer. A next hop that was
down is left alone for `SHUN_S`, then one mail tries it again; when all are down all are tried, so
nothing is refused untried.

`Routes` sends each recipient to the next hop of his domain. A mail for several of them is handed
over to all at once if the client reads a reply for each recipient (`Transaction.each`). Else it goes
to one after the other, and the first failure is the answer for the whole mail: a 4xx brings it
again, and who has it then gets it twice; a 5xx goes back to the sender. Nobody is left out in
silence. The SMTP intake avoids the duplicates: it has recipients of different next hops come apart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bridge.errors import NextHopError
from bridge.mail.envelope import Recipient
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.relay.answers import Delivered
from bridge.relay.handshake import CannotConnect
from bridge.relay.relay import Mixed, Relay
from bridge.relay.replies import LATE

log = logging.getLogger("bridge.relay")

SHUN_S = 30.0


@dataclass(slots=True)
class _Hop:
    name: str
    relay: Relay
    down: bool = False
    retry_at: float = 0.0  # while it is down


class Failover:
    """Next hops in the order of preference; each has its own connections."""

    def __init__(self, hops: Sequence[tuple[str, Relay]], shun_s: float = SHUN_S) -> None:
        assert hops
        self._hops = [_Hop(name, relay) for name, relay in hops]
        self._shun_s = shun_s

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        last: CannotConnect | None = None
        for hop in self._in_order():
            try:
                delivered = await self._try(hop, tx, head, deadline)
            except CannotConnect as exc:
                last = exc
            else:
                return delivered
        assert last is not None
        raise last

    async def probe(self) -> tuple[str, ...]:
        """What the first one offers; every one must answer. Raises NextHopError."""
        offers = [await hop.relay.probe() for hop in self._hops]
        return offers[0]

    async def close(self) -> None:
        await asyncio.gather(*(hop.relay.close() for hop in self._hops))

    def _in_order(self) -> list[_Hop]:
        """Those that are up, or due for another try, in their order; then the others."""
        now = asyncio.get_running_loop().time()
        return sorted(self._hops, key=lambda hop: hop.down and now < hop.retry_at)

    async def _try(self, hop: _Hop, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        if hop.down:  # this mail is the trial; until it is over the others go elsewhere
            hop.retry_at = asyncio.get_running_loop().time() + self._shun_s
        try:
            delivered = await hop.relay.deliver(tx, head, deadline)
        except CannotConnect as exc:
            if not hop.down:
                log.warning("next hop %s is left alone for %g s: %s", hop.name, self._shun_s, exc)
            hop.down = True
            hop.retry_at = asyncio.get_running_loop().time() + self._shun_s
            raise
        except NextHopError as exc:
            if exc.reply is not LATE:  # which may mean that there never was a connection
                self._is_up(hop)
            raise
        self._is_up(hop)
        return delivered

    def _is_up(self, hop: _Hop) -> None:
        if hop.down:
            log.info("next hop %s is back", hop.name)
        hop.down = False


class Routes:
    """A relay for each recipient domain that has one, and one for all others."""

    def __init__(self, by_domain: Mapping[str, Relay], default: Relay) -> None:
        self._by_domain = dict(by_domain)  # by domains in lower case
        self._default = default
        self._relays = list(dict.fromkeys([default, *by_domain.values()]))

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        groups = self._groups(tx.envelope.recipients)
        if len(groups) == 1:
            return await next(iter(groups)).deliver(tx, head, deadline)
        if tx.each:
            return await _at_once(groups, tx, head, deadline)
        done: list[Delivered] = []
        each: dict[int, Reply] = {}
        for relay, numbers in groups.items():
            try:
                delivered = await relay.deliver(_part(tx, numbers), head, deadline)
            except NextHopError as exc:
                if done:
                    log.warning("%s: %d of its recipients have it, and then: %s", tx.id, len(each), exc)
                raise
            done.append(delivered)
            each.update(zip(numbers, delivered.replies, strict=True))
        ids = ",".join(one.queue_id for one in done if one.queue_id)
        return Delivered(done[0].reply, ids, tuple(each[number] for number in sorted(each)))

    async def probe(self) -> tuple[str, ...]:
        """What the default next hop offers; every one must answer. Raises NextHopError."""
        offers = [await relay.probe() for relay in self._relays]
        return offers[0]

    async def close(self) -> None:
        await asyncio.gather(*(relay.close() for relay in self._relays))

    def _relay(self, address: str) -> Relay:
        return self._by_domain.get(address.rpartition("@")[2].lower(), self._default)

    def _groups(self, recipients: tuple[Recipient, ...]) -> dict[Relay, list[int]]:
        groups: dict[Relay, list[int]] = {}
        for number, recipient in enumerate(recipients):
            groups.setdefault(self._relay(recipient.address), []).append(number)
        return groups


def _part(tx: Transaction, numbers: list[int]) -> Transaction:
    """The same mail for these recipients only."""
    recipients = tuple(tx.envelope.recipients[number] for number in numbers)
    return replace(tx, envelope=replace(tx.envelope, recipients=recipients))


async def _at_once(groups: dict[Relay, list[int]], tx: Transaction, head: bytes, deadline: float) -> Delivered:
    """Each recipient gets his own next hop's answer, whatever the others said."""
    async with asyncio.TaskGroup() as tasks:
        running = [
            (numbers, tasks.create_task(_answers(relay, _part(tx, numbers), head, deadline)))
            for relay, numbers in groups.items()
        ]
    each: dict[int, Reply] = {}
    ids = []
    for numbers, task in running:
        own, queue_id = task.result()
        each.update(zip(numbers, own, strict=True))
        ids += [queue_id] if queue_id else []
    own = tuple(each[number] for number in sorted(each))
    if all(one.is_success for one in own):
        return Delivered(own[0], ",".join(ids), own)
    raise Mixed(own, ",".join(ids))


async def _answers(relay: Relay, part: Transaction, head: bytes, deadline: float) -> tuple[tuple[Reply, ...], str]:
    """What each recipient of this part is told, and the next hop's id."""
    try:
        delivered = await relay.deliver(part, head, deadline)
    except Mixed as exc:
        return exc.replies, exc.queue_id
    except NextHopError as exc:
        log.warning("%s: not handed on to %d of its recipients: %s", part.id, len(part.envelope.recipients), exc)
        return (exc.reply,) * len(part.envelope.recipients), ""
    return delivered.replies, delivered.queue_id
