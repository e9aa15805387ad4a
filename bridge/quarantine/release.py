"""Release: an operator sends a quarantined mail on to the next hop after all.

It goes straight to the next hop, which is behind the scanner, so it is not scanned again; if the next hop
sends it through the bridge once more, its token tells the bridge so (`release_token`). The bytes are those
that came in, preceded by the header fields it was stored with and the token. Sender, recipients, their
parameters and the client's address are the original ones, unless other recipients are named; but the sender gets no
report on a released mail, because a report returns the header section, and with it the token.

A mail is released to each recipient only once. The releasing process locks it, and records the attempt before the
first byte is sent and the answer afterwards, for each recipient separately: if some were refused or not named,
another release goes only to those, and the mail stays `kept` until every original recipient has it. A recipient who
has it gets it once more only with `again`.

It is impossible to record the next hop's acceptance at the very moment when it happens. A crash in between leaves an
attempt without an answer (`interrupted`), and if the next hop does not answer the final dot, the mail is `unsure`:
either way, its recipients may have it. It is then sent to them only on request, with `again` or `even_if_unsure`, after
someone has checked: a duplicate cannot be undone, but the mail stays in the quarantine until it expires.

A lock that is shared through a database may be lost with the connection (`locks`), at worst while the next hop is
receiving the mail. The next process that gets the lock finds an attempt without an answer, as after a crash. It is
checked before the attempt is recorded, and again before the mail is sent. If only the second check fails, the attempt
remains as `interrupted`, because another process may be writing the record now. If there are two primaries for a
moment, both sides may hold the lock: the store refuses the second record (`RecordChanged`), if it can compare versions.

Several mails may be released at a time. Disks, databases and object storage are used in threads; a cancelled release
waits for what is running there, because it holds the lock.

Knows only what it needs of a next hop (`NextHop`); the caller supplies one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from bridge.errors import StoreError
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.mail.transaction import Transaction
from bridge.quarantine import record
from bridge.quarantine.quarantine import MailLocked, MailNotFound, Quarantine
from bridge.quarantine.record import RELEASED, MailRecord, ReleaseAttempt
from bridge.quarantine.release_token import ReleaseTokens
from bridge.quarantine.store import HeldLock, LockLost
from bridge.runtime.threads import finish_in_thread

_LOCK_PAUSE_S = 0.1
_RECORD_PAUSE_S = 0.5
_NAMED = 10  # recipients named in one message


class AlreadyReleased(StoreError):
    """The mail was released earlier; the text says to whom, by whom and when."""


class ReleaseUncertain(StoreError):
    """An earlier release to this recipient was interrupted, or not answered: they may have the mail."""


class NotRecorded(StoreError):
    """The next hop has answered, but the answer is not in the record: the mail counts as `interrupted`."""

    def __init__(self, text: str, reply: Reply, *, may_be_delivered: bool) -> None:
        super().__init__(text)
        self.reply = reply
        self.may_be_delivered = may_be_delivered


class Delivery(Protocol):
    """A mail that the next hop accepted."""

    @property
    def reply(self) -> Reply: ...


class NextHop(Protocol):
    """Where released mail goes; `bridge.relay.relay.Relay` is one."""

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivery:
        """Raises NextHopError."""


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Who releases mail, to whom, and how."""

    by: str  # login name
    to: tuple[str, ...] = ()  # instead of the original recipients
    again: bool = False  # also to those who have it, or may have it
    tokens: ReleaseTokens | None = None  # None: without a token
    timeout_s: float = 300.0
    record_s: float = 20.0  # to record the answer, if the store is away when it comes; a restart takes seconds
    wait_s: float = 0.0  # for another release of the same mail, which may be to somebody else
    even_if_unsure: bool = False  # also to those who may have it


