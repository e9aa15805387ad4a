"""Send digests to the next hop: everyone whose digest is due, in bounded memory, a few at the same time.

Each person is claimed in the database first, so several runs, on one machine or many, never send anyone two digests. A
digest goes straight to the next hop, and carries the token of released mail, so that it is not scanned if it passes
the bridge. A digest that fails does not affect the others: only a next hop that cannot be reached, or a quarantine that
cannot be read, ends the run.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bridge.digests.counts import DigestCounts
from bridge.digests.items import MAX_RETRY_S, REFUSED_S, Claim, Items, Waiting
from bridge.digests.listing import gather
from bridge.digests.message import DigestMaker, Made
from bridge.digests.schedule import is_due
from bridge.errors import BridgeError, ConfigError, StoreError
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.mail.transaction import Transaction, new_id
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.release import NextHop
from bridge.quarantine.release_token import ReleaseTokens

log = logging.getLogger(__name__)

_SEND_S = 120.0
_MAX_UNREACHED = 20  # times in a row: then the next hop is down, and the run ends
_MAX_UNREADABLE = 20  # people in a row with mail that cannot be read: the same for the quarantine
LISTENER = "digests"


@dataclass(slots=True)
class Outbox:
    """Sends our own mail straight to the next hop."""

    next_hop: NextHop
    sender: str = ""  # the envelope's; "": the null sender
    tokens: ReleaseTokens | None = None

    async def send(self, to: str, content: bytes) -> Reply:
        """Raises NextHopError."""
        params = () if to.isascii() and self.sender.isascii() else ("SMTPUTF8",)
        envelope = Envelope(self.sender, (Recipient(to, ("NOTIFY=NEVER",)),), params)
        with closing(Message(Spool(sys.maxsize))) as message:
            message.write(content)
            head = b""
            if self.tokens is not None:
                head = self.tokens.field(message, self.sender, (), datetime.now(UTC), is_for_anyone=True)
            begin = asyncio.get_running_loop().time()
            session = Session(new_id(), LISTENER, "local")
            tx = Transaction(new_id(), session, envelope, message, begin, begin + _SEND_S)
            return (await self.next_hop.deliver(tx, head, tx.deadline)).reply


@dataclass(slots=True)
class Progress:
    """The progress of one run."""

    total: int = 0  # people with something new; not all of them are due
    looked_at: int = 0
    sent: int = 0
    mails: int = 0  # listed in those digests
    empty: int = 0  # due, but what was held is gone
    refused: int = 0
    failed: int = 0
    taken: int = 0  # by another run
    is_over: bool = False
    problem: str = ""


@dataclass(slots=True)
class Run:
    """One pass over everyone. `only`: these people alone. `now`: even if no digest is due, except for `never`."""

    items: Items
    quarantine: Quarantine
    maker: DigestMaker
    outbox: Outbox
    only: Collection[str] = ()
    now: bool = False
    concurrency: int = 10
    redact: Callable[[str], str] = str  # addresses in the log
    counts: DigestCounts | None = None
    on_sent: Callable[[str, list[str]], None] = lambda person, mails: None  # called in a thread, with the mails listed
    progress: Progress = field(default_factory=Progress)
    _unreached: int = 0
    _unreadable: int = 0
    _counted: tuple[int, int, int] = (0, 0, 0)  # sent, failed, refused
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def go(self, on_progress: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Raises BridgeError if nothing can be done at all; what happens to individual people is in the progress."""
        began = time.time()
        self.progress.total = await asyncio.to_thread(self.items.waiting_count, began)
        people = self._people(began)
        reporter = asyncio.create_task(self._report(on_progress))
        failures: list[BaseException] = []
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.concurrency):
                    group.create_task(self._work(people))
        except* BridgeError as several:
            failures += several.exceptions
        finally:
            reporter.cancel()
            self.progress.is_over = True
            on_progress(self.progress)
            await self._count()
        if failures:
            raise failures[0]
        return self.progress

    async def _report(self, on_progress: Callable[[Progress], None]) -> None:
        while True:
            await asyncio.sleep(1.0)
            on_progress(self.progress)
            await self._count()

    async def _count(self) -> None:
        """What was done since the last time. No digest is held up by the numbers."""
        before, done = self._counted, self.progress
        self._counted = now = (done.sent, done.failed, done.refused)
        if self.counts is None:
            return
        sent, failed, refused = (new - old for new, old in zip(now, before, strict=True))
        try:
            await asyncio.to_thread(self.counts.add, sent=sent, failed=failed, refused=refused)
        except BridgeError as exc:
            log.warning("digests: the counts for the metrics cannot be stored: %s", exc)

    async def _people(self, began: float) -> AsyncIterator[Waiting]:
        """Page by page: the table may have a row for everyone."""
        pages = self.items.waiting(began)
        while (page := await asyncio.to_thread(next, pages, None)) is not None:
            for waiting in page:
                self.progress.looked_at += 1
                if self._is_due(waiting, time.time()):
                    yield waiting

    async def _work(self, people: AsyncIterator[Waiting]) -> None:
        while self._unreached < _MAX_UNREACHED:
            try:
                waiting = await self._next(people)
            except StopAsyncIteration:
                return
            await self._one(waiting)
        self.progress.problem = "the next hop cannot be reached at the moment; the remaining digests will be sent later"

    async def _next(self, people: AsyncIterator[Waiting]) -> Waiting:
        async with self._turn:
            return await anext(people)

    def _is_due(self, waiting: Waiting, now: float) -> bool:
        person = waiting.person
        if self.only and person.address not in self.only:
            return False
        schedule = person.schedule or self.maker.settings.of(person.address).schedule
        if schedule == "never" and not self.only:
            return False
        if self.now or self.only:
            return True
        if now < person.retry_at <= now + MAX_RETRY_S or now - REFUSED_S < person.refused_at <= now:
            return False
        last_at, oldest = person.last_at, waiting.oldest_new
        return is_due(schedule, self.maker.settings.clock, now=now, last_at=last_at, oldest_new=oldest)

    async def _one(self, waiting: Waiting) -> None:
        try:
            claim, made, mails = await asyncio.to_thread(self._prepare, waiting)
        except ConfigError as exc:  # a template of one tenant: the others get theirs
            self.progress.failed += 1
            self.progress.problem = str(exc)
            return
        except StoreError as exc:  # perhaps only this person's mail
            self._unreadable += 1
            if self._unreadable >= _MAX_UNREADABLE:
                raise
            self.progress.failed += 1
            self.progress.problem = str(exc)
            return
        except BridgeError:
            raise
        except Exception:  # something about this person's mail: the others get theirs
            self.progress.failed += 1
            log.exception("digest could not be created: to=%s", self.redact(waiting.person.address))
            return
        if claim is None:
            self.progress.taken += 1
            return
        self._unreadable = 0
        if made is None:
            self.progress.empty += 1
            return
        person = claim.person.address
        try:
            await self.outbox.send(person, made.content)
        except NextHopError as exc:
            await self._not_sent(claim, exc)
            return
        await asyncio.to_thread(self.items.confirm, claim)
        await asyncio.to_thread(self.on_sent, person, mails)
        self._unreached = 0
        self.progress.sent += 1
        self.progress.mails += made.count

    def _prepare(self, waiting: Waiting) -> tuple[Claim | None, Made | None, list[str]]:
        """What is to be sent, and the ids of the mails that it lists."""
        claim = self.items.claim(waiting.person, time.time())
        if claim is None:
            return None, None, []
        maker, pages = self.maker, self.items.claimed(claim)
        try:
            listing = gather(pages, self.quarantine, maker.keys, maker.settings.config.max_listed)
            made = maker.digest(claim.person, listing, claim.at)
        except BaseException:
            self.items.retry(claim)
            raise
        if made is None:
            self.items.confirm(claim)
        return claim, made, list(dict.fromkeys(mail.id for _, mail in listing.held))

    async def _not_sent(self, claim: Claim, exc: NextHopError) -> None:
        """Decide what becomes of the claim."""
        is_down = exc.reply.is_temporary and not exc.reply.is_foreign and not exc.is_about_recipient
        self._unreached = self._unreached + 1 if is_down else 0
        settle: Callable[[Claim], None] | None
        if exc.may_be_delivered:  # keep the claim, as after a crash, so that nobody gets the digest twice
            what, settle = "may have been sent; the mail it lists will also be in the next one", None
        elif exc.reply.is_temporary:
            what, settle = "not sent; it will be tried again", self.items.retry
        elif exc.is_about_recipient:
            what, settle = "refused; no further digests for a week", self.items.refused
            self.progress.refused += 1
        else:
            what, settle = (
                "refused because of its sender or content; the mail it lists will be in the next one",
                self.items.postpone,
            )
        self.progress.failed += exc.reply.is_temporary or not exc.is_about_recipient
        log.warning("digest %s: to=%s reply=%r", what, self.redact(claim.person.address), str(exc.reply))
        if settle is not None:
            await asyncio.to_thread(settle, claim)
