"""One report with everything that follows from it: rspamd and the scanning service learn, an address gets the mail,
the history and the event sinks record it, and it is counted. A large mail is read in pieces, because several people
report mail at the same time.

Used by `scanbridge report`, by the console and by the users' pages. Everything blocks; pages use a thread. Learning
comes first: if something after it fails, the person may report the mail again, and it is not learned twice.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Self

from bridge.cli.later_notes import LaterNotes
from bridge.cli.quarantine.session import Session
from bridge.cli.terminal import say
from bridge.config.model import Config
from bridge.daemon import feedback_wiring, wiring
from bridge.errors import BridgeError, ConfigError
from bridge.feedback.learners import Learners
from bridge.feedback.report import LearnableMail, Reported, ReportKind, ReportState
from bridge.feedback.rspamd_learning import LearningUnavailable
from bridge.feedback.store import ReportStore
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.message import Message
from bridge.mail.session import Client
from bridge.mail.session import Session as MailSession
from bridge.mail.transaction import Transaction, new_id
from bridge.quarantine.content import between
from bridge.quarantine.quarantine import MailNotFound, Quarantine
from bridge.quarantine.record import MailRecord

MAX_REPORTED = 50 * 1024 * 1024
_SEND_S = 300.0
_LINE = 57  # bytes in a line of Base64: RFC 2045 6.8 allows 76 characters
_keeping = threading.Lock()  # a mail that waits to be learned from is in memory as a whole, so only one at a time


@dataclass(frozen=True, slots=True)
class ReportedMail:
    """A mail, and what is known about it."""

    id: str  # ours; if it is unknown, a digest of the content
    content: Message  # closed by the caller
    key: str  # for each key and person, there is one report
    sender: str = ""
    recipients: tuple[str, ...] = ()
    listener: str = ""
    tenant: str = ""
    ggrid: str = ""
    client: str = ""

    @classmethod
    def of_file(cls, content: bytes, mail_id: str = "") -> ReportedMail:
        """`mail_id`: our id, if it is known. Whatever it is, mails that differ are reported separately."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        return cls(mail_id or digest, Message.of([content]), digest)

    @property
    def is_known(self) -> bool:
        return ":" not in self.id


