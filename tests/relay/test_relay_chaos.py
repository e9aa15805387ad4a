"""Many mails to a next hop that fails in every way, from clients that disconnect: nothing is lost, no slot leaks."""

from __future__ import annotations

import asyncio
import random

import pytest

from bridge.mail.next_hop import NextHopError
from bridge.relay.relay import SmtpRelay
from tests.relay.scripted_hop import DROP, EXTENSIONS, GOOD, ScriptedHop, make_tx, soon

MAILS, SLOTS = 400, 5
BAD = [DROP, "421 4.3.2 Bye", "450 4.2.0 Later", "550 5.7.1 No", "nonsense", "250 Ok", "354 Go", "250 Ok\r\n250 Ok"]


class ChaoticHop(ScriptedHop):
    """Gives a wrong answer at random, and records the content for which it answered 250."""

    def __init__(self, chance: random.Random, extensions: tuple[str, ...]) -> None:
        super().__init__(extensions=extensions)
        self.chance = chance

    async def _answer(self, verb: str) -> str:
        if self.chance.random() < 0.3:
            await asyncio.sleep(0.002 * self.chance.random())
        if verb in GOOD and verb != "QUIT" and self.chance.random() < 0.03:
            return self.chance.choice(BAD)
        return await super()._answer(verb)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.parametrize("pipelining", [True, False])
async def test_nothing_is_lost_and_no_connection_leaks(seed: int, pipelining: bool) -> None:
    """A mail reported as delivered has arrived complete, and at the end every slot is free again."""
    chance = random.Random(seed)
    extensions = (*(e for e in EXTENSIONS if pipelining or e != "PIPELINING"), "XFORWARD ADDR HELO")
    delivered: set[bytes] = set()
    tried: set[bytes] = set()

    async def deliver(relay: SmtpRelay, number: int) -> None:
        content = b"Mail: %d\r\n\r\n.%s\r\n" % (number, b"x" * chance.choice([10, 10, 300_000]))
        tried.add(content)
        tx = make_tx(content)
        try:
            await relay.deliver(tx, b"", soon())
        except NextHopError as exc:
            assert 400 <= exc.reply.code < 600
            assert exc.reply.code not in (421, 521)
        else:
            delivered.add(content)
        finally:
            tx.message.close()  # as the caller does, whatever the outcome

    async def client(relay: SmtpRelay, number: int) -> None:
        task = asyncio.create_task(deliver(relay, number))
        if chance.random() < 0.2:
            await asyncio.sleep(0.01 * chance.random())
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result()

    async with ChaoticHop(chance, extensions) as hop:
        relay = SmtpRelay(hop.settings(max_connections=SLOTS, timeout_s=5.0))
        await asyncio.gather(*(client(relay, number) for number in range(MAILS)))
        await relay.close()
        arrived = set(hop.contents)
        assert delivered <= arrived <= tried
        assert len(delivered) > MAILS // 4
        assert relay.pool._slots == SLOTS
        assert not relay.pool._queue
        assert not relay._finishing
