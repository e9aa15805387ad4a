"""Work that takes a lot of memory or time: a little of each kind runs at a time, and a few requests wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from anyio import CapacityLimiter

from bridge.console.checks import Refused
from bridge.runtime.marked_text import N_


@dataclass(slots=True)
class Queue:
    """Limits how much work of one kind may run at a time."""

    limiter: CapacityLimiter
    max_waiting: int  # including those that are running
    max_per_person: int | None = None
    waiting: int = 0
    persons: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def place(self, person: str = "") -> Iterator[None]:
        """Raises Refused if too many are already waiting, or too many of this person."""
        if self.waiting >= self.max_waiting:
            raise Refused(503, N_("Busy"), N_("Too many people are using this at the moment. Try again."), 5)
        if self.max_per_person is not None and self.persons[person] >= self.max_per_person:
            raise Refused(429, N_("Busy"), N_("This cannot be done at the moment. Try again later."), 5)
        self.waiting += 1
        self.persons[person] += 1
        try:
            yield
        finally:
            self.waiting -= 1
            self.persons[person] -= 1
            if not self.persons[person]:
                del self.persons[person]


@dataclass(slots=True)
class PersonTurns:
    """A few requests of each person are worked on at once; further ones wait, without a thread.

    All pages share forty threads: with as many slow searches, one person would make everybody else wait.
    """

    most: int = 12
    max_waiting: int = 100  # including those: a client that goes away leaves its request behind
    _turns: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _requests: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def turn(self, person: str) -> AsyncIterator[bool]:
        """Yields whether the request had to wait; much may have happened in the meantime. Raises Refused."""
        if self._requests[person] >= self.max_waiting:
            raise Refused(429, N_("Busy"), N_("This cannot be done at the moment. Try again later."), 5)
        turns = self._turns.setdefault(person, asyncio.Semaphore(self.most))
        self._requests[person] += 1
        try:
            has_waited = turns.locked()
            async with turns:
                yield has_waited
        finally:
            self._requests[person] -= 1
            if not self._requests[person]:
                del self._requests[person], self._turns[person]


@dataclass(slots=True)
class LargeMails:
    """A process has one large mail in memory at a time, for all people and purposes: it takes a few times its size.

    The units of the console and of the pages for users have 512 MB; smaller mails are limited by their queues.
    """

    min_size: int = 8 * 1024 * 1024
    _turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))

    @asynccontextmanager
    async def turn(self, size: int) -> AsyncIterator[None]:
        if size < self.min_size:
            yield
            return
        async with self._turn:
            yield


class Queues:
    def __init__(self) -> None:
        self.requests = PersonTurns()
        # Each attempt takes 64 MiB and a tenth of a second: a flood of them must not slow down signed-in users.
        self.passwords = Queue(CapacityLimiter(2), max_waiting=10)
        self.links = Queue(
            CapacityLimiter(2), max_waiting=20
        )  # separate, so that links work while passwords are being guessed
        self.readers = Queue(CapacityLimiter(2), max_waiting=100)  # a large mail takes three times its size in memory
        self.reading = PersonTurns(most=1)  # some mail takes seconds: one person must not make all others wait
        self.large_mails = LargeMails()
        self.scans = Queue(CapacityLimiter(2), max_waiting=20)
        # Forms with a file, from their first byte on: each may take 64 MiB of the disk for minutes.
        self.files = Queue(CapacityLimiter(30), max_waiting=30, max_per_person=5)
        # Mails that are downloaded: each is in a file until the client has read it.
        self.downloads = Queue(CapacityLimiter(40), max_waiting=40, max_per_person=10)
        # A next hop or a list service may take minutes, and pages need threads, too.
        self.mail_jobs = asyncio.Semaphore(8)
        self.list_jobs = asyncio.Semaphore(4)
        self.grants = Queue(CapacityLimiter(8), max_waiting=8)
        self.exports = Queue(CapacityLimiter(2), max_waiting=10)  # counting a month takes seconds
        self.list_files = Queue(CapacityLimiter(1), max_waiting=5)  # that are read
