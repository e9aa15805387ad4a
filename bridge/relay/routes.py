"""Different next hops for different domains.

Each recipient goes to the next hop of its domain. A mail for several next hops goes to all of them
at the same time if the client receives one reply per recipient (`Transaction.is_per_recipient`). Otherwise it goes to
one after the other, and the first failure is the reply for the whole mail: after a 4xx the client sends the mail
again, and some recipients get it twice; a 5xx goes back to the sender. No recipient is dropped silently. The
SMTP intake avoids such duplicates: it accepts the recipients of only one next hop at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bridge.mail.address import domain_of
from bridge.mail.envelope import Recipient
from bridge.mail.next_hop import Interrupted, NextHopError
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.relay.relay import Mixed, Relay
from bridge.relay.who_gets_the_mail import Delivered

log = logging.getLogger("bridge.relay")


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
            except asyncio.CancelledError as exc:
                unsure = _positions(numbers, exc.unsure) if isinstance(exc, Interrupted) else frozenset()
                if unsure or each:
                    raise Interrupted(unsure, frozenset(each)) from None
                raise
            except NextHopError as exc:
                exc.unsure = _positions(numbers, exc.unsure)
                if done:
                    text = "mail %s: delivered to %d recipients before a next hop failed: %s"
                    log.warning(text, tx.id, len(each), exc)
                raise
            done.append(delivered)
            each.update(zip(numbers, delivered.replies, strict=True))
        ids = ",".join(delivered.queue_id for delivered in done if delivered.queue_id)
        return Delivered(done[0].reply, ids, tuple(each[number] for number in sorted(each)))

    async def probe(self) -> tuple[str, ...]:
        """What the default next hop offers; all next hops must answer. Raises NextHopError."""
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
    running: list[tuple[list[int], asyncio.Task[_Answer]]] = []
    try:
        async with asyncio.TaskGroup() as tasks:
            for relay, numbers in groups.items():
                running.append((numbers, tasks.create_task(_answers(relay, _part(tx, numbers), head, deadline))))
    except asyncio.CancelledError:
        if (interrupted := _interrupted(running)) is not None:
            raise interrupted from None
        raise
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
    """The answer of one next hop, about its recipients."""

    replies: tuple[Reply, ...]  # none if it was cancelled
    queue_id: str = ""
    unsure: frozenset[int] = frozenset()  # see NextHopError


def _interrupted(running: list[tuple[list[int], asyncio.Task[_Answer]]]) -> Interrupted | None:
    """Who has the mail, or may have it, after all of them were cancelled; None if nobody has."""
    unsure: frozenset[int] = frozenset()
    accepted: frozenset[int] = frozenset()
    for numbers, task in running:
        if task.cancelled() or task.exception() is not None:
            continue
        answer = task.result()
        unsure |= _positions(numbers, answer.unsure)
        taken = [position for position, reply in enumerate(answer.replies) if reply.is_success]
        accepted |= _positions(numbers, frozenset(taken))
    return Interrupted(unsure, accepted) if unsure or accepted else None


async def _answers(relay: Relay, part: Transaction, head: bytes, deadline: float) -> _Answer:
    try:
        delivered = await relay.deliver(part, head, deadline)
    except Interrupted as exc:
        return _Answer((), unsure=exc.unsure)
    except Mixed as exc:
        return _Answer(exc.replies, exc.queue_id, exc.unsure)
    except NextHopError as exc:
        log.warning("mail %s: not delivered to %d recipients: %s", part.id, len(part.envelope.recipients), exc)
        return _Answer((exc.reply,) * len(part.envelope.recipients), unsure=exc.unsure)
    return _Answer(delivered.replies, delivered.queue_id)


def _positions(numbers: list[int], of_part: frozenset[int]) -> frozenset[int]:
    """Positions within a part, as positions in the whole mail."""
    return frozenset(numbers[position] for position in of_part)