class Reporter:
    def __init__(self, session: Session, store: ReportStore, learners: Learners | None, to: str | None) -> None:
        self._session = session
        self._store = store
        self._learners = learners
        self._to = to

    @classmethod
    def open(cls, conf: Config, state: Path) -> Self:
        """Raises ConfigError."""
        place = wiring.quarantine_place(conf, state)
        return cls.of(Session(conf, state, place.directory, Quarantine(place), LaterNotes(conf, state)))

    @classmethod
    def of(cls, session: Session) -> Self:
        """Raises ConfigError."""
        conf, state = session.config, session.state
        store = feedback_wiring.report_store(conf, state)
        return cls(session, store, feedback_wiring.learners(conf), feedback_wiring.report_to(conf))

    def close(self) -> None:
        self._store.close()

    def report(self, kind: ReportKind, mail: MailRecord, by: str) -> Reported:
        """A mail in the quarantine, without what we put above it."""
        try:
            chunks = self._session.quarantine.chunks(mail.id)
            content = Message.of(between(chunks, mail.head_size, MAX_REPORTED + mail.head_size))
        except MailNotFound:
            return _failed(mail.id, kind, "the mail is no longer in the quarantine")
        except (BridgeError, OSError) as exc:
            return _failed(mail.id, kind, str(exc))
        ggrid = str(mail.facts.get("ggrid") or "")
        envelope = mail.envelope
        with closing(content):
            found = ReportedMail(
                *(mail.id, content, mail.id, envelope.sender, envelope.addresses, mail.listener, mail.tenant, ggrid),
                client=mail.client.address or "",
            )
            return self.report_mail(kind, found, by)

    def report_mail(self, kind: ReportKind, mail: ReportedMail, by: str) -> Reported:
        """Report any mail: once for each mail and person."""
        try:
            if not self._store.begin(mail.key, by, kind):
                return Reported(mail.id, f"already reported as {kind.words}", True, ReportState.ALREADY)
        except BridgeError as exc:
            return _failed(mail.id, kind, str(exc))
        try:
            state, text = self._learn(kind, mail, by)
            sent = self._send(kind, mail, by)
            if state is not ReportState.WAITING:
                self._store.finish(mail.key, by, kind, state)
        except (BridgeError, OSError) as exc:
            self._forget(mail.key, by, kind)
            return _failed(mail.id, kind, str(exc))
        text = f"{text}; {sent}" if sent and text else text or sent
        self._tell(kind, mail, by, state, text)
        shown = f"reported as {kind.words}" + (f": {text}" if text else "")
        return Reported(mail.id, shown, True, state)

    # Private.

    def _learn(self, kind: ReportKind, mail: ReportedMail, by: str) -> tuple[ReportState, str]:
        """Raises TooManyWaiting, ReportsFailed."""
        if self._learners is None:
            return ReportState.NOTED, ""
        learnable = LearnableMail(
            *(mail.content, by, mail.sender, mail.recipients, mail.client, mail.tenant, mail.ggrid),
        )
        try:
            return self._learners.learn(kind, learnable)
        except LearningUnavailable as exc:
            with _keeping:
                self._store.wait(mail.key, by, kind, b"".join(mail.content.chunks()), learnable.about())
            return ReportState.WAITING, f"{self._learners.names} will learn from it later ({exc})"

    def _send(self, kind: ReportKind, mail: ReportedMail, by: str) -> str:
        """Raises BridgeError."""
        if self._to is None:
            return ""
        host = wiring.hostname(self._session.config)
        with closing(Message.of(_mail_about(kind, mail, self._to, by, host))) as message:
            asyncio.run(self._deliver(message, self._to))
        return f"sent to {self._to}"

    async def _deliver(self, message: Message, to: str) -> None:
        relay = wiring.relay(self._session.config)
        if relay is None:
            raise ConfigError("no next hop is configured: set relay.next_hop")
        now = asyncio.get_running_loop().time()
        try:
            envelope, own_id = Envelope("", (Recipient(to),)), new_id()
            session = MailSession(own_id, "", "report", Client())
            await relay.deliver(Transaction(own_id, session, envelope, message, now, now + _SEND_S), b"", now + _SEND_S)
        finally:
            await relay.close()

    def _forget(self, key: str, by: str, kind: ReportKind) -> None:
        try:
            self._store.forget(key, by, kind)
        except BridgeError:  # then it counts as interrupted after a few minutes
            pass

    def _tell(self, kind: ReportKind, mail: ReportedMail, by: str, state: ReportState, text: str) -> None:
        """The history, the audit trail and the event sinks; their failures change nothing."""
        replace(self._session, operator=by).note_report(mail.id, kind.words, text, is_known=mail.is_known)
        conf = self._session.config
        if not conf.events:
            return
        from bridge.daemon.event_wiring import report_report
        from bridge.events.event import Report

        made = Report(mail.id, mail.sender, mail.recipients, by, str(kind), str(state), mail.listener, mail.tenant)
        if problem := report_report(conf, self._session.state, made):
            say(f"{mail.id}: reported, but no event could be queued for the sinks: {problem}", err=True)


def _failed(mail_id: str, kind: ReportKind, why: str) -> Reported:
    return Reported(mail_id, f"not reported as {kind.words}: {why}", False, ReportState.FAILED)


def _mail_about(kind: ReportKind, mail: ReportedMail, to: str, by: str, host: str) -> Iterator[bytes]:
    """The mail as an attachment that no program opens automatically; in pieces."""
    report = EmailMessage(policy=SMTP)
    name = mail.id.replace(":", "-")
    report["From"], report["To"] = f"scanbridge@{host}", to
    report["Subject"] = f"{kind.words.capitalize()}: {mail.id[:40]}"
    report["Date"], report["Message-ID"] = formatdate(), make_msgid(domain=host)
    report["Auto-Submitted"] = "auto-generated"  # RFC 3834: no automatic replies
    report.set_content(f"{by} reported this mail as {kind.words}.\n\nid: {mail.id}\nggrid: {mail.ggrid}\n")
    report.add_attachment(b"", "application", "octet-stream", filename=f"{name}.eml")
    before, end, after = report.as_bytes().rpartition(f"\r\n--{report.get_boundary()}--".encode())
    yield before
    yield from _in_base64(mail.content.chunks())
    yield end + after


def _in_base64(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """In lines, each with its CRLF. One piece for each chunk."""
    rest = b""
    for chunk in chunks:
        rest += chunk
        whole = len(rest) // _LINE * _LINE
        yield _lines(rest[:whole])
        rest = rest[whole:]
    yield _lines(rest)


def _lines(content: bytes) -> bytes:
    lines = (content[start : start + _LINE] for start in range(0, len(content), _LINE))
    return b"".join(binascii.b2a_base64(line, newline=False) + b"\r\n" for line in lines)
