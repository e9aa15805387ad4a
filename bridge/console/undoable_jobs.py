"""Actions that wait for a few seconds, so that they can be undone, and then run in the background.

A job belongs to the person who began it; nobody else can see or undo it. If the console stops before a job is due,
nothing is done, and the audit log says so: mail is still in the quarantine, and lists are unchanged. The same happens
if somebody else ends the session that requested the job, or the user is removed or changed, even if they have signed
out. Jobs are kept only in memory, and there are few of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

from bridge.console.tokens import new_token

log = logging.getLogger(__name__)

_SHOWN_S = 600.0  # how long a finished job is shown
_MAX_OF_PERSON = 30
_MAX_MAILS_OF_PERSON = 20_000  # in jobs that are not over: each takes a few kilobytes of memory
_MAX_OVER = 30  # finished jobs of a person
MAX_PROBLEMS = 20  # kept of one job
_PAUSES_S = (0.5, 2.0, 5.0)


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    UNDONE = "undone"


@dataclass(frozen=True, slots=True)
class Action:
    """What a job does, as pages and the audit log describe it."""

    words: tuple[str, str]  # what it will do, and what it has done: "Release", "released"
    about: str  # for the audit log
    number: int  # of mails or entries
    unit: tuple[str, str] = ("mail", "mails")
    where: str = ""  # "to the list x"
    mails: tuple[str, ...] = ()
    see: str = ""  # the page that shows the result
    can_be_cancelled: bool = False  # also while it runs

    @property
    def what(self) -> str:
        return f"{self.number:,} {self.unit[self.number != 1]}"


@dataclass(slots=True)
class Job:
    """`work` reports through `succeeded` and `failed`, and does not raise."""

    id: str
    owner: str
    action: Action
    due_at: float  # Unix time
    session: str = ""  # that started it; "" after its owner has signed out
    state: State = State.WAITING
    done: int = 0
    failed: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ended_at: float = 0.0
    is_cancelled: bool = False  # `work` checks this

    @property
    def wait_s(self) -> float:
        return max(0.0, self.due_at - time.time())

    @property
    def is_over(self) -> bool:
        return self.state in (State.DONE, State.UNDONE)

    def succeeded(self, note: str = "", number: int = 1) -> None:
        self.done += number
        if note and note not in self.notes and len(self.notes) < MAX_PROBLEMS:
            self.notes.append(note)

    def fail(self, problem: str, number: int = 1) -> None:
        self.failed += number
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


Work = Callable[[Job], Awaitable[None]]
OnDropped = Callable[[Job], Awaitable[None]]


class TooManyJobs(Exception):
    """This person has too many pending actions."""


class Jobs:
    def __init__(self, undo_s: float, pauses_s: tuple[float, ...] = _PAUSES_S) -> None:
        self.undo_s = undo_s
        self.pauses_s = pauses_s  # between attempts of a job whose database is locked or restarting
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.is_stopping = False

    def begin(self, owner: str, session: str, action: Action, work: Work, dropped: OnDropped) -> Job:
        """Do `work` after `undo_s`, unless it is undone; `dropped` is called if the console stops first.

        Must run in the event loop. Raises TooManyJobs.
        """
        self._forget()
        others = [job.action for job in self._jobs.values() if job.owner == owner and not job.is_over]
        mails = sum(len(other.mails) for other in (*others, action))
        if len(others) >= _MAX_OF_PERSON or mails > _MAX_MAILS_OF_PERSON:
            raise TooManyJobs
        job = Job(new_token()[:22], owner, action, time.time() + self.undo_s, session)
        self._jobs[job.id] = job
        self._tasks[job.id] = asyncio.create_task(self._run(job, work, dropped))
        return job

    def of(self, owner: str) -> list[Job]:
        """The newest first."""
        self._forget()
        return [job for job in reversed(self._jobs.values()) if job.owner == owner]

    def undo(self, owner: str, job_id: str) -> Job | None:
        """Undo a waiting job, or cancel a running one; None if it is too late, or if the job is someone else's."""
        job = self._jobs.get(job_id)
        if job is None or job.owner != owner:
            return None
        if job.state is State.RUNNING and job.action.can_be_cancelled:
            job.is_cancelled = True
            return job
        if job.state is not State.WAITING:
            return None
        job.state, job.ended_at = State.UNDONE, time.time()
        self._tasks.pop(job_id).cancel()
        return job

    def dismiss(self, owner: str) -> None:
        """Stop showing finished jobs."""
        for job in self.of(owner):
            if job.is_over:
                del self._jobs[job.id]

    def signed_out(self, session: str) -> None:
        """The session was ended by its owner: its jobs are carried out anyway."""
        for job in self._jobs.values():
            if job.session == session:
                job.session = ""

    async def stop(self, patience_s: float) -> None:
        """Drop jobs that are not due yet; let others finish their current mail, so that its result is recorded."""
        self.is_stopping = True
        for job_id, task in self._tasks.items():
            if self._jobs[job_id].state is State.WAITING:
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=patience_s)

    async def _run(self, job: Job, work: Work, dropped: OnDropped) -> None:
        try:
            await asyncio.sleep(job.wait_s)
        except asyncio.CancelledError:
            if job.state is State.WAITING:
                await dropped(job)
            self._tasks.pop(job.id, None)
            raise
        job.state = State.RUNNING
        try:
            await work(job)
        except Exception:
            log.exception("console: an action failed")
            job.fail("an unexpected error occurred; the console's log has the details")
        finally:
            job.state, job.ended_at = State.DONE, time.time()
            self._tasks.pop(job.id, None)

    def _forget(self) -> None:
        old = time.time() - _SHOWN_S
        over: Counter[str] = Counter()
        for job in [job for job in reversed(self._jobs.values()) if job.is_over]:
            over[job.owner] += 1
            if job.ended_at < old or over[job.owner] > _MAX_OVER:
                del self._jobs[job.id]
