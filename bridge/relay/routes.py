"""Several next hops: a fallback when one is down, and different ones for different domains.

`Failover` gives a mail to the first next hop that can be connected to and announces what the mail needs. Only that
moves the mail to the next one: once a server has received MAIL, its answer is final. If some could not be connected to
and the others lack an extension, the mail is deferred: the first ones may have it. A next hop that was down is skipped
for `SHUN_S`; then a single mail tries it again. If all are down, all are tried, so nothing is refused untried.

`Routes` sends each recipient to the next hop of its domain. A mail for several next hops goes to all of them
at the same time if the client receives one reply per recipient (`Transaction.is_per_recipient`). Otherwise it goes to
one after the other, and the first failure is the reply for the whole mail: after a 4xx the client sends the mail
again, and some recipients get it twice; a 5xx goes back to the sender. No recipient is dropped silently. The
SMTP intake avoids such duplicates: it accepts recipients of one next hop at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bridge.mail.address import domain_of
from bridge.mail.envelope import Recipient
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.relay.answers import Delivered
from bridge.relay.commands import FOR_NOW, CannotCarry
from bridge.relay.handshake import CannotConnect
from bridge.relay.relay import Mixed, Relay
from bridge.relay.replies import LATE, UNREACHABLE

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
        raise _weightiest(failures)

    async def probe(self) -> tuple[str, ...]:
        """What the first next hop offers; all of them must answer. Raises NextHopError."""
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
    """Permanent only if no next hop is down, and all of them lack an extension for good."""
    lacking = [exc for exc in failures if isinstance(exc, CannotCarry)]
    if not lacking or not any(exc.reply.is_temporary for exc in failures):
        return failures[-1]
    return CannotCarry(lacking[-1].extension, FOR_NOW, "; ".join(map(str, failures)))


class Routes:
    """A relay for each recipient domain that has its own, and a default for the others."""

    def __init__(self, by_domain: Mapping[str, Relay], default: Relay) -> None:
        self._by_domain = dict(by_domain)  # spelled as `domain_of` does
        self._default = default
        self._relays = list(dict.fromkeys([default, *by_domain.values()]))

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        groups = self._groups(tx.envelope.recipients)
        if len(groups) == 1:
            return await next(iter(groups)).deliver(tx, head, deadline)
        if tx.is_per_recipient:
            return await _to_all(groups, tx, head, deadline)
        done: list[Delivered] = []
        each: dict[int, Reply] = {}
        for relay, numbers in groups.items():
            try:
                delivered = await relay.deliver(_part(tx, numbers), head, deadline)
            except NextHopError as exc:
                exc.unsure = _positions(numbers, exc.unsure)
                if done:
                    log.warning("%s: delivered to %d recipients before a next hop failed: %s", tx.id, len(each), exc)
                raise
            done.append(delivered)
            each.update(zip(numbers, delivered.replies, strict=True))
        ids = ",".join(delivered.queue_id for delivered in done if delivered.queue_id)
        return Delivered(done[0].reply, ids, tuple(each[number] for number in sorted(each)))

    async def probe(self) -> tuple[str, ...]:
        """What the default next hop offers; all of them must answer. Raises NextHopError."""
        offers = [await relay.probe() for relay in self._relays]
        return offers[0]

    async def close(self) -> None:
        await asyncio.gather(*(relay.close() for relay in self._relays))

    def _relay(self, address: str) -> Relay:
        return self._by_domain.get(domain_of(address), self._default)

    def _groups(self, recipients: tuple[Recipient, ...]) -> dict[Relay, list[int]]:
        groups: dict[Relay, list[int]] = {}
        for number, recipient in enumerate(recipients):
            groups.setdefault(self._relay(recipient.address), []).append(number)
        return groups


def _part(tx: Transaction, numbers: list[int]) -> Transaction:
    """The same mail, with these recipients only."""
    recipients = tuple(tx.envelope.recipients[number] for number in numbers)
    return replace(tx, envelope=replace(tx.envelope, recipients=recipients))


async def _to_all(groups: dict[Relay, list[int]], tx: Transaction, head: bytes, deadline: float) -> Delivered:
    """Deliver to all next hops at the same time; each recipient gets its own next hop's answer."""
    async with asyncio.TaskGroup() as tasks:
        running = [
            (numbers, tasks.create_task(_answers(relay, _part(tx, numbers), head, deadline)))
            for relay, numbers in groups.items()
        ]
    each: dict[int, Reply] = {}
    ids = []
    unsure: frozenset[int] = frozenset()
    for numbers, task in running:
        answer = task.result()
        each.update(zip(numbers, answer.replies, strict=True))
        ids += [answer.queue_id] if answer.queue_id else []
        unsure |= _positions(numbers, answer.unsure)
    own = tuple(each[number] for number in sorted(each))
    if all(reply.is_success for reply in own):
        return Delivered(own[0], ",".join(ids), own)
    error = Mixed(own, ",".join(ids))
    error.unsure = unsure
    raise error


@dataclass(frozen=True, slots=True)
class _Answer:
    """Of one next hop, about its recipients."""

    replies: tuple[Reply, ...]
    queue_id: str = ""
    unsure: frozenset[int] = frozenset()  # see NextHopError


async def _answers(relay: Relay, part: Transaction, head: bytes, deadline: float) -> _Answer:
    try:
        delivered = await relay.deliver(part, head, deadline)
    except Mixed as exc:
        return _Answer(exc.replies, exc.queue_id, exc.unsure)
    except NextHopError as exc:
        log.warning("%s: not delivered to %d recipients: %s", part.id, len(part.envelope.recipients), exc)
        return _Answer((exc.reply,) * len(part.envelope.recipients), unsure=exc.unsure)
    return _Answer(delivered.replies, delivered.queue_id)


def _positions(numbers: list[int], of_part: frozenset[int]) -> frozenset[int]:
    """Positions within a part, as positions in the whole mail."""
    return frozenset(numbers[position] for position in of_part)
