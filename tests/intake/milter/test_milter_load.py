"""Many mails at once: the milter intake must hold them cheaply and keep them alive."""

from __future__ import annotations

import asyncio
import resource

import uvloop

from tests.intake.milter.milter_kit import Mta, letters
from tests.intake.milter.mta_kit import BridgeProcess, free_port

MAILS = 2000
BODY = 50 * 1024
SCAN_S = 2.0


def test_2000_mails_in_flight_are_kept_alive_within_their_own_size():
    """A scanner that takes 2 s: every mail hears PROGRESS and its decision; memory stays near the bytes in flight."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    port = free_port()
    peak = 0

    async def one_mail(few: asyncio.Semaphore) -> str:
        mta = Mta(*await asyncio.open_connection("127.0.0.1", port))
        try:
            await mta.greet()
            await mta.mail()
            async with few:  # so that the client's own buffers stay small
                mta.content(body=b"x" * BODY)
                await mta.writer.drain()
            heard = []
            while not heard or heard[-1][0] not in "acdrty":
                async with asyncio.timeout(60):
                    heard.append(await mta.read())
            return letters(heard)
        finally:
            mta.close()

    async def scenario(bridge: BridgeProcess) -> list[str]:
        nonlocal peak
        few = asyncio.Semaphore(50)
        mails = [asyncio.ensure_future(one_mail(few)) for _ in range(MAILS)]
        while not all(mail.done() for mail in mails):
            peak = max(peak, bridge.memory())
            await asyncio.wait(mails, timeout=0.1, return_when=asyncio.ALL_COMPLETED)
        return [mail.result() for mail in mails]

    with BridgeProcess(port, scan_s=SCAN_S, progress_s=0.5) as bridge:
        before = bridge.memory()
        heard = uvloop.run(scenario(bridge))
    assert all(one.startswith("p") and one.endswith("hhc") for one in heard)
    in_flight = MAILS * BODY
    print(f"{(peak - before) / MAILS / 1024:.1f} KiB per mail of {BODY / 1024:.0f} KiB")
    assert peak - before < 1.5 * in_flight + MAILS * 16 * 1024
