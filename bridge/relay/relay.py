"""Relay: hands one mail to the next hop over SMTP or LMTP, and brings back its answer.

There is no queue behind this: the client's 250 is the next hop's 250. A client that reads one
reply for each recipient (`Transaction.is_per_recipient`: LMTP, PRDR) gets each one's own: the mail goes to those
the next hop accepts, the others have their refusal. For a client that reads one reply for all, the
whole mail is handed over or nothing of it:

- If some recipients are refused, none gets the mail: it stops before the final dot, and the
  weightiest refusal (`weightiest`: 4xx before 5xx) is the answer for all.
- LMTP answers for each recipient after the dot, when it is too late for that. If they differ, a
  4xx wins here too: the mail comes again, and those who have it get it twice rather than one of
  them never.

For both:

- Before the dot a cancelled or failed relay drops the connection, so the next hop has no mail.
  Once the dot is written it cannot be taken back: whatever becomes of the caller, the answer is
  awaited (up to `timeout_s`, deadline or not) and, if nobody is left to hear it, logged.

A connection that lay idle may be dead without our knowing; if it fails before MAIL is answered,
the mail is tried once more on a fresh one.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Mapping
from time import monotonic
from typing import Protocol

from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply, weightiest
from bridge.mail.transaction import Transaction
from bridge.relay import commands, dot_stuffing, replies
from bridge.relay.commands import Commands
from bridge.relay.connection import Connection, End
from bridge.relay.handshake import RelaySettings, open_connection
from bridge.relay.pool import Pool
from bridge.runtime.value import value

__all__ = ["Delivered", "Mixed", "Relay", "RelaySettings", "SmtpRelay"]

log = logging.getLogger("bridge.relay")

Refused = Mapping[int, Reply]  # the answers to those, by their number, whom the next hop refused at RCPT

_NOBODY: Refused = {}
_NOT_RESET = Reply(250, "", "RSET was refused")  # out of place: what MAIL is told then says nothing of this mail


@value
class Delivered:
    """The mail is the next hop's now."""

    reply: Reply
    queue_id: str = ""  # the next hop's own, where its reply shows one
    replies: tuple[Reply, ...] = ()  # one for each recipient, in their order


class Mixed(NextHopError):
    """Not every recipient has the mail, and their answers differ. `reply` speaks for all, `replies` for each."""

    def __init__(self, each: tuple[Reply, ...], queue_id: str = "") -> None:
        reply = weightiest(each)
        assert reply is not None
        self.accepted = sum(one.is_success for one in each)
        super().__init__(reply, f"{self.accepted} of {len(each)} recipients have it; {reply}")
        self.replies = each
        self.queue_id = queue_id or next((replies.queue_id(one) for one in each if one.is_success), "")


class Relay(Protocol):
    """A next hop, whatever its kind."""

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        """Hand on `head` and the message. Raises NextHopError; the mail is then not handed on, or in doubt."""

    async def probe(self) -> tuple[str, ...]:
        """What the next hop offers. Raises NextHopError."""

    async def close(self) -> None:
        """Let what is on its way arrive, then let go of everything."""


class _Stale(Exception):
    """A reused connection was dead before MAIL was answered."""


