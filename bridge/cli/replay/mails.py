"""The mails to replay, with their envelopes: from the quarantine, from files, directories and Maildirs.

A mail is read when its turn comes, so that memory does not grow with the number of mails. The scanner gets it as it
arrived: without the header fields that we added. Those fields say what was decided then. Nothing here writes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bridge.api.scanning import MAX_MESSAGE_BYTES, AnalysisRequest, BorderMtaData
from bridge.cli.mail_file import as_sent, mbox_problem
from bridge.cli.replay.judgement import Judgement
from bridge.errors import BridgeError, MessageTooLarge
from bridge.intake.smtp.paths import parse_path
from bridge.mail.address import domain_of
from bridge.mail.header_fields import field_named, fields_with_prefix
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.quarantine import record
from bridge.quarantine.content import beginning
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.record import MailRecord, StoredRecord
from bridge.runtime import durable_files, root_as_owner

DEFAULT_RECIPIENT = "postmaster"

_MAX_FILE = MAX_MESSAGE_BYTES + 1024 * 1024  # with the header fields that we add
_MAX_RECORD = 16 * 1024 * 1024
# How files written by gzip, bzip2, xz, zstd and lz4 begin.
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")
_RECORDED = frozenset({"deliver", "quarantine", "bounce", "drop", "undecided"})


class NoEnvelope(BridgeError):
    """A mail whose envelope is not known cannot be replayed."""


class Compressed(BridgeError):
    """Dovecot can store mail in this way."""


class SeveralMails(BridgeError):
    """A mailbox in one file."""


@dataclass(frozen=True, slots=True)
class StoredMail:
    """One mail, as the scanner gets it."""

    content: bytes
    request: AnalysisRequest
    envelope: str  # where it comes from: record, options, header, default
    before: Judgement | None  # what was decided when it arrived
    subject: str = ""


class Source(Protocol):
    """Where one mail is."""

    @property
    def name(self) -> str: ...

    def read(self) -> StoredMail:
        """Blocks. Raises BridgeError, OSError."""


@dataclass(frozen=True, slots=True)
class GivenEnvelope:
    """What the operator says about the envelopes of files; None: what the mail says."""

    sender: str | None = None
    recipients: tuple[str, ...] = ()
    remote_address: str | None = None
    helo: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the configuration says about mail in files."""

    prefix: str = "X-Scan-"
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)
    default_tenant: str | None = None

    def tenant_of(self, recipient: str) -> str | None:
        return self.tenant_by_domain.get(domain_of(recipient), self.default_tenant)


@dataclass(frozen=True, slots=True)
class QuarantinedMail:
    found: MailRecord
    quarantine: Quarantine

    @property
    def name(self) -> str:
        return self.found.id

    def read(self) -> StoredMail:
        mail = self.found
        content = beginning(self.quarantine.chunks(mail.id), _MAX_FILE + mail.head_size)
        return _recorded(mail, content)


@dataclass(frozen=True, slots=True)
class FileMail:
    path: Path
    given: GivenEnvelope
    known: Known
    is_named: bool = False  # by the operator: then it may be a link

    @property
    def name(self) -> str:
        return str(self.path)

    def read(self) -> StoredMail:
        with root_as_owner.as_operator():
            return self._read()

    def _read(self) -> StoredMail:
        path = self.path.resolve() if self.is_named else self.path
        raw, _ = durable_files.read(path, _MAX_FILE, of_anyone=True)
        if raw.startswith(_COMPRESSED):
            raise Compressed("it is compressed, so the scanner would not see the mail in it: decompress it first")
        if problem := mbox_problem(raw):
            raise SeveralMails(problem)
        exported = _exported(path)
        if exported is not None and self.given == GivenEnvelope():
            return _recorded(exported, raw)
        content = as_sent(raw)
        head = _head(content)
        stripped = fields_with_prefix(self.known.prefix).remove(head)
        request, where = self._request(head)
        before = _decided(head, self.known.prefix)
        return StoredMail(_limited(stripped + content[len(head) :]), request, where, before, record.subject(head))

    def _request(self, head: bytes) -> tuple[AnalysisRequest, str]:
        given = self.given
        senders, recipients = _addresses(head, "Return-Path", is_sender=True)[:1], _recipients(head)
        sender = given.sender if given.sender is not None else "".join(senders)
        to = given.recipients or recipients or (DEFAULT_RECIPIENT,)
        where = "options" if given.recipients else "header" if recipients else "default"
        border = BorderMtaData(sender, to, given.remote_address, given.helo)
        return AnalysisRequest(border, self.known.tenant_of(to[0])), where


