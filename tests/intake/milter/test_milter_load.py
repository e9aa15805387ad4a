"""Many mails in flight: the milter intake must hold them cheaply and keep them alive."""

from __future__ import annotations

import asyncio
import resource

import pytest

from tests.intake.milter.milter_kit import Mta, letters
from tests.intake.milter.mta_kit import BridgeProcess, free_port

MAILS = 2000
BODY = 50 * 1024
SCAN_S = 2.0


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})], ids=["uvloop"])
async def test_2000_mails_in_flight_are_kept_alive_within_their_own_size():
    """With a scanner that takes 2 s, every mail gets PROGRESS and its decision; memory stays near its size."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    port = free_port()
    peak = 0

    async def one_mail(few: asyncio.Semaphore) -> str:
        mta = Mta(*await asyncio.open_connection("127.0.0.1", port))
        try:
            await mta.greet()
            await mta.mail()
            async with few:  # keeps the client's own buffers small
                mta.content(body=b"x" * BODY)
                await mta.writer.drain()
            responses = []
            while not responses or responses[-1][0] not in "acdrty":
                async with asyncio.timeout(60):
                    responses.append(await mta.read())
            return letters(responses)
        finally:
            mta.close()

    with BridgeProcess(port, scan_s=SCAN_S, progress_s=0.5) as bridge:
        before = bridge.memory()
        few = asyncio.Semaphore(50)
        mails = [asyncio.ensure_future(one_mail(few)) for _ in range(MAILS)]
        while not all(mail.done() for mail in mails):
            peak = max(peak, bridge.memory())
            await asyncio.wait(mails, timeout=0.1, return_when=asyncio.ALL_COMPLETED)
        answers = [mail.result() for mail in mails]
    assert all(answer.startswith("p") and answer.endswith("hhc") for answer in answers)
    in_flight = MAILS * BODY
    print(f"{(peak - before) / MAILS / 1024:.1f} KiB per mail of {BODY / 1024:.0f} KiB")
    assert peak - before < 1.5 * in_flight + MAILS * 16 * 1024
