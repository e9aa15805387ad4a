"""The log: one line per mail, our id first, in a form that people and machines read.

Values come from strangers, so everything beside plain characters is quoted and escaped: no CR, LF
or ESC reaches a terminal. How addresses are shown is the `Veil`'s matter. Lines are written by a
thread from a bounded buffer: a log that blocks, or a full disk, costs lines (counted), never mail.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _escaped
from typing import Any

from bridge.filter.outcome import Outcome, Record
from bridge.mail.reply import Reply
from bridge.observe.log_throttle import Flood
from bridge.observe.metrics import reason_of
from bridge.observe.redaction import FULL, Veil

_PLAIN = r"[A-Za-z0-9_.@:/+<>,=*~#%&\[\]$!?^{}|-]+"
_is_plain = re.compile(_PLAIN).fullmatch
_are_plain = re.compile("\n".join([_PLAIN] * 9)).fullmatch  # so many values, one to a line
_MAX_VALUE = 1000
_MAX_RECIPIENTS = 20
_MAX_LINES = 20_000
_MAX_WRITE = 64 * 1024
_BATCH_S = 0.05
_LEFTOVERS_S = 1.0  # how long the end of a flood may go unsaid
_SEVERITIES = {logging.DEBUG: 7, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}  # as in syslog; info is 6

# Ours, and plain by construction: never quoted.
_OURS = frozenset(
    (
        *("id", "session", "listener", "nrcpt", "size", "tenant", "decision", "action"),
        *("at", "accepted", "late", "would", "wait_ms", "scan_ms", "relay_ms", "error", "tls", "trace_id"),
    )
)


class MailLog:
    """One line per mail, straight to the writer: `logging` would cost as much again as the line."""

    def __init__(self, put: Callable[[str], None], as_json: bool = False, veil: Veil = FULL) -> None:
        self._put = put
        self._as_json = as_json
        self._veil = veil
        self._is_usual = not as_json and veil is FULL

    def decided(self, record: Record) -> None:
        """What became of this mail."""
        if self._is_usual and (line := _ordinary(record)):
            self._put(line)
            return
        fields = _fields(record)
        if self._veil is not FULL:
            fields |= _veiled(record, fields, self._veil)
        self._put(_json(fields) if self._as_json else _key_value(fields))


def _ordinary(record: Record) -> str:
    """The same as `_key_value` makes of `_fields`, in a third of the time; "" if anything is special about the mail."""
    tx, outcome = record.tx, record.outcome
    session, client, recipients = tx.session, tx.session.client, tx.envelope.recipients
    if outcome is None or (result := outcome.result) is None or outcome.replies or len(recipients) != 1 or record.at:
        return ""
    if any((record.would, record.listed, record.late, record.error, record.trace)) or record.tenant is not None:
        return ""
    sender, to = f"<{tx.envelope.sender}>", f"<{recipients[0].address}>"
    address, helo, ident, next_id = client.address, client.helo, client.ident, record.next_id
    message_id, verdict, ggrid = record.message_id, result.verdict, result.ggrid
    if not (address and helo and message_id and verdict and ggrid) or ident == "":
        return ""
    strange = f"{address}\n{helo}\n{sender}\n{to}\n{message_id}\n{verdict}\n{ggrid}\n{ident or 0}\n{next_id or 0}"
    if len(strange) > _MAX_VALUE or not _are_plain(strange) or session.tls is not None or client.login is not None:
        return ""
    return (
        f"id={tx.id} session={session.id} listener={session.listener} client={address} helo={helo} from={sender}"
        f" to={to} nrcpt=1 size={record.size} message_id={message_id} decision={result.decision} verdict={verdict}"
        f" action={outcome.action} reply={_escaped(_cut(str(outcome.reply)))} ggrid={ggrid}"
        f" wait_ms={record.wait_s * 1000:.1f} scan_ms={record.scan_s * 1000:.1f} relay_ms={record.relay_s * 1000:.1f}"
        f"{f' next_id={next_id}' if next_id else ''}{f' ident={ident}' if ident else ''}"
    )


def _fields(record: Record) -> dict[str, Any]:
    """In reading order. What is not known is left out, by itself or as None."""
    tx, outcome = record.tx, record.outcome
    session, envelope = tx.session, tx.envelope
    client, result = session.client, outcome.result if outcome else None
    fields: dict[str, Any] = {
        "id": tx.id,
        "session": session.id,
        "listener": session.listener,
        "client": client.address,
        "helo": client.helo,
        "from": f"<{envelope.sender}>",
        "to": _recipients(envelope.addresses),
        "nrcpt": len(envelope.recipients),
        "size": record.size,
        "message_id": record.message_id or None,
        "tenant": record.tenant,
    }
    if result is not None:
        fields["decision"] = result.decision
        fields["verdict"] = result.verdict or None
    fields["action"] = "cancelled" if outcome is None else outcome.action
    if record.would is not None:
        fields["would"] = record.would
    if record.at:
        fields["at"] = record.at
    if record.listed is not None:
        fields["list"], fields["entry"] = record.listed.name, record.listed.entry
    if record.late is not None:
        fields["late"] = record.late
    if outcome is not None:
        fields["reply"] = str(outcome.reply)
        if outcome.replies:
            fields["accepted"] = _accepted(outcome)
            fields["refused"] = _refused(envelope.addresses, outcome.replies)
    if result is not None:
        fields["ggrid"] = result.ggrid or None
    fields["wait_ms"] = round(record.wait_s * 1000, 1)
    fields["scan_ms"] = round(record.scan_s * 1000, 1)
    fields["relay_ms"] = round(record.relay_s * 1000, 1)
    if record.next_id:
        fields["next_id"] = record.next_id
    if record.trace is not None:
        fields["trace_id"] = record.trace.trace_id
    fields["ident"] = client.ident
    fields["login"] = client.login
    fields["tls"] = session.tls
    if record.error is not None:
        fields["error"] = reason_of(record.error)
        fields["why"] = str(record.error)
    return fields


def _veiled(record: Record, fields: dict[str, Any], veil: Veil) -> dict[str, Any]:
    """Those that name people, or may: a next hop's reply does."""
    envelope, outcome = record.tx.envelope, record.outcome
    addresses = tuple(map(veil.address, envelope.addresses))
    veiled = {"from": f"<{veil.address(envelope.sender)}>", "to": _recipients(addresses)}
    veiled |= {name: veil.text(fields[name]) for name in ("entry", "reply", "why", "helo") if fields.get(name)}
    if fields["message_id"]:
        veiled["message_id"] = f"<{veil.address(fields['message_id'].strip('<>'))}>"
    if fields["login"]:
        veiled["login"] = veil.address(fields["login"])
    if fields.get("refused") and outcome is not None:
        veiled["refused"] = veil.text(_refused(addresses, outcome.replies) or "")
    return veiled


