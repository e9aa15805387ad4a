"""Release: a quarantined mail goes on to the next hop after all, because somebody said so.

It goes straight to the next hop, which stands behind the scanner, so it is not scanned again; should
the next hop send it through the bridge once more, its mark says so (`mark`). Its bytes are those that
came in; in front stand the header fields it was kept with, and that mark. Sender, recipients, their
parameters and the client's address are the original ones, unless other recipients are named.

Once only: who releases a mail holds its claim, a lock that the kernel takes back from a dead
process, and writes down the attempt before the first byte goes out and the answer after it. A mail
that was released is released again only on demand. A crash in between leaves the attempt without
an answer, shown as `interrupted`: the mail may have arrived or not, and can be released again. A
duplicate is possible then, a loss is not: the mail stays in the quarantine until its time is over.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bridge.errors import StoreError
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message, Spool
from bridge.mail.next_hop import NextHopError
from bridge.mail.session import Session
from bridge.mail.transaction import Transaction
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.record import RELEASED, Kept
from bridge.quarantine.record import Release as Attempt
from bridge.quarantine.release_token import Marks
from bridge.relay.relay import Delivered, Relay
from bridge.runtime import durable_files

log = logging.getLogger("scanbridge.quarantine")

MAX_ATTEMPTS = 100  # remembered for one mail
_ACTIONS = "actions.log"


class AlreadyReleased(StoreError):
    """Somebody else released it before; the text says who and when."""


@dataclass(frozen=True, slots=True)
class Order:
    """Who wants what."""

    by: str  # login name
    to: tuple[str, ...] = ()  # in place of the original recipients
    again: bool = False  # even if it was released before
    marks: Marks | None = None  # None: it carries none
    timeout_s: float = 300.0


async def release(quarantine: Quarantine, mail_id: str, relay: Relay, order: Order) -> Delivered:
    """Hand it on. Raises NotKept, InUse, AlreadyReleased, StoreError or NextHopError."""
    with quarantine.claim(mail_id):
        mail = quarantine.read(mail_id)
        if mail.state == RELEASED and not order.again:
            last = next(one for one in reversed(mail.releases) if one.is_done)
            raise AlreadyReleased(f"{last.by} released it at {last.at}")
        envelope = _envelope(mail, order)
        with closing(Message(Spool(sys.maxsize))) as message:
            _fetch(quarantine, mail_id, message)
            return await _send(quarantine, mail, envelope, message, relay, order)


def _fetch(quarantine: Quarantine, mail_id: str, message: Message) -> None:
    """The whole mail, before anything is noted or sent."""
    try:
        for chunk in quarantine.chunks(mail_id):
            message.write(chunk)
    except OSError as exc:
        raise StoreError(f"it cannot be read: {exc}") from exc


async def _send(
    quarantine: Quarantine, mail: Kept, envelope: Envelope, message: Message, relay: Relay, order: Order
) -> Delivered:  # fmt: skip
    """The attempt is written down before the first byte goes out, and the answer after the last."""
    now = datetime.now(UTC)
    attempt = Attempt(now.isoformat(timespec="milliseconds"), order.by, envelope.addresses)
    before = mail.releases[1 - MAX_ATTEMPTS :]
    quarantine.note_releases(mail.id, (*before, attempt))
    session = Session(mail.session, mail.listener, "quarantine", mail.client)
    head = order.marks.field(message, envelope.addresses, now) if order.marks is not None else b""
    begin = asyncio.get_running_loop().time()
    tx = Transaction(mail.id, session, envelope, message, begin, begin + order.timeout_s)
    try:
        delivered = await relay.deliver(tx, head, tx.deadline)
    except NextHopError as exc:
        quarantine.note_releases(mail.id, (*before, replace(attempt, reply=str(exc.reply))))
        raise
    try:
        quarantine.note_releases(mail.id, (*before, replace(attempt, reply=str(delivered.reply))))
    except StoreError as exc:
        raise StoreError(f"it was delivered ({delivered.reply}), but that could not be written down: {exc}") from exc
    return delivered


def _envelope(mail: Kept, order: Order) -> Envelope:
    envelope = mail.envelope
    if order.to:
        envelope = replace(envelope, recipients=tuple(Recipient(address) for address in order.to))
    if not envelope.recipients:
        raise StoreError("its recipients are not known; name one")
    if not "".join(envelope.addresses).isascii() and not envelope.smtputf8:
        envelope = replace(envelope, params=(*envelope.params, "SMTPUTF8"))
    return envelope


def record(directory: Path, action: str, mail_id: str, by: str, **facts: object) -> None:
    """One line for what a person did, in the log and in `actions.log` beside the mail. Raises OSError."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    line: dict[str, object] = {"time": now, "action": action, "id": mail_id, "by": by, **facts}
    log.info("%s", json.dumps(line))
    path = directory / _ACTIONS
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        durable_files.give_to_owner(path)
        os.write(fd, json.dumps(line).encode("ascii") + b"\n")
    finally:
        os.close(fd)