async def release(quarantine: Quarantine, mail_id: str, next_hop: NextHop, request: ReleaseRequest) -> Delivery:
    """Send the mail on.

    Raises NextHopError, or StoreError: MailNotFound, MailLocked, LockLost, RecordChanged, AlreadyReleased,
    ReleaseUncertain, NotRecorded.
    """
    async with _locked(quarantine, mail_id, request.wait_s) as held:
        stored = await finish_in_thread(quarantine.read_stored, mail_id)
        mail = record.read(stored)
        if mail.state == RELEASED and not request.again:
            raise AlreadyReleased(_earlier_release(mail))
        envelope = _envelope(mail, request)
        with closing(Message(Spool(sys.maxsize))) as message:
            await finish_in_thread(_fetch, quarantine, mail_id, message)
            _check(message, mail)
            now = datetime.now(UTC)
            attempt = ReleaseAttempt(now.isoformat(timespec="milliseconds"), request.by, envelope.addresses)
            head = await finish_in_thread(_token, message, envelope, request, now)
            await finish_in_thread(_begin, quarantine, mail, attempt, stored.version, held)
            tx = _transaction(mail, envelope, message, request)
            return await _send(tx, head, next_hop, _Recorded(quarantine, mail.id, attempt, request.record_s))


@asynccontextmanager
async def _locked(quarantine: Quarantine, mail_id: str, wait_s: float) -> AsyncIterator[HeldLock]:
    until = time.monotonic() + wait_s
    stack = ExitStack()
    try:
        while True:
            try:
                held = await finish_in_thread(stack.enter_context, quarantine.lock(mail_id))
                break
            except MailLocked:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(_LOCK_PAUSE_S)
        yield held
    finally:
        await finish_in_thread(stack.close)


def _fetch(quarantine: Quarantine, mail_id: str, message: Message) -> None:
    """Read the whole mail before anything is recorded or sent."""
    try:
        for chunk in quarantine.chunks(mail_id):
            message.write(chunk)
    except OSError as exc:
        raise StoreError(f"it cannot be read: {exc}") from exc


def _check(message: Message, mail: MailRecord) -> None:
    """Raises StoreError for a mail that cannot be sent with our fields above it."""
    if message.begins_with_space():
        raise StoreError(
            "it starts with white space, so its first line would be read as part of the header field that is "
            "added above it; export it instead"
        )
    if message.is_head_cut():  # we do not know what is there; our own fields would be forged
        raise StoreError("its header section is longer than 1 MiB; export it instead")
    if message.size < (size := mail.head_size + mail.size):
        raise StoreError(f"it is damaged: of its {size:,} bytes, {message.size:,} are left; export it instead")


def _token(message: Message, envelope: Envelope, request: ReleaseRequest, now: datetime) -> bytes:
    """The header field to put in front of the mail."""
    tokens = request.tokens
    return b"" if tokens is None else tokens.field(message, envelope.sender, envelope.addresses, now)


def _begin(
    quarantine: Quarantine, mail: MailRecord, attempt: ReleaseAttempt, version: str | None, held: HeldLock
) -> None:
    """Record the attempt. At this point, only the lock can still fail before the mail is sent."""
    held.check()
    quarantine.write_releases(mail.id, record.begun(mail.releases, attempt), version)
    try:
        held.check()
    except LockLost as exc:
        raise LockLost(f"{exc}, but the attempt is recorded: to release the mail, add --again") from exc


def _transaction(mail: MailRecord, envelope: Envelope, message: Message, request: ReleaseRequest) -> Transaction:
    session = Session(mail.session, mail.listener, "quarantine", mail.client, is_told=mail.is_client_named)
    sent = _unreported(envelope) if request.tokens is not None else envelope
    began = asyncio.get_running_loop().time()
    return Transaction(mail.id, session, sent, message, began, began + request.timeout_s, is_per_recipient=True)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """An attempt that is in the mail's record."""

    quarantine: Quarantine
    mail_id: str
    attempt: ReleaseAttempt
    patience_s: float

    async def answer(self, reply: Reply, delivered: tuple[str, ...], unsure: tuple[str, ...] = ()) -> None:
        """Durably add the next hop's answer. Raises NotRecorded."""
        until = time.monotonic() + self.patience_s
        while True:
            try:
                result = replace(self.attempt, reply=str(reply), delivered=delivered, unsure=unsure)
                return await finish_in_thread(self._write, result)
            except MailNotFound:  # removed by somebody who got the lock after we had lost it
                return
            except StoreError as exc:
                if time.monotonic() >= until:
                    what = "delivered" if reply.is_success else "sent" if delivered or unsure else "not accepted"
                    text = f"it was {what} ({reply}), but that could not be recorded: {exc}"
                    raise NotRecorded(text, reply, may_be_delivered=bool(delivered or unsure)) from exc
            await asyncio.sleep(_RECORD_PAUSE_S)

    def _write(self, result: ReleaseAttempt) -> None:
        """If the lock was lost, others may have recorded their attempts: read the record again."""
        stored = self.quarantine.read_stored(self.mail_id)
        releases = record.answered(record.read_releases(stored.releases), self.attempt, result)
        self.quarantine.write_releases(self.mail_id, releases, stored.version)