def _recipients(addresses: tuple[str, ...]) -> str:
    shown = ",".join([f"<{address}>" for address in addresses[:_MAX_RECIPIENTS]])
    return shown if len(addresses) <= _MAX_RECIPIENTS else f"{shown},..."


def _accepted(outcome: Outcome) -> int | None:
    """How many recipients have it, if some do and some do not."""
    accepted = sum(reply.is_success for reply in outcome.replies)
    return accepted if 0 < accepted < len(outcome.replies) else None


def _refused(addresses: tuple[str, ...], replies: tuple[Reply, ...]) -> str | None:
    """Who was refused, and how, unless it is the same for all."""
    if len(set(replies)) == 1:
        return None
    refusals = [f"<{to}> {reply}" for to, reply in zip(addresses, replies, strict=True) if not reply.is_success]
    return "; ".join(refusals[:_MAX_RECIPIENTS]) or None


def _key_value(fields: dict[str, Any]) -> str:
    """`id=... from=<a@b> reply="250 2.0.0 Ok"`. What is not ours is text."""
    return " ".join(
        [
            f"{name}={value if name in _OURS or (len(value) <= _MAX_VALUE and _is_plain(value)) else _quoted(value)}"
            for name, value in fields.items()
            if value is not None
        ]
    )


def _json(fields: dict[str, Any]) -> str:
    line = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
    for name, value in fields.items():
        if value is not None:
            line[name] = _cut(value) if isinstance(value, str) else value
    return json.dumps(line)


class KeyValue(logging.Formatter):
    """Other lines than mails: `level=... logger=... msg="..."`."""

    def __init__(self, veil: Veil = FULL) -> None:
        super().__init__()
        self._veil = veil

    def format(self, record: logging.LogRecord) -> str:
        return _key_value(_line(record, self, self._veil))


class Json(KeyValue):
    """The same, one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        return _json(_line(record, self, self._veil))


class _Trace(str):
    """A traceback: ours, and worth more room than a stranger's words."""


