"""A Maildir as the next hop: for the embedded default, and where no mail server follows.

All recipients share one file in `new`, with a standard Maildir name. The mail is preceded by Return-Path (the
envelope sender) and one X-Original-To per recipient; Delivered-To is left to mail servers, whose loop
detection reads it. The content keeps its CRLF line ends: Maildirs usually have LF, and readers accept both,
but these are the sender's bytes (DKIM, attachments).

250 means: written, fsynced, renamed into `new`, directory fsynced.
"""

from __future__ import annotations

import math
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

from bridge.mail.envelope import Envelope
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.relay.client_replies import LATE
from bridge.relay.commands import BAD_ADDRESS
from bridge.relay.who_gets_the_mail import Delivered
from bridge.runtime import durable_files
from bridge.runtime.threads import Threads

FULL = Reply(452, "4.3.1", "No space to deliver the mail, try again later")
FAILED = Reply(451, "4.3.0", "The mail could not be delivered, try again later")
_threads = Threads("maildir")


class Maildir:
    """See `relay.Relay`."""

    def __init__(self, path: Path, hostname: str, threads: Threads | None = None) -> None:
        self._path = path
        self._threads = threads or _threads  # shared by all Maildirs
        self._hostname = hostname.replace("/", r"\057").replace(":", r"\072")

    async def deliver(self, tx: Transaction, head: bytes, deadline: float) -> Delivered:
        top = _trace_fields(tx.envelope) + head
        try:
            await durable_files.in_thread(lambda stop: self._store(tx, top, stop), deadline, self._threads)
        except durable_files.Stopped as exc:
            raise NextHopError(LATE, "maildir: deadline passed") from exc
        except OSError as exc:
            raise NextHopError(FULL if exc.errno in durable_files.FULL else FAILED, f"maildir: {exc}") from exc
        reply = Reply(250, "2.0.0", f"Ok: queued as {tx.id}")
        return Delivered(reply, tx.id, (reply,) * len(tx.envelope.recipients))

    async def probe(self) -> tuple[str, ...]:
        """Check that mail can be written. Raises NextHopError."""
        try:
            await durable_files.in_thread(self._probe, math.inf, self._threads)
        except OSError as exc:
            raise NextHopError(FULL if exc.errno in durable_files.FULL else FAILED, f"maildir: {exc}") from exc
        return ("MAILDIR",)

    async def close(self) -> None:
        """Nothing is open between mails."""

    def _store(self, tx: Transaction, top: bytes, stop: durable_files.Stop) -> None:
        self._make_directories()
        name = f"{int(time.time())}.{tx.id}"
        try:
            self._store_as(f"{name}.{self._hostname}", tx, top, stop)
        except FileExistsError:  # another mail, or another part of this one, has this id in this second
            self._store_as(f"{name}_{secrets.token_hex(4)}.{self._hostname}", tx, top, stop)

    def _store_as(self, name: str, tx: Transaction, top: bytes, stop: durable_files.Stop) -> None:
        temporary, final = self._path / "tmp" / name, self._path / "new" / name
        durable_files.write(temporary, _content(top, tx), stop.check)
        ours = temporary  # to remove if a step fails; never another mail with this name
        try:
            stop.check()
            durable_files.rename_new(temporary, final)
            ours = final
            durable_files.sync_directory(final.parent)
            stop.confirm()
        except BaseException:  # the client is not told 250, so it sends the mail again
            durable_files.remove(ours)
            raise

    def _make_directories(self) -> None:
        for directory in (self._path, self._path / "tmp", self._path / "new", self._path / "cur"):
            durable_files.make_directory(directory)

    def _probe(self, stop: durable_files.Stop) -> None:
        self._make_directories()
        probe = self._path / "tmp" / f"{int(time.time())}.probe-{os.getpid()}.{self._hostname}"
        durable_files.write(probe, [b"\r\n"], stop.check)
        probe.unlink()


def _trace_fields(envelope: Envelope) -> bytes:
    fields = [f"Return-Path: <{envelope.sender}>"]
    fields += [f"X-Original-To: {address}" for address in envelope.addresses]
    text = "\r\n".join(fields) + "\r\n"
    if not len(fields) == text.count("\r") == text.count("\n"):  # the intake refuses such addresses
        raise NextHopError(BAD_ADDRESS, is_about_recipient=True)
    return text.encode("utf-8", "replace")


def _content(top: bytes, tx: Transaction) -> Iterator[bytes]:
    yield top
    yield from tx.message.chunks()
