"""The analysis queue: `mainWorkerCount` workers process jobs in order of arrival.

If a worker is free, a job whose analysis takes microseconds runs immediately in the caller:
handing it to a task and back would cost more than the analysis. If the caller goes away, its job is
cancelled.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from bridge.api.scanning import AnalysisResult, QueueStatus
from bridge.service.analysis.job import AnalysisJob
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.responses import Refused, storage_unavailable


class AnalysisBackend(Protocol):
    """Where analyses run: the queue in this process, other instances (`core_nodes`), or workers (`cluster`)."""

    @property
    def waiting(self) -> int: ...

    def refusal(self) -> Refused | None:
        """Why no mail can be analysed now, if that is already known."""

    def limits(self) -> tuple[int, int] | None:
        """How many mails may be in processing, and from how many on they are delayed; None: as configured."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def try_now(self, job: AnalysisJob, /) -> AnalysisResult | None: ...

    def submit(self, job: AnalysisJob, /) -> asyncio.Future[AnalysisResult]: ...

    async def status(self) -> QueueStatus: ...


class AnalysisQueue:
    def __init__(self, pipeline: Pipeline, workers: int) -> None:
        self._pipeline = pipeline
        self._count = workers
        self._jobs: asyncio.Queue[tuple[AnalysisJob, asyncio.Future[AnalysisResult]]] = asyncio.Queue()
        self._workers: list[asyncio.Task[None]] = []
        self.busy = 0

    @property
    def ready(self) -> bool:
        return self._pipeline.ready

    def refusal(self) -> Refused | None:
        return None if self.ready else storage_unavailable()

    def limits(self) -> None:
        return None

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    async def start(self) -> None:
        await self._pipeline.start()
        self._workers = [asyncio.create_task(self._work(), name=f"analysis-{i}") for i in range(self._count)]

    async def stop(self) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        self._workers = []
        await self._pipeline.stop()

    async def status(self) -> QueueStatus:
        return QueueStatus.GREEN if self.ready else QueueStatus.RED  # load is reported by admission

    def try_now(self, job: AnalysisJob) -> AnalysisResult | None:
        """The result if a worker is free and the analysis is short, else None."""
        if self.busy >= self._count or self.waiting:
            return None
        return self._pipeline.analyze_now(job)

    def submit(self, job: AnalysisJob) -> asyncio.Future[AnalysisResult]:
        """Queue a job. Cancelling the future cancels the job, whether it waits or runs."""
        future: asyncio.Future[AnalysisResult] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((job, future))  # bounded by admission
        return future

    async def _work(self) -> None:
        while True:
            job, future = await self._jobs.get()
            if future.cancelled():
                continue
            self.busy += 1
            try:
                await self._run(job, future)
            finally:
                self.busy -= 1

    async def _run(self, job: AnalysisJob, future: asyncio.Future[AnalysisResult]) -> None:
        """Ends when the analysis has ended, even if this worker is stopped. A worker that went on would never exit."""
        task = asyncio.create_task(self._pipeline.analyze(job))
        future.add_done_callback(lambda f: task.cancel() if f.cancelled() else None)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            future.cancel()  # and with it the analysis
            await asyncio.wait({task})
            raise
        if future.done():
            return
        if task.cancelled():
            future.cancel()
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())
