"""Split by tenant: a mail for recipients of several tenants, whose client receives one reply for each recipient.

It becomes one transaction per tenant with the same message: each has its own scan, policy, id and log line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from bridge.filter.outcome import Outcome
from bridge.mail.reply import Reply, weightiest
from bridge.mail.transaction import Transaction, new_id

_MAX_CONCURRENT = 4  # parts of one mail; each takes a slot, and other mail needs slots as well


def recipients_by_tenant(tx: Transaction, tenant_of: Callable[[str], str | None]) -> list[list[int]]:
    """The indexes of the recipients, one list per tenant."""
    parts: dict[str | None, list[int]] = {}
    for index, address in enumerate(tx.envelope.addresses):
        parts.setdefault(tenant_of(address), []).append(index)
    return list(parts.values())


async def process_split(
    tx: Transaction, parts: list[list[int]], process_part: Callable[[Transaction], Awaitable[Outcome]]
) -> Outcome:
    """Process each part separately; the replies are in the order of the recipients."""
    limit = asyncio.Semaphore(_MAX_CONCURRENT)

    async def limited(part: Transaction) -> Outcome:
        async with limit:
            return await process_part(part)

    async with asyncio.TaskGroup() as tasks:
        running = [
            (indexes, tasks.create_task(limited(_part(tx, indexes, is_first=number == 0))))
            for number, indexes in enumerate(parts)
        ]
    by_recipient: dict[int, Reply] = {}
    for indexes, task in running:
        outcome = task.result()
        by_recipient.update(zip(indexes, outcome.replies or (outcome.reply,) * len(indexes), strict=True))
    replies = tuple(by_recipient[index] for index in sorted(by_recipient))
    return Outcome(running[0][1].result().action, weightiest(replies) or replies[0], replies=replies)


def _part(tx: Transaction, indexes: list[int], *, is_first: bool) -> Transaction:
    """The same mail for these recipients only; the first part keeps the id."""
    envelope = replace(tx.envelope, recipients=tuple(tx.envelope.recipients[index] for index in indexes))
    return replace(tx, id=tx.id if is_first else new_id(), envelope=envelope)
