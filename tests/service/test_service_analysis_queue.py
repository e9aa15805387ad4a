"""The queue of analyses: its stop ends, whatever its clients do at the same time."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bridge.api.scanning import AnalysisRequest, AnalysisResult, BorderMtaData
from bridge.mail.message import Spool
from bridge.service.analysis.job import AnalysisJob, StoredMail
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.queue import AnalysisQueue

LIMIT_S = 60.0  # ends a test that would hang


class Unhurried:
    """Analyses that go on until they are cancelled, and then take as long as `may_end` says."""

    def __init__(self) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        self.ended = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def analyze(self, _job: AnalysisJob) -> AnalysisResult:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
            self.ended += 1
        raise AssertionError


@pytest.mark.parametrize("client_leaves", [True, False])
async def test_a_client_that_left_during_the_stop_kept_the_service_running(client_leaves: bool) -> None:
    """Its worker was told to stop while it waited for the cancelled analysis, forgot that, and waited for the next."""
    pipeline = Unhurried()
    queue = AnalysisQueue(cast("Pipeline", pipeline), 1)
    await queue.start()
    mail = StoredMail(Spool(1000))
    answer = queue.submit(AnalysisJob.new(AnalysisRequest(BorderMtaData("", ("a@example.org",))), mail))
    async with asyncio.timeout(LIMIT_S):
        await pipeline.began.wait()
        if client_leaves:
            answer.cancel()
            await asyncio.sleep(0)  # the analysis is told
        stopping = asyncio.create_task(queue.stop())
        await asyncio.sleep(0)  # the worker is told
        await asyncio.sleep(0)
        assert not stopping.done(), "the analysis is still running"
        pipeline.may_end.set()
        await stopping
    assert answer.cancelled() and pipeline.ended == 1
    mail.close()
