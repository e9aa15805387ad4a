"""The DNS lookups of one mail: side by side, each name once, within the time for which the mail may wait.

The sender of a mail can choose names whose servers never answer. A mail may wait a short time for such servers, and
only a few mails at once may wait longer: for the others, what has no answer by then counts as unanswered, so that
silent servers cannot occupy the service. Lookups that are answered do not count: an honest sender may need many of
them. Knows names and time; what an answer means is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from bridge.mail.address import comparable_domain

MAX_RECORD = 4096  # bytes of a TXT record; pyspf takes seconds for one of 60 KB
MAX_AT_ONCE = 24  # lookups of one mail, each of which has a socket
MAX_WAITING = 8  # mails that wait longer than others

Question = tuple[str, str]  # a name, and the type of a record


class DnsUnavailable(Exception):
    """A lookup got no response, not even that the name does not exist; or there is no time left for it."""


@dataclass(slots=True)
class Resolvers:
    """dnspython's resolvers, and what all mails have to know about each other."""

    one_by_one: Any
    side_by_side: Any
    waiting: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(MAX_WAITING))  # one for each mail
    answered_at: float = 0.0  # when any mail last got an answer


@dataclass(slots=True)
class Lookups:
    """The lookups of one mail. `close` them."""

    resolvers: Resolvers
    deadline: float
    patience_s: float  # how long any mail may wait for lookups that are not answered
    slow_from: float = math.inf  # from then on, only a few mails wait, even if each lookup is answered at last
    known: dict[Question, list[Any] | None] = field(default_factory=dict)  # None: no answer
    is_client_unknown: bool = False  # the name of the client's address got no answer
    _began: float = field(default_factory=time.monotonic)
    _is_patient: bool = False
    _must_not_wait: bool = False

    def close(self) -> None:
        if self._is_patient:
            self._is_patient = False
            self.resolvers.waiting.release()

    @property
    def is_cut_short(self) -> bool:
        """Whether this mail did not wait because others were waiting. If none gets answers, our name server is down."""
        return self._must_not_wait and self.resolvers.answered_at > self._began

    def is_over(self) -> bool:
        return time.monotonic() > self.deadline

    def left(self) -> float:
        return max(0.01, self.deadline - time.monotonic())

    def fetch(self, names: Iterable[str]) -> None:
        """Look up the TXT records of all these names at the same time. Blocks."""
        questions = [(name, "TXT") for name in dict.fromkeys(map(comparable_domain, names)) if name.isascii()]
        if not questions:
            return
        begin = time.monotonic()
        found = asyncio.run(self._fetch(questions))
        self.known |= found
        if None in found.values():
            self._waited(begin)

    async def _fetch(self, questions: list[Question]) -> dict[Question, list[Any] | None]:
        room = asyncio.Semaphore(MAX_AT_ONCE)
        tasks = {asyncio.create_task(self._fetch_one(question, room)): question for question in questions}
        waiting: set[asyncio.Task[list[Any] | None]] = set(tasks)
        is_first = True
        while waiting and (is_first or self._may_wait_longer()):
            _, waiting = await asyncio.wait(waiting, timeout=max(0.0, self._may_wait_s()))
            is_first = False
            self.patience_s = 0 if waiting else self.patience_s
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return {question: None if task in waiting else task.result() for task, question in tasks.items()}

    async def _fetch_one(self, question: Question, room: asyncio.Semaphore) -> list[Any] | None:
        async with room:
            try:
                return self._answer(await self.resolvers.side_by_side.resolve(*question, lifetime=self.left()))
            except Exception as exc:
                return self._failure(exc)

    def ask(self, name: str, kind: str) -> list[Any]:
        """Raises DnsUnavailable."""
        question = (comparable_domain(name), kind)
        if not question[0].isascii():  # such a name cannot be looked up
            return []
        if question not in self.known:
            self.known[question] = self._ask(question)
        found = self.known[question]
        if found is None:
            raise DnsUnavailable("no answer")
        return found

    def _ask(self, question: Question) -> list[Any] | None:
        while self._may_wait_s() > 0 or self._may_wait_longer():
            begin, may_wait_s = time.monotonic(), self._may_wait_s()
            try:
                return self._answer(self.resolvers.one_by_one.resolve(*question, lifetime=may_wait_s))
            except Exception as exc:
                found = self._failure(exc)
            if found is not None:
                return found
            self._waited(begin)
            if time.monotonic() - begin < 0.9 * may_wait_s:  # the server reported a failure: it was not silent
                return None
        return None

    def _may_wait_s(self) -> float:
        left = self.deadline - time.monotonic()
        return left if self._is_patient else min(self.patience_s, left, self.slow_from - time.monotonic())

    def _waited(self, begin: float) -> None:
        self.patience_s = max(0, self.patience_s - (time.monotonic() - begin))

    def _may_wait_longer(self) -> bool:
        """Whether this mail becomes one of the few that may wait until the deadline."""
        if self._is_patient or self.is_over():
            return False
        self._is_patient = self.resolvers.waiting.acquire(blocking=False)
        self._must_not_wait = not self._is_patient
        return self._is_patient

    def _answer(self, answer: Iterable[Any]) -> list[Any]:
        self.resolvers.answered_at = time.monotonic()
        return [record for record in answer if sum(map(len, getattr(record, "strings", ()))) <= MAX_RECORD]

    def _failure(self, exc: Exception) -> list[Any] | None:
        """What a failed lookup says: that there is no such record, or nothing. Raises errors that are not about DNS."""
        import dns.exception
        import dns.name
        import dns.resolver

        if isinstance(exc, (dns.resolver.NoAnswer, dns.resolver.NXDOMAIN)):
            return self._answer(())
        if isinstance(exc, (dns.exception.SyntaxError, dns.name.LabelTooLong, dns.name.NameTooLong, UnicodeError)):
            return []
        if isinstance(exc, dns.name.EmptyLabel):
            return []
        if isinstance(exc, dns.exception.DNSException):
            return None
        raise exc

    def raw_txt(self, name: str) -> bytes | None:
        found = self.ask(name, "TXT")
        return b"".join(found[0].strings) if found else None

    def txt(self, name: str) -> list[str]:
        return [b"".join(record.strings).decode("ascii", "replace") for record in self.ask(name, "TXT")]


_current = threading.local()  # the lookups of the mail that this thread is checking


def use_for_spf(lookups: Lookups) -> None:
    """In this thread."""
    _current.lookups = lookups


def spf_lookup(name: str, kind: str, *_unused: Any) -> list[tuple[tuple[str, str], Any]]:
    """Replaces pyspf's DNS lookup: uses our resolver and our deadline."""
    readers: dict[str, Callable[[Any], Any]] = {
        "A": lambda r: r.address,
        "AAAA": lambda r: r.address,
        "MX": lambda r: (r.preference, r.exchange.to_text(True)),
        "PTR": lambda r: r.target.to_text(True),
        "TXT": lambda r: r.strings,
    }
    if kind not in readers:
        return []
    lookups: Lookups = _current.lookups
    try:
        found = lookups.ask(name, kind)
    except DnsUnavailable:
        if kind != "PTR":
            raise
        lookups.is_client_unknown = True
        return []  # RFC 7208 5.5: the mechanism does not match, and the next one may
    return [((name, kind), readers[kind](record)) for record in found]
