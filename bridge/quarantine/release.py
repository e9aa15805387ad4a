"""Release: an operator sends a quarantined mail on to the next hop after all.

It goes straight to the next hop, which is behind the scanner, so it is not scanned again; if the next hop
sends it through the bridge once more, its token tells the bridge so (`release_token`). The bytes are those
that came in, preceded by the header fields it was stored with and the token. Sender, recipients, their
parameters and the client's address are the original ones, unless other recipients are named; but the sender gets no
report on a released mail, because a report returns the header section, and with it the token.

A mail is released to each recipient only once. The releasing process locks it, and records the attempt before the
first byte is sent and the answer afterwards, for each recipient separately: if some were refused or not named,
another release goes only to those, and the mail stays `kept` until every original recipient has it. A recipient who
has it gets it once more only with `again`. A crash in between leaves an attempt
without an answer, shown as `interrupted`: the mail may or may not have arrived, and can be released again.
That can cause a duplicate but never a loss, because the mail stays in the quarantine until it expires.

If the next hop does not answer the final dot, the mail is `unsure`: its recipients may have it. For some minutes it is
released to them only with `again`, so that no script repeats it before somebody could look.

A lock that is shared through a database may be lost with the connection (`locks`). It is checked before the attempt is
recorded, and again before the mail is sent. If only the second check fails, the attempt remains as `interrupted`,
because another process may be writing the record now.

Several mails may be released at a time. Disks, databases and object storage are used in threads; a cancelled release
waits for what is running there, because it holds the lock.

Knows a next hop only by what it needs of it (`NextHop`); the caller brings one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from bridge.errors import StoreError
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.mail.transaction import Transaction
from bridge.quarantine.quarantine import MailLocked, Quarantine
from bridge.quarantine.record import RELEASED, MailRecord, ReleaseAttempt
from bridge.quarantine.release_token import ReleaseTokens
from bridge.quarantine.store import HeldLock
from bridge.runtime import durable_files
from bridge.runtime.threads import to_the_end

log = logging.getLogger("scanbridge.quarantine")

MAX_ATTEMPTS = 100  # recorded per mail
_ACTIONS = "actions.log"
_LOCK_PAUSE_S = 0.1
_UNSURE_S = 900.0  # RFC 5321 4.5.3.2.6: a server may need 10 minutes after the dot; its log then shows the mail
_NAMED = 10  # recipients named in one message


class AlreadyReleased(StoreError):
    """The mail was released before; the text says to whom, by whom and when."""


class ReleaseUncertain(StoreError):
    """An earlier release to this recipient was interrupted, or not answered: they may have the mail."""


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
    again: bool = False  # even if it was released before
    tokens: ReleaseTokens | None = None  # None: without a token
    timeout_s: float = 300.0
    wait_s: float = 0.0  # for another release of the same mail, which may be to somebody else
    only_certain: bool = False  # never to those who may have it: raises ReleaseUncertain


async def release(quarantine: Quarantine, mail_id: str, next_hop: NextHop, request: ReleaseRequest) -> Delivery:
    """Send the mail on. Raises StoreError (MailNotFound, MailLocked, LockLost, AlreadyReleased, ReleaseUncertain) or
    NextHopError.
    """
    async with _locked(quarantine, mail_id, request.wait_s) as held:
        mail = await to_the_end(quarantine.read, mail_id)
        if mail.state == RELEASED and not request.again:
            raise AlreadyReleased(_earlier_release(mail))
        envelope = _envelope(mail, request)
        with closing(Message(Spool(sys.maxsize))) as message:
            await to_the_end(_fetch, quarantine, mail_id, message)
            if message.begins_with_space():
                raise StoreError("it starts with white space, which would continue our header field; export it instead")
            return await _send(quarantine, mail, envelope, message, held, next_hop, request)


@asynccontextmanager
async def _locked(quarantine: Quarantine, mail_id: str, wait_s: float) -> AsyncIterator[HeldLock]:
    until = time.monotonic() + wait_s
    with ExitStack() as stack:
        while True:
            try:
                held = await to_the_end(stack.enter_context, quarantine.lock(mail_id))
                break
            except MailLocked:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(_LOCK_PAUSE_S)
        yield held


def _fetch(quarantine: Quarantine, mail_id: str, message: Message) -> None:
    """Read the whole mail before anything is recorded or sent."""
    try:
        for chunk in quarantine.chunks(mail_id):
            message.write(chunk)
    except OSError as exc:
        raise StoreError(f"it cannot be read: {exc}") from exc


async def _send(
    quarantine: Quarantine,
    mail: MailRecord,
    envelope: Envelope,
    message: Message,
    held: HeldLock,
    next_hop: NextHop,
    request: ReleaseRequest,
) -> Delivery:
    """Record the attempt, send, and record the answer."""
    now = datetime.now(UTC)
    attempt = ReleaseAttempt(now.isoformat(timespec="milliseconds"), request.by, envelope.addresses)
    earlier = mail.releases[1 - MAX_ATTEMPTS :]

    def begin() -> bytes:
        held.check()
        quarantine.write_releases(mail.id, (*earlier, attempt))
        tokens = request.tokens
        head = tokens.field(message, envelope.sender, envelope.addresses, now) if tokens is not None else b""
        held.check()
        return head

    head = await to_the_end(begin)
    session = Session(mail.session, mail.listener, "quarantine", mail.client)
    sent = _unreported(envelope) if request.tokens is not None else envelope
    began = asyncio.get_running_loop().time()
    tx = Transaction(mail.id, session, sent, message, began, began + request.timeout_s, is_per_recipient=True)
    try:
        delivery = await next_hop.deliver(tx, head, tx.deadline)
    except NextHopError as exc:
        failed = _answered(attempt, exc.reply, mail, _delivered(envelope, exc))
        failed = replace(failed, unsure=_unsure(envelope, exc))
        await to_the_end(quarantine.write_releases, mail.id, (*earlier, failed))
        raise
    try:
        done = _answered(attempt, delivery.reply, mail, set(envelope.addresses))
        await to_the_end(quarantine.write_releases, mail.id, (*earlier, done))
    except StoreError as exc:
        raise StoreError(f"it was delivered ({delivery.reply}), but that could not be recorded: {exc}") from exc
    return delivery


def _answered(attempt: ReleaseAttempt, reply: Reply, mail: MailRecord, delivered: set[str]) -> ReleaseAttempt:
    return replace(attempt, reply=str(reply), delivered=tuple(sorted(mail.delivered | delivered)))


def _delivered(envelope: Envelope, exc: NextHopError) -> set[str]:
    """The recipients who have the mail although others were refused."""
    if not exc.replies:
        return set()
    return {address for address, reply in zip(envelope.addresses, exc.replies, strict=True) if reply.is_success}


def _unsure(envelope: Envelope, exc: NextHopError) -> tuple[str, ...]:
    """The recipients for whom the next hop has the mail, and gave no answer."""
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
        _refuse_unsure(mail, envelope)
    if request.only_certain and mail.may_have(envelope.addresses):
        raise ReleaseUncertain("the result of an earlier release is unknown, so it may have been delivered")
    if not "".join(envelope.addresses).isascii() and not envelope.smtputf8:
        envelope = replace(envelope, params=(*envelope.params, "SMTPUTF8"))
    return envelope


def _refuse_unsure(mail: MailRecord, envelope: Envelope) -> None:
    last = mail.unanswered(envelope.addresses)
    if last is not None and last.is_within(_UNSURE_S, datetime.now(UTC)):
        raise ReleaseUncertain(
            f"it may have been delivered: the next hop did not answer its release by {last.by} at {last.local_time}. "
            f"Look for it in the next hop's log; to send it within {_UNSURE_S / 60:.0f} minutes of that, add --again"
        )


def _earlier_release(mail: MailRecord) -> str:
    last = next(attempt for attempt in reversed(mail.releases) if attempt.is_done or attempt.delivered)
    delivered = sorted(mail.delivered)
    more = f" and {len(delivered) - _NAMED} more" if len(delivered) > _NAMED else ""
    return (
        f"it was released to {', '.join(delivered[:_NAMED])}{more}, last by {last.by} at {last.local_time}; "
        "to send it again, or to others, add --again"
    )


def log_action(directory: Path, action: str, mail_id: str, by: str, **facts: object) -> None:
    """Write one line about an operator's action to the log and to `actions.log`. Raises OSError."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line: dict[str, object] = {"time": now, "action": action, "id": mail_id, "by": by, **facts}
    log.info("%s", json.dumps(line))
    path = directory / _ACTIONS
    fd = durable_files.open_own(path, os.O_WRONLY | os.O_APPEND)
    try:
        durable_files.give_to_owner(path)
        os.write(fd, json.dumps(line).encode("ascii") + b"\n")
    finally:
        os.close(fd)
