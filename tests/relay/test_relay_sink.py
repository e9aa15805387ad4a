"""The relay against Postfix's own smtp-sink."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.mail.next_hop import NextHopError
from bridge.relay.relay import RelaySettings, SmtpRelay
from bridge.runtime.endpoints import NextHop
from bridge.testing import free_port
from tests.relay.scripted_hop import HEAD, SOON, make_tx, soon
from tests.requirements import find, need

SINK = find("smtp-sink")


@pytest.fixture(autouse=True)
def _installed() -> None:
    need("smtp-sink")


@asynccontextmanager
async def sink(*options: str, protocol: str = "smtp") -> AsyncIterator[SmtpRelay]:
    """A relay to a running smtp-sink."""
    assert SINK is not None
    port = free_port()
    user = ("-u", "nobody") if os.geteuid() == 0 else ()
    lmtp = ("-L",) if protocol == "lmtp" else ()
    process = await asyncio.create_subprocess_exec(
        SINK, *user, *lmtp, *options, f"127.0.0.1:{port}", "100", stderr=asyncio.subprocess.DEVNULL
    )
    relay = SmtpRelay(RelaySettings(NextHop.parse(f"{protocol}://127.0.0.1:{port}"), "bridge.example"))
    try:
        await asyncio.wait_for(_listening(relay), SOON)
        yield relay
    finally:
        await relay.close()
        process.terminate()
        await process.wait()


async def _listening(relay: SmtpRelay) -> None:
    while True:
        try:
            await relay.probe()
        except NextHopError:
            await asyncio.sleep(0.02)  # there is no event for a foreign process that is about to listen
        else:
            return


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
async def test_mails_in_parallel(protocol: str) -> None:
    async with sink(protocol=protocol) as relay:
        mails = [make_tx(recipients=("b@example.org", "c@example.org")) for _ in range(200)]
        done = await asyncio.gather(*(relay.deliver(tx, HEAD, soon()) for tx in mails))
        assert {d.reply.code for d in done} == {250}


async def test_a_thousand_recipients() -> None:
    async with sink() as relay:
        tx = make_tx(recipients=tuple(f"r{n}@example.org" for n in range(1000)))
        assert (await relay.deliver(tx, HEAD, soon())).reply.code == 250


@pytest.mark.parametrize("stage", ["mail", "rcpt", "data", "."])
@pytest.mark.parametrize(("option", "code"), [("-r", 450), ("-f", 500)])
async def test_refusals(stage: str, option: str, code: int) -> None:
    """4xx and 5xx at every stage, as smtp-sink words them."""
    async with sink(option, stage) as relay:
        for _ in range(2):
            with pytest.raises(NextHopError) as caught:
                await relay.deliver(make_tx(), HEAD, soon())
            assert caught.value.reply.code == code


async def test_disconnects() -> None:
    async with sink("-q", ".") as relay:
        with pytest.raises(NextHopError) as caught:
            await relay.deliver(make_tx(), HEAD, soon())
        assert caught.value.reply.code == 451