def _line(record: logging.LogRecord, formatter: logging.Formatter, veil: Veil) -> dict[str, Any]:
    line = {"level": record.levelname.lower(), "logger": record.name, "msg": veil.text(record.getMessage())}
    if record.exc_info:
        line["trace"] = _Trace(veil.text(formatter.formatException(record.exc_info))[-4000:])
    return line


def _quoted(text: str) -> str:
    text = _cut(text)
    return text if _is_plain(text) else _escaped(text)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_VALUE or isinstance(text, _Trace) else text[: _MAX_VALUE - 3] + "..."


class LineWriter(logging.Handler):
    """Hands lines to a thread that writes them; when it cannot keep up, lines are lost and counted."""

    def __init__(self, fd: int, on_lost: Callable[[], None] = lambda: None, max_write: int = _MAX_WRITE) -> None:
        super().__init__()
        self._max_write = max_write
        self.flood = Flood()
        self.addFilter(self.flood)
        self._to_journal = is_journal(fd)
        self._fd = fd
        self._lines: deque[str] = deque()
        self._some = threading.Event()
        self._ended = False
        self.on_lost = on_lost
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # a log call with a mistake in it must not end what it reports on
            self.on_lost()
        else:
            self.put(line, _SEVERITIES.get(record.levelno, 6))

    def put(self, line: str, severity: int = 6) -> None:
        if len(self._lines) >= _MAX_LINES:
            self.on_lost()
            return
        self._lines.append(f"<{severity}>{line}" if self._to_journal else line)
        if not self._some.is_set():
            self._some.set()

    def _write(self) -> None:
        while not (self._ended and not self._lines):
            self._some.wait(_LEFTOVERS_S)
            for record in self.flood.leftovers():
                self.emit(record)
            if not self._ended and self._lines:
                time.sleep(_BATCH_S)  # a thread woken per line would take the event loop's turn each time
            self._some.clear()
            while self._lines:
                batch: list[str] = []
                size = 0
                while self._lines and (not batch or size + len(self._lines[0]) < self._max_write):
                    batch.append(self._lines.popleft())
                    size += len(batch[-1]) + 1
                self._put(("\n".join(batch) + "\n").encode("utf-8", "backslashreplace"), len(batch))

    def _put(self, data: bytes, count: int) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:  # a full disk, a closed pipe: mail goes on
            for _ in range(count):
                self.on_lost()

    def close(self) -> None:
        """Write what is left; a reader that has fallen asleep gets two seconds, once."""
        if not self._ended:
            self._ended = True
            self._some.set()
            self._thread.join(timeout=2.0)
            super().close()


def is_journal(fd: int) -> bool:
    """Whether journald reads this: then each line begins with its severity, which journald takes off again."""
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _is_file(fd: int) -> bool:
    """Whether a write comes whole, however long: the kernel lets one writer after the other into a file."""
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


class PlainWriter(logging.Handler):
    """Writes each line at once, or drops it when nobody would read it: a blocked log must not block us."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            severity = f"<{_SEVERITIES.get(record.levelno, 6)}>" if is_journal(2) else ""
            line = f"{severity}{self.format(record)}\n".encode("utf-8", "backslashreplace")
            if select.select([], [2], [], 0)[1]:
                os.write(2, line)
        except (OSError, ValueError):
            pass


def set_up(format_: str, level: str, shared: bool = False, veil: Veil = FULL) -> LineWriter:
    """Everything to standard error, in one form. aiosmtpd's own lines below warning are left out.

    When several processes write there, only short writes keep their lines apart, unless it is a file. Long ones are
    cheaper: for each the thread and the event loop wait for each other.
    """
    max_write = select.PIPE_BUF if shared and not _is_file(2) else _MAX_WRITE
    writer = LineWriter(2, max_write=max_write)  # standard error, also where Python found it closed
    _install(writer, format_, level, veil)
    return writer


def set_up_plain(format_: str, level: str, veil: Veil = FULL) -> None:
    """The same form without a thread, for a process that forks and says little."""
    _install(PlainWriter(), format_, level, veil)


def _install(handler: logging.Handler, format_: str, level: str, veil: Veil) -> None:
    handler.setFormatter((Json if format_ == "json" else KeyValue)(veil))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for noisy in ("mail.log", "mail.error", "asyncio", "uvicorn", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