def find_files(paths: tuple[Path, ...], given: GivenEnvelope, known: Known) -> Iterator[FileMail]:
    """The files that are given; for a directory, the .eml files in and below it; for a Maildir, all its mail."""
    for path in paths:
        for found in sorted(_mails_below(path)) if path.is_dir() else [path]:
            yield FileMail(found, given, known, is_named=found is path)


def _mails_below(directory: Path) -> Iterator[Path]:
    """Also folders that cannot be read: each counts as a mail that cannot be read."""
    closed: list[OSError] = []
    for place, folders, files in os.walk(directory, onerror=closed.append):  # does not follow links
        here = Path(place)
        is_maildir = here.name in ("cur", "new") and (here.parent / "cur").is_dir() and (here.parent / "new").is_dir()
        if "cur" in folders and "new" in folders and "tmp" in folders:
            folders.remove("tmp")  # mail that is not complete
        for name in files:
            if (is_maildir and not name.startswith(".")) or name.lower().endswith(".eml"):
                yield here / name
    yield from (Path(str(problem.filename)) for problem in closed)


def _recorded(mail: MailRecord, stored: bytes) -> StoredMail:
    if mail.is_damaged or not mail.envelope.recipients:
        raise NoEnvelope("its record is damaged, so its envelope is unknown")
    client = (mail.client.address, mail.client.helo) if mail.is_client_named else (None, None)
    border = BorderMtaData(mail.envelope.sender, mail.envelope.addresses, *client)
    request = AnalysisRequest(border, mail.tenant or None)
    return StoredMail(_limited(stored[mail.head_size :]), request, "record", _decision_of(mail), mail.subject)


def _decision_of(mail: MailRecord) -> Judgement:
    if mail.decision not in _RECORDED or "decision" not in mail.facts:
        return Judgement(problem=mail.decision or "unknown")
    return Judgement(mail.decision, str(mail.facts.get("verdict") or ""), mail.tags)


def _exported(path: Path) -> MailRecord | None:
    """The record that `quarantine export` has put next to the mail."""
    if path.suffix != ".eml" or not record.ID.fullmatch(path.stem):
        return None
    try:
        metadata, at = durable_files.read(path.with_suffix(".json"), _MAX_RECORD, of_anyone=True)
    except OSError:
        return None
    found = record.read(StoredRecord(path.stem, metadata, b"", at))
    return None if found.is_damaged else found


def _limited(content: bytes) -> bytes:
    if len(content) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge("larger than the 50 MiB that the service accepts")
    return content


def _head(content: bytes) -> bytes:
    message = Message(Spool(len(content), len(content)))
    message.write(content)
    try:
        return message.head()
    finally:
        message.close()


def _recipients(head: bytes) -> tuple[str, ...]:
    """That of the last delivery; else those of our own Maildir, or of Postfix before alias expansion."""
    return _addresses(head, "Delivered-To")[:1] or _addresses(head, "X-Original-To")


def _addresses(head: bytes, name: str, *, is_sender: bool = False) -> tuple[str, ...]:
    found = []
    for value in field_named(name).find(head):
        path = parse_path(value.value.strip(), syntax="")
        if not isinstance(path, Reply) and not path.params and (path.address or is_sender):
            found.append(path.address)
    return tuple(dict.fromkeys(found))


def _decided(head: bytes, prefix: str) -> Judgement | None:
    """What our own fields say; a forged one was removed when the mail passed the bridge."""
    decision, verdict, tags, unscanned = (
        _value(head, prefix + name) for name in ("Decision", "Verdict", "Tags", "Unscanned")
    )
    if decision:
        return Judgement(decision, verdict, tuple(filter(None, tags.split(", "))))
    return Judgement(problem=unscanned) if unscanned else None


def _value(head: bytes, name: str) -> str:
    found = field_named(name).first(head)
    return "" if found is None else found.value.decode("utf-8", "replace").strip()