async def _send(tx: Transaction, head: bytes, next_hop: NextHop, recorded: _Recorded) -> Delivery:
    try:
        delivery = await next_hop.deliver(tx, head, tx.deadline)
    except NextHopError as exc:
        await recorded.answer(exc.reply, _delivered(tx.envelope, exc), _unsure(tx.envelope, exc))
        raise
    await recorded.answer(delivery.reply, tx.envelope.addresses)
    return delivery


def _delivered(envelope: Envelope, exc: NextHopError) -> tuple[str, ...]:
    """The recipients who have the mail although others were refused."""
    if not exc.replies:
        return ()
    return tuple(address for address, reply in zip(envelope.addresses, exc.replies, strict=True) if reply.is_success)


def _unsure(envelope: Envelope, exc: NextHopError) -> tuple[str, ...]:
    """The recipients for whom the next hop has the mail, but gave no answer."""
    return tuple(address for position, address in enumerate(envelope.addresses) if position in exc.unsure)


def _unreported(envelope: Envelope) -> Envelope:
    """The same envelope; servers that support DSN (RFC 3461) then send no report to the sender, good or bad."""
    recipients = tuple(
        replace(recipient, params=(*_without(recipient.params, "NOTIFY"), "NOTIFY=NEVER"))
        for recipient in envelope.recipients
    )
    return replace(envelope, recipients=recipients, params=_without(envelope.params, "RET", "ENVID"))


def _without(params: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return tuple(param for param in params if param.partition("=")[0].upper() not in names)


def _envelope(mail: MailRecord, request: ReleaseRequest) -> Envelope:
    envelope = mail.envelope
    if request.to:
        original = {recipient.address: recipient for recipient in envelope.recipients}
        named = tuple(original.get(address, Recipient(address)) for address in request.to)
        envelope = replace(envelope, recipients=named)
    if not envelope.recipients:
        raise StoreError("its recipients are unknown; specify one with --to")
    if not request.again:
        remaining = mail.lacking(envelope.recipients)
        if not remaining:
            raise AlreadyReleased(_earlier_release(mail))
        envelope = replace(envelope, recipients=remaining)
        if not request.even_if_unsure:
            _refuse_uncertain(mail, envelope)
    if not "".join(envelope.addresses).isascii() and not envelope.smtputf8:
        envelope = replace(envelope, params=(*envelope.params, "SMTPUTF8"))
    return envelope


def _refuse_uncertain(mail: MailRecord, envelope: Envelope) -> None:
    last = mail.uncertain(envelope.addresses)
    if last is None:
        return
    if last.reply:
        why = f"{last.by} released it at {last.local_time}, and the next hop did not answer"
    else:
        why = f"the release that {last.by} began at {last.local_time} was cut off, or is still running"
    raise ReleaseUncertain(
        f"it may have been delivered: {why}. Look for it in the next hop's log; to send it anyway, add --again, or "
        "tick the box on its page in the console"
    )


def _earlier_release(mail: MailRecord) -> str:
    last = next(attempt for attempt in reversed(mail.releases) if attempt.is_done or attempt.delivered)
    delivered = sorted(mail.delivered)
    more = f" and {len(delivered) - _NAMED} more" if len(delivered) > _NAMED else ""
    return (
        f"it was released to {', '.join(delivered[:_NAMED])}{more}, last by {last.by} at {last.local_time}; "
        "to send it again, or to others, add --again"
    )
