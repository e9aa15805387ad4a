"""A worker's side of the queue: takes as many jobs as it has slots, analyses them, and answers.

Every slot asks NATS for one job; NATS gives each job to the slot that has waited longest. While a job is in
work, the worker says so every few seconds. If it stops saying so, NATS gives the job to another worker. After each
analysis, the API node confirms that it has the answer; only then is the job acknowledged, and gone.

A mail may be what kills workers. So a job that was begun `ATTEMPTS` times is not begun again: its answer is
`incomplete`. A job that was begun before, or has waited, is begun only if its API node says that it still wants it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.errors import NotFoundError

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisResult
from bridge.mail.message import Spool
from bridge.mail.spool import SpoolDisk
from bridge.runtime.lasting import lasting
from bridge.service.analysis.decision import unfinished
from bridge.service.analysis.job import AnalysisJob, StoredMail
from bridge.service.analysis.pipeline import Pipeline
from bridge.service.cluster import jetstream
from bridge.service.cluster.link import NATS_ERRORS, RETRY_S, Link, Session
from bridge.service.cluster.members import SIGN_INTERVAL_S
from bridge.service.cluster.pull import HAND_BACK, Pulls
from bridge.service.cluster.queue import NOT_WANTED
from bridge.service.cluster.wire import JobHead, Malformed, Names, WorkerSign, head_length, read_job
from bridge.service.metrics import ServiceMetrics
from bridge.service.settings import ServiceConfig

ATTEMPTS = 3  # of one job; the analysis may be what kills the workers
OLD_S = 1.0  # after this wait, the client may have gone
CONFIRM_S = 1.0  # for the API node's reply; it may be on its way to another server
CONFIRMATIONS = 8
START_S = 3.0
DISK_S = 20.0  # for a slow disk, before a block is refused

ACKNOWLEDGE, IN_PROGRESS = b"+ACK", b"+WPI"
HAND_BACK_LATER = b'-NAK {"delay": 1000000000}'  # nanoseconds

log = logging.getLogger("bridge.service")


class NatsWorker:
    def __init__(
        self, config: ServiceConfig, pipeline: Pipeline, metrics: ServiceMetrics, database: Callable[[], str]
    ) -> None:
        """Raises ConfigError. `database` gives the identity of our database, as soon as it is open."""
        core = config.abby.serviceProviders.core
        assert core.nats is not None
        self._settings = core.nats
        self._timeout_s = core.longRequestTimeout / 1000
        self._guard = config.guard
        self._pipeline = pipeline
        self._metrics = metrics
        self._database = database
        self._id = secrets.token_hex(12)
        self._names = Names.of(core.nats.name, "")
        self._spool = Spool(2 * config.guard.mainWorkerCount * MAX_MESSAGE_BYTES, disk=SpoolDisk())
        self._link = Link(core.nats, self._begin, "scanbridge worker")
        self._slots: list[asyncio.Task[None]] = []
        self._signs: asyncio.Task[None] | None = None
        self._analyses: dict[str, asyncio.Task[AnalysisResult]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._pulls: Pulls | None = None  # of the newest session
        self._preparing: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self.busy = 0

    async def start(self) -> None:
        await self._pipeline.start()
        self._names = Names.of(self._settings.name, self._database())
        await self._link.start()
        if await self._link.wait(START_S) is None:
            log.error("worker: no connection to NATS yet: %s", self._link.problem)
        numbers = range(self._guard.mainWorkerCount)
        self._slots = [asyncio.create_task(lasting(self._slot, f"slot {i}"), name=f"slot-{i}") for i in numbers]
        self._signs = asyncio.create_task(lasting(self._give_signs, "heartbeats"), name="worker-signs")

    async def leave(self, drain_s: float) -> None:
        """Take no more jobs; finish those in work, and hand back what takes longer than `drain_s`."""
        self._leaving.set()
        await self._give_sign()
        if self._pulls is not None:
            await self._pulls.withdraw()
        if self._slots:
            await asyncio.wait(self._slots, timeout=drain_s)
        if self._answers:
            await asyncio.wait(self._answers, timeout=CONFIRM_S)

    async def stop(self) -> None:
        tasks = [*self._slots, *self._answers, *(task for task in (self._signs, self._preparing) if task is not None)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._link.stop()
        await self._pipeline.stop()

    @property
    def connected(self) -> bool:
        return self._link.session is not None

    @property
    def slots(self) -> int:
        return self._guard.mainWorkerCount

    # Signs of life.

    async def _begin(self, session: Session) -> None:
        await session.client.subscribe(self._names.roll_call, cb=self._on_roll_call)
        await session.client.subscribe(self._names.dropped, cb=self._on_dropped)
        pulls = Pulls(session, self._names)
        await pulls.start()
        if self._pulls is not None:
            self._pulls.end()  # NATS forgot its requests when its session ended
        self._pulls = pulls
        self._prepare(session)

    async def _on_roll_call(self, message: Msg) -> None:
        if not self._leaving.is_set() and self._pipeline.ready:
            with suppress(*NATS_ERRORS):
                await message.respond(self._sign().to_bytes())

    async def _on_dropped(self, message: Msg) -> None:
        if (task := self._analyses.get(message.data.decode("ascii", "replace"))) is not None:
            task.cancel()

    def _sign(self) -> WorkerSign:
        guard = self._guard
        limit, threshold = guard.maxGuardRequestsInProcessing, guard.guardRequestThrottleThreshold
        return WorkerSign(self._id, self.slots, self.busy, limit, threshold, self._leaving.is_set())

    async def _give_sign(self) -> None:
        session = self._link.session
        if session is not None and self._pipeline.ready:
            await session.publish(self._names.workers, self._sign().to_bytes())

    async def _give_signs(self) -> None:
        while True:
            await self._give_sign()
            await asyncio.sleep(SIGN_INTERVAL_S)

    # One slot.

    async def _slot(self) -> None:
        while True:
            try:
                message = await self._next()
                if message is not None:
                    await self._work_on(message)
                elif self._leaving.is_set():
                    return
            except Exception as exc:  # the slot must go on: other nodes count on it
                log.exception("slot: failed unexpectedly: %s", type(exc).__name__)
                await self._pause()

    async def _work_on(self, message: Msg) -> None:
        self.busy += 1
        try:
            await self._work(message)
        finally:
            self.busy -= 1

    async def _next(self) -> Msg | None:
        """A job, or None after a while."""
        pulls = self._pulls
        if self._leaving.is_set() or pulls is None or self._link.session is None or not self._pipeline.ready:
            await self._pause()
            return None
        try:
            return await pulls.next()
        except NATS_ERRORS as exc:
            log.debug("worker: no job received: %s", exc)
        if self._link.session is not None:
            self._prepare(self._link.session)
        await self._pause()
        return None

    def _prepare(self, session: Session) -> None:
        """The stream may not exist yet. One attempt at a time."""
        if self._preparing is None or self._preparing.done():
            preparing = jetstream.prepare(session, self._settings, self._names, self._timeout_s)
            self._preparing = asyncio.create_task(preparing)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_S):
                await self._leaving.wait()

    async def _work(self, message: Msg) -> None:
        """One job, up to its answer."""
        try:
            head, rest = read_job(message.data)
        except Malformed as exc:
            log.error("a message in the queue is not a job: %s", exc)
            await self._say(message, ACKNOWLEDGE)
            return
        saying = asyncio.create_task(self._say_in_progress(message))
        result = None
        try:
            if await self._is_wanted(head, message):
                result = await self._result(head, rest, message)
            if result is None:
                await self._drop(head, message)
        except asyncio.CancelledError:  # the time to leave is over
            await self._hand_back(message, HAND_BACK)
            raise
        except Exception as exc:  # its content could not be read or stored; another worker may have more luck
            log.warning("ggrid=%s job returned to the queue: %s", head.ggrid, type(exc).__name__)
            await self._hand_back(message, HAND_BACK_LATER)
        finally:
            if result is None:
                saying.cancel()
        if result is not None:
            self._answer(head, message, result, saying)

    async def _hand_back(self, message: Msg, word: bytes) -> None:
        self._metrics.job("returned")
        await self._say(message, word)

    async def _is_wanted(self, head: JobHead, message: Msg) -> bool:
        waited = time.time() - message.metadata.timestamp.timestamp()
        if _attempt(message) == 1 and waited < OLD_S:
            return True
        for _ in range(CONFIRMATIONS):
            try:
                return await self._tell(head, b"") != NOT_WANTED
            except NATS_ERRORS:
                await asyncio.sleep(RETRY_S)  # it may be on its way to another server
        return False

    async def _tell(self, head: JobHead, data: bytes) -> bytes:
        """The API node's reply. Raises nats errors."""
        session = self._link.session
        if session is None:
            raise NoRespondersError
        answer = await session.client.request(self._names.answers(head.node, head.ggrid), data, timeout=CONFIRM_S)
        return answer.data

    async def _drop(self, head: JobHead, message: Msg) -> None:
        log.info("ggrid=%s dropped: no one is waiting for its answer", head.ggrid)
        self._metrics.job("dropped")
        await self._say(message, ACKNOWLEDGE)
        session = self._link.session
        if head.parameters is None and session is not None:
            with suppress(*NATS_ERRORS):
                await jetstream.remove(session, self._names, head.ggrid)

    async def _result(self, head: JobHead, rest: memoryview, message: Msg) -> AnalysisResult | None:
        """None if no one is waiting for it."""
        mail = StoredMail(self._spool)
        try:
            if _attempt(message) > ATTEMPTS:
                log.error("ggrid=%s abandoned: %d workers failed to finish it", head.ggrid, ATTEMPTS)
                return unfinished(head, "failed:worker")
            if head.parameters is not None:
                mail.write(bytes(rest))
            else:
                head = await self._fetch(head, mail)
            if not await mail.is_kept():
                raise OSError(errno.EIO, "the mail could not be written")
            job = AnalysisJob(head.ggrid, head.created, head.request, mail)
            return self._pipeline.analyze_now(job) or await self._analyze(job)
        except NotFoundError:
            log.warning("ggrid=%s dropped: its content is no longer in the queue", head.ggrid)
            return None
        finally:
            mail.close()

    async def _fetch(self, head: JobHead, mail: StoredMail) -> JobHead:
        """Read a large mail, and return its complete head. Raises nats errors, Malformed and ValueError."""
        session = self._link.session
        if session is None:
            raise NoRespondersError
        beginning, found = b"", None
        async for chunk in jetstream.get(session, self._names, head.ggrid):
            if mail.is_behind:
                await self._spool.wait_for_disk(asyncio.get_running_loop().time() + DISK_S)
            if found is not None:
                mail.write(chunk)
                continue
            beginning += chunk
            if len(beginning) >= head_length(beginning):
                found, rest = read_job(beginning)
                mail.write(bytes(rest))
        if found is None or mail.size != head.size:
            raise Malformed("the object does not belong to the job")
        return found

    async def _analyze(self, job: AnalysisJob) -> AnalysisResult | None:
        task = self._analyses[job.ggrid] = asyncio.create_task(self._pipeline.analyze(job))
        try:
            await asyncio.wait({task})
        finally:
            self._analyses.pop(job.ggrid, None)
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if task.cancelled():
            return None
        if (error := task.exception()) is not None:
            log.error("ggrid=%s analysis failed", job.ggrid, exc_info=error)
            return unfinished(job, "failed:analysis")
        return task.result()

    def _answer(self, head: JobHead, message: Msg, result: AnalysisResult, saying: asyncio.Task[None]) -> None:
        """The slot is free from here on, even if the API node does not answer."""

        async def answer() -> None:
            try:
                await self._deliver(head, message, result)
            finally:
                saying.cancel()

        task = asyncio.create_task(answer())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _deliver(self, head: JobHead, message: Msg, result: AnalysisResult) -> None:
        data = json.dumps(result.to_dict()).encode()
        for _ in range(CONFIRMATIONS):
            try:
                await self._tell(head, data)
            except NATS_ERRORS:
                await asyncio.sleep(RETRY_S)
                continue
            self._metrics.job("answered")
            await self._say(message, ACKNOWLEDGE)
            return
        await self._drop(head, message)

    async def _say_in_progress(self, message: Msg) -> None:
        while True:
            await asyncio.sleep(jetstream.ACK_WAIT_S / 4)
            await self._say(message, IN_PROGRESS)

    async def _say(self, message: Msg, word: bytes) -> None:
        """In the present session, which need not be the one that the job came in."""
        session = self._link.session
        if session is not None and message.reply:
            await session.publish(message.reply, word)


def _attempt(message: Msg) -> int:
    return message.metadata.num_delivered or 1
