"""An API node's side of the queue: puts each mail in, waits for its answer, and cleans up.

The mail stays here until its answer has arrived, so nothing that happens to NATS or a worker can lose it: after a
new connection, every waiting job is sent again under its old id, and the stream ignores those that it still has.
The first answer to a job counts; a worker asks here before it works on a job that has waited or was begun by another.

    client gone, or too late   the job and its content are deleted, and the worker that has it stops
    no worker                  503 at once; mail that is already waiting gets 503 after `ALONE_S`
    NATS unreachable           503, once a short pause (a new leader, a restart) is over
    queue full                 503
    no room for a large mail   it waits for its turn, up to `ROOM_S`; then 503 `no_room`, which is about this mail only
    mail larger than max_size  413
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.js.errors import APIError, BadRequestError, NotFoundError

from bridge.api.failure import NO_ROOM
from bridge.api.scanning import AnalysisResult, QueueStatus
from bridge.runtime.lasting import lasting
from bridge.service.analysis.job import AnalysisJob
from bridge.service.cluster import jetstream
from bridge.service.cluster.link import NATS_ERRORS, REQUEST_S, Link, Session
from bridge.service.cluster.members import SIGN_INTERVAL_S, Members
from bridge.service.cluster.space import Space
from bridge.service.cluster.wire import JobHead, Malformed, Names, NodeSign, WorkerSign
from bridge.service.responses import Refused
from bridge.service.scanning.admission import RETRY_AFTER_S
from bridge.service.settings import ServiceConfig

_random = random.Random()  # noqa: S311 - spreads retries, protects nothing

INLINE_BYTES = 512 * 1024  # of a job; above, and above the server's max_payload, it goes by reference
HEADROOM = 1024  # of a message, for the library's own header fields
START_S = 3.0  # for the first connection; without it the service starts and reports RED
PAUSE_S = 5.0  # how long mail waits for NATS to return
PLACE_S = 15.0  # for which the queue may fail to accept a mail: longer than the election of a leader takes
ROOM_S = 60.0  # for which a large mail waits until there is room for it; an analysis rarely takes longer
REFUSED_S, MAX_REFUSED_S = 0.5, 4.0  # the first and the longest pause after NATS had no room, though it reported some
ALONE_S = 3.0  # a worker that is restarted is back within this time
ANSWER_S = 0.5  # for the workers' roll call

LOOK_S = 8.0  # between two checks whether a job is still in the queue
CLEANING_ATTEMPTS = 10

WANTED, NOT_WANTED = b"+", b"-"

log = logging.getLogger("bridge.service")


@dataclass(slots=True, eq=False)
class _Waiting:
    job: AnalysisJob
    head: bytes
    answer: asyncio.Future[AnalysisResult]
    sequence: int | None = None  # in the stream
    by_reference: bool = False
    reserved: int = 0  # bytes of the object store
    times: int = 0  # that NATS has lost it
    begun: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        return len(self.head) + self.job.mail.size

    def fits_into(self, session: Session) -> bool:
        """Whether one message can have all of it."""
        return self.size <= min(INLINE_BYTES, session.client.max_payload - HEADROOM)

    def content(self) -> Iterator[bytes]:
        yield self.head
        yield from self.job.mail.chunks()


class NatsQueue:
    """An `AnalysisBackend` whose workers are elsewhere."""

    def __init__(self, config: ServiceConfig, database: Callable[[], str]) -> None:
        """Raises ConfigError. `database` gives the identity of our database, as soon as it is open."""
        core = config.abby.serviceProviders.core
        assert core.nats is not None
        self._settings = core.nats
        self._timeout_s = core.longRequestTimeout / 1000
        self._place_s = PLACE_S
        self._database = database
        self._id = secrets.token_hex(12)
        self._names = Names.of(core.nats.name, "")
        self._link = Link(core.nats, self._begin, "scanbridge service")
        self._waiting: dict[str, _Waiting] = {}
        self._space = Space(core.nats.max_size)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self.members = Members(self._id)

    async def start(self) -> None:
        self._names = Names.of(self._settings.name, self._database())
        await self._link.start()
        if await self._link.wait(START_S) is None:
            log.error("queue: no connection to NATS yet: %s", self._link.problem)
        self._watch = asyncio.create_task(lasting(self._look_after, "queue"), name="queue-members")

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=REQUEST_S)
        await self._link.stop()

    # What the service asks.

    @property
    def waiting(self) -> int:
        """Mails of all API nodes that no worker has begun."""
        return max(0, len(self._waiting) + self.members.elsewhere - self.members.busy)

    @property
    def connected(self) -> bool:
        return self._link.session is not None

    def limits(self) -> tuple[int, int]:
        return self.members.limits()

    def refusal(self) -> Refused | None:
        if self._link.session is None:
            return None if self._lost_within(PAUSE_S) else _unavailable()
        return None if self.members.workers else _no_worker()

    def try_now(self, _job: AnalysisJob) -> AnalysisResult | None:
        return None

    def submit(self, job: AnalysisJob) -> asyncio.Future[AnalysisResult]:
        return asyncio.create_task(self._run(job))

    async def status(self) -> QueueStatus:
        """RED if no worker is connected now; load is reported by admission, whose limits are the workers'."""
        session = self._link.session
        if session is None or not await self._call_roll(session):
            return QueueStatus.RED
        return QueueStatus.GREEN

    def _lost_within(self, seconds: float) -> bool:
        return time.monotonic() - self._link.lost_at < seconds

    # One mail.

    async def _run(self, job: AnalysisJob) -> AnalysisResult:
        head = JobHead(job.ggrid, self._id, job.created, job.mail.size, job.request.to_json()).to_bytes()
        waiting = _Waiting(job, head, asyncio.get_running_loop().create_future())
        self._waiting[job.ggrid] = waiting
        placing = asyncio.create_task(self._keep_placed(waiting))
        try:
            either: set[asyncio.Future[Any]] = {placing, waiting.answer}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if waiting.answer.done():
                return waiting.answer.result()
            placing.result()  # raises
            raise AssertionError("a job stays in the queue until it is answered")
        finally:
            placing.cancel()
            del self._waiting[job.ggrid]
            answered = waiting.answer.done() and not waiting.answer.cancelled() and not waiting.answer.exception()
            try:
                with suppress(asyncio.CancelledError, Refused, *NATS_ERRORS):
                    await placing  # it may still be reading the mail
            finally:
                self._later(self._clean_up(waiting, answered=answered))

    async def _keep_placed(self, waiting: _Waiting) -> None:
        """Put the job into the queue, and again in every new session, or if NATS has lost it. Raises Refused."""
        while True:
            session = await self._place(waiting)
            while not await _ends_within(session, LOOK_S):
                if await self._is_lost(session, waiting):
                    log.warning("ggrid=%s is no longer in the queue; sent again", waiting.job.ggrid)
                    waiting.times += 1
                    break

    async def _is_lost(self, session: Session, waiting: _Waiting) -> bool:
        """Servers that keep it in memory may have restarted, or a worker could not give us its answer."""
        assert waiting.sequence is not None
        try:
            found = await session.stream.get_msg(self._names.stream, waiting.sequence)
        except NotFoundError:
            return True
        except NATS_ERRORS:
            return False
        return waiting.job.ggrid.encode() not in (found.data or b"")[:HEADROOM]  # a new stream counts from 1 again

    async def _place(self, waiting: _Waiting) -> Session:
        now = time.monotonic()
        last, room_by = now + self._place_s, now + min(ROOM_S, self._timeout_s / 2)
        pause_s = REFUSED_S
        while True:
            session = self._link.session or await self._link.wait(PAUSE_S)
            if session is None:
                raise _unavailable()
            if not waiting.fits_into(session) and await self._find_room(session, waiting, room_by):
                last = time.monotonic() + self._place_s
            try:
                async with asyncio.timeout(REQUEST_S * 2):
                    await self._put(session, waiting)
                return session
            except _NoRoom as exc:  # another API node was faster, or NATS has less room than the stream may have
                if time.monotonic() + pause_s > room_by:
                    raise _no_room() from exc
                await self._make_room(session, waiting)
                await asyncio.sleep(_random.uniform(0.5, 1) * pause_s)  # as in `_find_room`
                pause_s = min(2 * pause_s, MAX_REFUSED_S)
                last = time.monotonic() + self._place_s
                continue
            except APIError as exc:
                if exc.err_code in _FULL:
                    raise Refused(503, "saturated", "the queue is full", retry_after_s=RETRY_AFTER_S) from exc
                problem = f"{exc.err_code} {exc.description}"
            except NATS_ERRORS as exc:
                problem = type(exc).__name__
            log.warning("ggrid=%s not queued yet: %s", waiting.job.ggrid, problem)
            if time.monotonic() > last:
                raise _unavailable()
            await self._prepare(session)
            await asyncio.sleep(0.1)

    async def _find_room(self, session: Session, waiting: _Waiting, room_by: float) -> bool:
        """Wait for our turn among the mail of this node, and then for that of other nodes. Raises Refused.

        Returns whether it may have waited.
        """
        has_waited = not waiting.reserved
        if not waiting.reserved:
            needed = jetstream.stored_size(waiting.size)
            if not self._space.can_hold(needed):
                raise _too_large()
            if not await self._space.take(needed, room_by - time.monotonic(), max(1, self.limits()[0] // 4)):
                raise _no_room()
            waiting.reserved = needed
        while not await self._has_room(session, waiting):
            if time.monotonic() > room_by:
                raise _no_room()
            await asyncio.sleep(_random.uniform(0.1, 0.5))  # two nodes must not try at the same moments
            has_waited = True
        return has_waited

    async def _has_room(self, session: Session, waiting: _Waiting) -> bool:
        """Whether the store has room, as far as NATS answers. If not, removes what an earlier attempt left there."""
        try:
            if await jetstream.free_bytes(session, self._names) >= waiting.reserved:
                return True
        except NATS_ERRORS:
            return True  # the attempt to put it in will say why
        await self._make_room(session, waiting)
        return False

    async def _make_room(self, session: Session, waiting: _Waiting) -> None:
        """Remove whatever an earlier attempt has left in the store, as far as NATS answers."""
        if waiting.by_reference:
            with suppress(*NATS_ERRORS):
                await jetstream.remove(session, self._names, waiting.job.ggrid)
                waiting.by_reference = False

    async def _prepare(self, session: Session) -> None:
        await jetstream.prepare(session, self._settings, self._names, self._timeout_s)

    async def _put(self, session: Session, waiting: _Waiting) -> None:
        job = waiting.job
        if waiting.fits_into(session):
            body = b"".join(waiting.content())
        else:
            waiting.by_reference = True
            try:
                await jetstream.put(session, self._names, job.ggrid, waiting.content())
            except APIError as exc:
                if exc.err_code in _FULL:
                    raise _NoRoom from exc
                raise
            body = JobHead(job.ggrid, self._id, job.created, job.mail.size, None).to_bytes()
        headers = {"Nats-Msg-Id": f"{job.ggrid}.{waiting.times}"}
        placed = await session.stream.publish(self._names.jobs, body, stream=self._names.stream, headers=headers)
        waiting.sequence = placed.seq

    async def _clean_up(self, waiting: _Waiting, *, answered: bool) -> None:
        """Of an answered job, only the content is left: the worker acknowledges the job."""
        if not answered:
            log.info("ggrid=%s dropped: no one is waiting for its answer", waiting.job.ggrid)
        try:
            for _ in range(CLEANING_ATTEMPTS):  # after these, it disappears when it expires
                session = await self._link.wait(PAUSE_S)
                try:
                    if session is not None:
                        await self._remove(session, waiting, answered=answered)
                        return
                except NATS_ERRORS:
                    await asyncio.sleep(1)
        finally:
            self._space.give_back(waiting.reserved)

    async def _remove(self, session: Session, waiting: _Waiting, *, answered: bool) -> None:
        if not answered:
            await session.publish(self._names.dropped, waiting.job.ggrid.encode())
            if waiting.sequence is not None:
                with suppress(BadRequestError, NotFoundError):  # it is already gone
                    await session.stream.delete_msg(self._names.stream, waiting.sequence)
        if waiting.by_reference:
            await jetstream.remove(session, self._names, waiting.job.ggrid)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What workers and other API nodes say.

    async def _begin(self, session: Session) -> None:
        client, names = session.client, self._names
        await client.subscribe(names.answers(self._id), cb=self._on_answer)
        await client.subscribe(names.workers, cb=self._on_worker)
        await client.subscribe(names.nodes, cb=self._on_node)
        self.members.renew()
        await self._call_roll(session)
        self._later(self._prepare(session))  # it may take long: a new leader is elected

    async def _on_answer(self, message: Msg) -> None:
        """A worker's answer, or a message without content, which asks whether anyone is still waiting for it."""
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is not None and message.data:
            try:
                result = AnalysisResult.from_json(message.data)
            except (ValueError, RecursionError):
                log.error("ggrid=%s malformed answer from a worker", waiting.job.ggrid)
                return
            if not waiting.answer.done() and result.ggrid == waiting.job.ggrid:
                waiting.answer.set_result(result)
        if message.reply:
            with suppress(*NATS_ERRORS):
                await message.respond(NOT_WANTED if waiting is None else WANTED)

    async def _on_worker(self, message: Msg) -> None:
        with suppress(Malformed):
            self.members.worker(WorkerSign.from_bytes(message.data))

    async def _on_node(self, message: Msg) -> None:
        with suppress(Malformed):
            self.members.node(NodeSign.from_bytes(message.data))

    async def _call_roll(self, session: Session) -> bool:
        """Whether a worker is connected: NATS itself says so at once if there is none."""
        try:
            message = await session.client.request(self._names.roll_call, timeout=ANSWER_S)
            self.members.worker(WorkerSign.from_bytes(message.data))
        except NoRespondersError:
            if not self._lost_within(PAUSE_S):  # else the workers have lost their connections, too
                self.members.nobody()
        except (*NATS_ERRORS, Malformed):
            pass
        return bool(self.members.workers)

    async def _look_after(self) -> None:
        """Notice who came and went, and end the wait of mail that no one is left to analyse."""
        while True:
            session = self._link.session
            if session is not None:
                self.members.expire()
                await session.publish(self._names.nodes, NodeSign(self._id, len(self._waiting)).to_bytes())
                if self.members.in_doubt:
                    await self._call_roll(session)
                if self.members.alone_for() > ALONE_S:
                    self._refuse_old()
            await asyncio.sleep(SIGN_INTERVAL_S)

    def _refuse_old(self) -> None:
        for waiting in list(self._waiting.values()):
            if time.monotonic() - waiting.begun > ALONE_S and not waiting.answer.done():
                waiting.answer.set_exception(_no_worker())


async def _ends_within(session: Session, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await session.ended.wait()
    except TimeoutError:
        return False
    return True


_FULL = {10023, 10047, 10054, 10077, 10122}  # insufficient resources, maximum bytes, maximum messages


class _NoRoom(Exception):
    """The object store is full."""


def _no_worker() -> Refused:
    return Refused(503, "no_worker", "no analysis worker is connected", retry_after_s=RETRY_AFTER_S)


def _no_room() -> Refused:
    return Refused(503, NO_ROOM, "no room for a mail of this size at the moment", retry_after_s=RETRY_AFTER_S)


def _too_large() -> Refused:
    text = "the mail is larger than the queue (serviceProviders.core.nats.max_size)"
    return Refused(413, "payload_too_large", text)


def _unavailable() -> Refused:
    return Refused(503, "queue_unavailable", "the analysis queue cannot be reached", retry_after_s=RETRY_AFTER_S)
