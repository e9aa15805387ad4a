"""Relay: hands one mail to the next hop over SMTP or LMTP, and returns its answer.

There is no queue behind this: the client's 250 is the next hop's 250. `who_gets_the_mail` decides what the
next hop's replies mean; this file sends, waits, and carries those decisions out.

- Before the final dot, a cancelled or failed relay drops the connection, so the next hop has no mail.
- Once the dot is written the mail may be delivered. The answer is then awaited (up to `timeout_s`, whatever the
  deadline; those of LMTP, one per recipient, together until the deadline if that is later) even if the caller is
  cancelled, and is logged if no caller reads it.
- A mail that the SMTP intake has not checked (it came by milter, and is released from the quarantine) may
  contain a bare CR or LF. It is refused before anything is sent: the next hop may see a second mail in it.
- A next hop may announce less than usual for a while: it answers EHLO with an error, or another machine answers
  under its name. A mail that needs what is missing then gets a 451; a 5xx only if the next hop announced it neither
  now nor in the last hour (`commands.CannotCarry`).
- An idle connection may be dead without our knowing. If a reused one is lost before MAIL is answered,
  the mail is tried once more on a new connection.

If this is wrong, a mail is lost, or delivered after its client was told that it was not.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol, assert_never

from bridge.mail import bare_line_ends
from bridge.mail.next_hop import Interrupted, NextHopError
from bridge.mail.reply import Reply, weightiest
from bridge.mail.transaction import Transaction
from bridge.relay import client_replies, commands, dot_stuffing, who_gets_the_mail
from bridge.relay.announced_extensions import AnnouncedExtensions
from bridge.relay.commands import CannotCarry, Commands
from bridge.relay.connection import End, NextHopConnection
from bridge.relay.handshake import RelaySettings, open_connection
from bridge.relay.pool import Pool
from bridge.relay.reply_reader import queue_id_in
from bridge.relay.who_gets_the_mail import (
    AnsweredPerRecipient,
    ContentDecision,
    Delivered,
    DotAnswers,
    Lost,
    RefusedForAll,
    RefusedRecipients,
    SendContent,
    Stale,
)

__all__ = ["Delivered", "Mixed", "Relay", "RelaySettings", "SmtpRelay"]

log = logging.getLogger("bridge.relay")

_TIMER_S = 1.0  # a limit is longer by this much if the connection's own timer is to fire first
_NO_SUCH_COMMAND = frozenset({500, 502})  # RFC 5321 4.2.4: no answer to MAIL, RCPT or DATA

# An answer that came after the caller was cancelled: our id for the mail, the recipients, and the reply to them.
OnLateAnswer = Callable[[str, Sequence[str], Reply], None]


class Mixed(NextHopError):
    """Not every recipient has the mail. `reply` speaks for all of them, `replies` for each."""

    def __init__(self, each: tuple[Reply, ...], queue_id: str = "") -> None:
        reply = weightiest(each)
        assert reply is not None
        accepted = [own for own in each if own.is_success]
        self.accepted = len(accepted)
        super().__init__(reply, f"{self.accepted} of {len(each)} recipients have it; {reply}")
        self.replies = each
        self.queue_id = queue_id or (queue_id_in(accepted[0]) if accepted else "")


class Relay(Protocol):
    """A next hop of any kind."""

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        """Send `head` and the message. Raises NextHopError: the mail is not delivered, or that is unknown.

        Raises Interrupted if it is cancelled when recipients may have the mail.
        """

    async def probe(self) -> tuple[str, ...]:
        """The extensions that the next hop offers. Raises NextHopError."""

    async def close(self) -> None:
        """Wait for outstanding answers, then close all connections."""


class _StaleConnection(Exception):
    """A reused connection was dead before MAIL was answered."""


class SmtpRelay:
    """One SMTP or LMTP next hop."""

    def __init__(self, settings: RelaySettings, on_late_answer: OnLateAnswer = lambda *_: None) -> None:
        self._settings = settings
        self._on_late_answer = on_late_answer
        self._is_lmtp = settings.next_hop.protocol == "lmtp"
        self.pool = Pool(settings)
        self._finishing: set[NextHopConnection] = set()  # the dot is written, the answer is outstanding
        self._orphaned: set[asyncio.Task[None]] = set()  # await such an answer after the caller was cancelled
        self._all_finished = asyncio.Event()
        self._announced = AnnouncedExtensions()

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        if monotonic() >= deadline:
            raise NextHopError(client_replies.LATE)
        _check_lines(tx, head)
        conn = await self.pool.take(deadline)
        try:
            expected = await self._hand_over(conn, tx, head, deadline)
        except _StaleConnection:
            conn = await self.pool.renew(conn, deadline)
            expected = await self._hand_over(conn, tx, head, deadline)
        until = self._last_answer_by(expected, deadline)
        return await self._finish(conn, tx.id, tx.envelope.addresses, expected, until)

    async def probe(self) -> tuple[str, ...]:
        conn = await open_connection(self._settings, self.pool.names, math.inf)
        try:
            conn.send(b"QUIT\r\n", 1)
            await conn.replies(1, self._settings.timeout_s)
            self._announced.note(conn.capabilities.names)
            return conn.capabilities.announced
        finally:
            conn.abort()

    async def close(self) -> None:
        self.pool.close()
        try:
            await self._wait_until_finished()
        finally:  # even if the time for closing is over
            for conn in list(self._finishing):
                conn.abort()
            await asyncio.gather(*self._orphaned)

    async def _wait_until_finished(self) -> None:
        if not self._finishing:
            return
        self._all_finished.clear()
        try:
            # A little longer than one answer may take, so that the connection's own timer fires first. LMTP has more
            # answers, which together may take until the mail's deadline; here, they are cut off.
            async with asyncio.timeout(self._settings.timeout_s + _TIMER_S):
                await self._all_finished.wait()
        except TimeoutError:
            log.warning("relay closed before the next hop had answered for %d mails", len(self._finishing))

    # Up to the dot.

    async def _hand_over(self, conn: NextHopConnection, tx: Transaction, head: bytes, deadline: float) -> DotAnswers:
        """Send everything including the dot. If that fails, the connection is returned to the pool or dropped."""
        try:
            batch = self._make_commands(conn, tx, head)
            conn.needs_reset = False
            refused = await self._send_envelope(conn, batch, tx.is_per_recipient, deadline)
            expected = DotAnswers(len(tx.envelope.recipients), refused, self._is_lmtp, tx.is_per_recipient)
            await self._send_content(conn, tx, head, expected.count, deadline)
            return expected
        except _StaleConnection:
            raise
        except NextHopError:
            self.pool.give_back(conn)
            raise
        except BaseException:  # mostly cancellation
            conn.abort()
            self.pool.give_back(conn)
            raise

    def _make_commands(self, conn: NextHopConnection, tx: Transaction, head: bytes) -> Commands:
        """Raises NextHopError, before anything is sent."""
        if not conn.reused:
            self._announced.note(conn.capabilities.names)
        try:
            return commands.for_mail(conn.capabilities, tx, head, reset=conn.needs_reset)
        except CannotCarry as exc:
            if conn.capabilities.is_all and not self._announced.was_there(exc.extension):
                raise
            missing = f"{self._settings.next_hop} does not announce {exc.extension}, perhaps only temporarily"
            raise CannotCarry(exc.extension, commands.FOR_NOW, missing) from exc

    async def _send_envelope(
        self, conn: NextHopConnection, batch: Commands, is_per_recipient: bool, deadline: float
    ) -> RefusedRecipients:
        """Send the commands up to DATA; return the recipients that were refused."""
        if "PIPELINING" in conn.capabilities.names:
            conn.send(batch.wire, batch.count)
            received = await conn.replies(batch.count, self._settings.timeout_s, deadline)
        else:
            received = await self._send_one_by_one(conn, batch, is_per_recipient, deadline)
        if conn.errors:  # a refusal, which is not passed on if there is one answer too many
            await conn.settle()
        if not conn.reused and any(reply.code >= 400 for reply in received[: batch.before_mail]):
            log.warning("next hop %s refused XFORWARD; sending the mail without it", self._settings.next_hop)
        decision = who_gets_the_mail.after_envelope(
            batch, received, is_per_recipient=is_per_recipient, is_reused=conn.reused, lost=_lost(conn)
        )
        match decision:
            case SendContent(refused):
                return refused
            case Stale():
                raise _StaleConnection
            case Lost():
                raise decision.error()
            case RefusedForAll(reply, must_hang_up):
                _leave_open(conn, must_hang_up)
                await self._confirm(conn, (reply,), deadline)
                raise NextHopError(reply, is_about_recipient=who_gets_the_mail.is_refused_at_rcpt(batch, received))
            case AnsweredPerRecipient(each, must_hang_up):
                _leave_open(conn, must_hang_up)
                await self._confirm(conn, each, deadline)
                raise Mixed(each)
            case _:
                assert_never(decision)

    async def _confirm(self, conn: NextHopConnection, given: tuple[Reply, ...], deadline: float) -> None:
        """Before a 5xx is passed on, raises NextHopError unless RSET gets its own answer.

        If there was one answer too many, the last one is still to come, and would be taken for the answer to RSET: a
        354 or a refusal. A next hop that disconnects sends nothing more.
        """
        if conn.ended is not None or all(reply.code < 500 for reply in given):
            return
        conn.send(b"RSET\r\n", 1)
        answer = await conn.replies(1, self._settings.timeout_s, deadline)
        is_reset = bool(answer) and answer[0].is_success
        conn.needs_reset = not is_reset
        if answer and answer[0].code in _NO_SUCH_COMMAND:
            conn.quit()  # the next mail could not begin over this connection
        elif not (is_reset or conn.ended is End.LOST):
            conn.abort()
            raise NextHopError(client_replies.OUT_OF_PLACE)

    async def _send_one_by_one(
        self, conn: NextHopConnection, batch: Commands, is_per_recipient: bool, deadline: float
    ) -> list[Reply]:
        """One command at a time, for a next hop without PIPELINING."""
        received: list[Reply] = []
        for line in batch.wire.splitlines(keepends=True):
            if who_gets_the_mail.is_settled(batch, received, is_per_recipient=is_per_recipient):
                break
            conn.send(line, 1)
            reply = await conn.replies(1, self._settings.timeout_s, deadline)
            if not reply:
                break
            received += reply
        return received

    async def _send_content(
        self, conn: NextHopConnection, tx: Transaction, head: bytes, expected_replies: int, deadline: float
    ) -> None:
        timeout_s = self._settings.timeout_s
        block = b""
        for following in dot_stuffing.blocks(itertools.chain((head,), tx.message.chunks())):
            if block:
                conn.send(block, 0)
                await conn.drain(timeout_s, deadline)
                if (lost := _lost(conn)) is not None:
                    raise lost.error()
            block = following
        # From this write on the mail may be delivered: no await between here and `_finish`.
        conn.send(block, expected_replies)
        self._finishing.add(conn)

    # After the dot. Nothing here needs the message, which the caller may close.

    def _last_answer_by(self, expected: DotAnswers, deadline: float) -> float:
        """With LMTP, the answers together have until the deadline. The first has `timeout_s` even after that."""
        if expected.count == 1:
            return math.inf
        return max(deadline, monotonic() + self._settings.timeout_s + _TIMER_S)

    async def _finish(
        self, conn: NextHopConnection, mail_id: str, recipients: Sequence[str], expected: DotAnswers, until: float
    ) -> Delivered:
        try:
            received = await self._await_dot_answers(conn, expected, until)
        except asyncio.CancelledError:
            task = asyncio.create_task(self._finish_without_client(conn, mail_id, recipients, expected, until))
            self._orphaned.add(task)
            task.add_done_callback(self._orphaned.discard)
            raise Interrupted(frozenset(range(len(recipients))) - expected.refused.keys()) from None
        return self._conclude(conn, expected, received)

    async def _finish_without_client(
        self, conn: NextHopConnection, mail_id: str, recipients: Sequence[str], expected: DotAnswers, until: float
    ) -> None:
        received = await self._await_dot_answers(conn, expected, until)
        try:
            delivered = self._conclude(conn, expected, received)
        except NextHopError as exc:
            log.warning("mail %s: the client disconnected, and the next hop did not accept the mail: %s", mail_id, exc)
            replies = exc.replies or (exc.reply,) * len(recipients)
            unsure = exc.unsure
        else:
            replies, unsure = delivered.replies, frozenset()
            text = "mail %s: the client disconnected, but the next hop accepted the mail: %s"
            log.info(text, mail_id, delivered.reply)
        known = [position for position in range(len(recipients)) if position not in unsure | expected.refused.keys()]
        for reply in dict.fromkeys(replies[position] for position in known):
            self._on_late_answer(mail_id, [recipients[each] for each in known if replies[each] == reply], reply)

    async def _await_dot_answers(self, conn: NextHopConnection, expected: DotAnswers, until: float) -> list[Reply]:
        return await conn.replies(expected.count, self._settings.timeout_s, until, settles=True)

    def _conclude(self, conn: NextHopConnection, expected: DotAnswers, received: list[Reply]) -> Delivered:
        """Give the connection back, and return or raise what the answers mean."""
        self._finishing.discard(conn)
        if not self._finishing:
            self._all_finished.set()
        try:
            return _carry_out(conn, received, who_gets_the_mail.after_content(expected, received, _lost(conn)))
        except NextHopError as exc:
            exc.unsure = _without_answer(exc, expected.recipients)
            raise
        finally:
            self.pool.give_back(conn)


def _carry_out(conn: NextHopConnection, received: list[Reply], decision: ContentDecision) -> Delivered:
    match decision:
        case Delivered():
            conn.errors = 0
            return decision
        case Lost():
            raise decision.error()
        case RefusedForAll(reply, must_hang_up):
            if must_hang_up:
                conn.abort()
            raise NextHopError(reply)
        case AnsweredPerRecipient(each, must_hang_up):
            if must_hang_up:
                conn.abort()
            if all(reply.is_success for reply in received):  # the refusals came at RCPT
                conn.errors = 0
            raise Mixed(each)
        case _:
            assert_never(decision)


def _without_answer(error: NextHopError, recipients: int) -> frozenset[int]:
    """After the dot: where a reply is ours, the next hop did not answer, although it has the whole mail."""
    each = error.replies or (error.reply,) * recipients
    return frozenset(position for position, reply in enumerate(each) if not reply.is_foreign)


def _check_lines(tx: Transaction, head: bytes) -> None:
    """Raises NextHopError for a mail that the next hop may read as two. Costs nothing if the intake has checked it."""
    message = tx.message
    if not message.has_clean_lines and not bare_line_ends.all_clean(itertools.chain((head,), message.chunks())):
        raise NextHopError(
            client_replies.NOT_CLEAN,
            "it contains a bare CR, a bare LF or a NUL, so a mail server may read it as two mails; export it instead",
        )


def _leave_open(conn: NextHopConnection, must_hang_up: bool) -> None:
    """The refused mail is still open at the next hop: the next one starts with RSET, unless we hang up."""
    conn.needs_reset = True
    if must_hang_up:
        conn.abort()


def _lost(conn: NextHopConnection) -> Lost | None:
    return Lost(conn.ended, conn.unasked) if conn.ended is not None else None