class SmtpRelay:
    """One SMTP or LMTP next hop."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._lmtp = settings.next_hop.protocol == "lmtp"
        self.pool = Pool(settings)
        self._finishing: set[Connection] = set()  # the dot is written, the answer is not here yet
        self._late: set[asyncio.Task[None]] = set()  # those of them that nobody awaits any more
        self._all_finished = asyncio.Event()

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        if monotonic() >= deadline:
            raise NextHopError(replies.LATE)
        conn = await self.pool.take(deadline)
        try:
            refused = await self._hand_over(conn, tx, head, deadline)
        except _Stale:
            conn = await self.pool.renew(conn, deadline)
            refused = await self._hand_over(conn, tx, head, deadline)
        return await self._finish(conn, tx, refused)

    async def probe(self) -> tuple[str, ...]:
        conn = await open_connection(self._settings, math.inf)
        try:
            conn.send(b"QUIT\r\n", 1)
            await conn.replies(1, self._settings.timeout_s)
            return conn.capabilities.announced
        finally:
            conn.abort()

    async def close(self) -> None:
        self.pool.close()
        try:
            await self._answers()
        finally:  # also when whoever closes us has no more time
            for conn in list(self._finishing):
                conn.abort()
            await asyncio.gather(*self._late)

    async def _answers(self) -> None:
        """Of those that have the dot."""
        if not self._finishing:
            return
        self._all_finished.clear()
        try:
            # A little longer than the answer itself may take, so that its own timer ends first.
            async with asyncio.timeout(self._settings.timeout_s + 1.0):
                await self._all_finished.wait()
        except TimeoutError:
            log.warning("%d mails were still without the next hop's answer", len(self._finishing))

    # Before the dot.

    async def _hand_over(self, conn: Connection, tx: Transaction, head: bytes, deadline: float) -> Refused:
        """Everything up to and with the dot. If it fails the connection is back in the pool, or dropped."""
        try:
            batch = commands.for_mail(conn.capabilities, tx, head, reset=conn.needs_reset)
            conn.needs_reset = False
            refused = await self._envelope(conn, batch, tx.is_per_recipient, deadline)
            await self._content(conn, tx, head, self._expected(tx, refused), deadline)
            return refused
        except _Stale:
            raise
        except NextHopError:
            self.pool.give_back(conn)
            raise
        except BaseException:  # cancelled, most of all
            conn.abort()
            self.pool.give_back(conn)
            raise

    async def _envelope(self, conn: Connection, batch: Commands, each: bool, deadline: float) -> Refused:
        if "PIPELINING" in conn.capabilities.names:
            conn.send(batch.wire, batch.count)
            answers = await conn.replies(batch.count, self._settings.timeout_s, deadline)
        else:
            answers = await self._step_by_step(conn, batch, each, deadline)
        if not conn.reused and any(answer.code >= 400 for answer in answers[: batch.ahead]):
            log.warning("next hop %s refused XFORWARD; the mail goes on without", self._settings.next_hop)
        refusal = judge(answers, batch)
        complete = len(answers) == batch.count
        if refusal is None and complete:
            return _NOBODY
        if conn.reused and conn.ended is End.LOST and _before_mail_was_answered(answers, batch):
            raise _Stale
        if refusal is None:
            raise _failure(conn)
        own = apart(answers, batch) if each else None
        if own is not None and complete and answers[-1].code == 354 and any(one.is_success for one in own):
            return {number: one for number, one in enumerate(own) if not one.is_success}
        if refusal.code < 400 or (complete and answers[-1].code < 400):
            conn.abort()  # it awaits content, or who knows what: only hanging up stops it
        conn.needs_reset = True
        if own is None:
            raise NextHopError(replies.passed_on(refusal))
        rest = replies.passed_on(answers[-1]) if complete else _failure(conn).reply
        raise Mixed(tuple(rest if one.is_success else one for one in own))

    async def _step_by_step(self, conn: Connection, batch: Commands, each: bool, deadline: float) -> list[Reply]:
        """One command at a time; DATA is not said if it would have to be taken back."""
        answers: list[Reply] = []
        for number, line in enumerate(batch.wire.splitlines(keepends=True)):
            if number == batch.count - 1 and judge(answers, batch) is not None:
                own = apart(answers, batch) if each else None
                if own is None or not any(one.is_success for one in own):
                    break
            conn.send(line, 1)
            answer = await conn.replies(1, self._settings.timeout_s, deadline)
            if not answer:
                break
            answers += answer
            if not answer[0].is_success and (
                number == batch.ahead or (number > batch.ahead and answer[0].is_temporary and not each)
            ):
                break
        return answers

    def _expected(self, tx: Transaction, refused: Refused) -> int:
        """How many answers the dot gets."""
        return len(tx.envelope.recipients) - len(refused) if self._lmtp else 1

    async def _content(
        self, conn: Connection, tx: Transaction, head: bytes, expected: int, deadline: float
    ) -> None:  # fmt: skip
        timeout_s = self._settings.timeout_s
        block = b""
        for following in dot_stuffing.blocks(itertools.chain((head,), tx.message.chunks())):
            if block:
                conn.send(block, 0)
                await conn.drain(timeout_s, deadline)
                if conn.ended is not None:
                    raise _failure(conn)
            block = following
        # No await between here and the caller's: from this write on the mail may be delivered.
        conn.send(block, expected)
        self._finishing.add(conn)

    # After the dot. Nothing here needs the message, which the caller may close.

    async def _finish(self, conn: Connection, tx: Transaction, refused: Refused) -> Delivered:
        try:
            answers = await conn.replies(self._expected(tx, refused), self._settings.timeout_s)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._finish_late(conn, tx, refused))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise
        return self._conclude(conn, answers, tx, refused)

    async def _finish_late(self, conn: Connection, tx: Transaction, refused: Refused) -> None:
        answers = await conn.replies(self._expected(tx, refused), self._settings.timeout_s)
        try:
            delivered = self._conclude(conn, answers, tx, refused)
        except NextHopError as exc:
            log.warning("%s: the client is gone, and the next hop did not take the mail: %s", tx.id, exc)
        else:
            log.info("%s: the client is gone, the next hop took the mail: %s", tx.id, delivered.reply)

    def _conclude(self, conn: Connection, answers: list[Reply], tx: Transaction, refused: Refused) -> Delivered:
        self._finishing.discard(conn)
        if not self._finishing:
            self._all_finished.set()
        refusal = weightiest(answers)
        if refusal is not None and refusal.code < 400:
            conn.abort()
        if refusal is None:
            conn.errors = 0
        self.pool.give_back(conn)
        complete = len(answers) == self._expected(tx, refused)
        if refusal is None and complete and not refused:
            each = tuple(answers) if self._lmtp else (answers[0],) * len(tx.envelope.recipients)
            return Delivered(answers[0], replies.queue_id(answers[0]), each)
        if tx.is_per_recipient or (complete and len(answers) > 1):
            raise _mixed(self._own(conn, answers, tx, refused))
        if not complete and (refusal is None or not refusal.is_temporary):
            raise _failure(conn)
        assert refusal is not None
        raise NextHopError(replies.passed_on(refusal))

    def _own(
        self, conn: Connection, answers: list[Reply], tx: Transaction, refused: Refused
    ) -> tuple[Reply, ...]:  # fmt: skip
        """What became of each recipient: refused at RCPT, answered after the dot, or left without an answer."""
        own = [_for_one(answer) for answer in answers]
        own += [_failure(conn).reply] * (self._expected(tx, refused) - len(own))
        recipients = len(tx.envelope.recipients)
        rest = iter(own if self._lmtp else own * recipients)
        return tuple(refused.get(number) or next(rest) for number in range(recipients))


def _mixed(own: tuple[Reply, ...]) -> NextHopError:
    return Mixed(own) if len(set(own)) > 1 else NextHopError(own[0])


def _for_one(answer: Reply) -> Reply:
    return answer if answer.is_success else replies.passed_on(answer)


def judge(answers: list[Reply], batch: Commands) -> Reply | None:
    """The refusal among the replies up to DATA that speaks for the mail, if there is one.

    That of MAIL before those of RCPT before that of DATA, since one refusal causes the next.
    """
    if answers and batch.reset and not answers[0].is_success:
        return _NOT_RESET if answers[0].code != 421 else answers[0]
    if len(answers) <= batch.ahead:
        return answers[-1] if answers and answers[-1].code == 421 else None
    mail = answers[batch.ahead]
    if not mail.is_success:
        return mail
    refusal = weightiest(answers[batch.ahead + 1 : batch.count - 1])
    if len(answers) < batch.count - 1:  # a 5xx is not the whole truth while a 4xx may follow
        return refusal if refusal is not None and refusal.is_temporary else None
    if refusal is None and len(answers) == batch.count and answers[-1].code != 354:
        return answers[-1]
    return refusal


def apart(answers: list[Reply], batch: Commands) -> tuple[Reply, ...] | None:
    """Each recipient's own answer to RCPT; None when there is one for all, or doubt."""
    own = answers[batch.ahead + 1 : batch.count - 1]
    if judge(answers[: batch.ahead + 1], batch) is not None or len(answers) < batch.count - 1:
        return None
    if any(300 <= one.code < 400 for one in own):
        return None
    return tuple(map(_for_one, own))


def _before_mail_was_answered(answers: list[Reply], batch: Commands) -> bool:
    answered = len(answers) - (1 if answers and answers[-1].code == 421 else 0)
    return answered <= batch.ahead


def _failure(conn: Connection) -> NextHopError:
    """What a connection's end means before the mail was answered."""
    if conn.unasked is not None and conn.unasked.code >= 400:  # it refused in the middle of the content
        return NextHopError(replies.passed_on(conn.unasked))
    ended = conn.ended or End.LOST
    return NextHopError(replies.LATE if ended is End.LATE else replies.LOST, f"next hop: {ended.value}")
