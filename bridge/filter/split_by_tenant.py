"""A mail whose recipients belong to several tenants, where the client reads an answer for each of them.

It becomes one transaction for each tenant, with the same message: its own scan, policy, id and line in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bridge.filter.outcome import Outcome
from bridge.mail.reply import Reply, weightiest
from bridge.mail.transaction import Transaction, new_id

_AT_ONCE = 4  # parts of one mail; each takes a slot, and others want some too


def by_tenant(tx: Transaction, tenant_of: Callable[[str], str | None]) -> list[list[int]]:
    """The numbers of the recipients, by tenant."""
    parts: dict[str | None, list[int]] = {}
    for number, address in enumerate(tx.envelope.addresses):
        parts.setdefault(tenant_of(address), []).append(number)
    return list(parts.values())


async def process(
    tx: Transaction, parts: list[list[int]], process_one: Callable[[Transaction], Awaitable[Outcome]]
) -> Outcome:
    """Each part by itself; the replies in the order of the recipients."""
    few = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(part: Transaction) -> Outcome:
        async with few:
            return await process_one(part)

    async with asyncio.TaskGroup() as tasks:
        running = []
        for place, numbers in enumerate(parts):
            envelope = replace(tx.envelope, recipients=tuple(tx.envelope.recipients[n] for n in numbers))
            part = replace(tx, id=new_id() if place else tx.id, envelope=envelope)
            running.append((numbers, tasks.create_task(in_turn(part))))
    own: dict[int, Reply] = {}
    for numbers, task in running:
        outcome = task.result()
        own.update(zip(numbers, outcome.replies or (outcome.reply,) * len(numbers), strict=True))
    replies = tuple(own[number] for number in sorted(own))
    return Outcome(running[0][1].result().action, weightiest(replies) or replies[0], replies=replies)
