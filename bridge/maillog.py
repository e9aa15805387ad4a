"""The log: one line per mail, our id first, in a form that people and machines read.

Values come from strangers, so everything beside plain characters is quoted and escaped: no CR, LF
or ESC reaches a terminal. Lines are written by a thread from a bounded buffer: a log that
blocks, or a full disk, costs lines (counted), never mail.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from bridge.filter.decide import Record
from bridge.metrics import reason_of

_PLAIN = re.compile(r"[A-Za-z0-9_.@:/+<>,=*~#%&\[\]$!?^{}|-]+")
_MAX_VALUE = 1000
_MAX_RECIPIENTS = 20
_MAX_LINES = 20_000

mail = logging.getLogger("scanbridge.mail")


def decided(record: Record) -> None:
    """The line of one mail."""
    if mail.isEnabledFor(logging.INFO):
        mail.info("", extra={"fields": _fields(record)})


def _fields(record: Record) -> dict[str, Any]:
    """In reading order. What is not known is left out."""
    tx, outcome = record.tx, record.outcome
    client, result = tx.session.client, outcome.result if outcome else None
    fields = {
        "id": tx.id,
        "session": tx.session.id,
        "listener": tx.session.listener,
        "client": client.address,
        "helo": client.helo,
        "from": f"<{tx.envelope.sender}>",
        "to": _recipients(tx.envelope.addresses),
        "nrcpt": len(tx.envelope.recipients),
        "size": record.size,
        "tenant": record.tenant,
        "decision": str(result.decision) if result else None,
        "verdict": (result.verdict or None) if result else None,
        "action": str(outcome.action) if outcome else "cancelled",
        "reply": str(outcome.reply) if outcome else None,
        "ggrid": (result.ggrid or None) if result else None,
        "wait_ms": round(record.wait_s * 1000, 1),
        "scan_ms": round(record.scan_s * 1000, 1),
        "relay_ms": round(record.relay_s * 1000, 1),
        "next_id": record.next_id or None,
        "ident": client.ident,
        "login": client.login,
        "tls": tx.session.tls,
        "error": None if record.error is None else reason_of(record.error),
        "why": None if record.error is None else str(record.error),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _recipients(addresses: tuple[str, ...]) -> str:
    shown = ",".join(f"<{address}>" for address in addresses[:_MAX_RECIPIENTS])
    return shown if len(addresses) <= _MAX_RECIPIENTS else f"{shown},..."


class KeyValue(logging.Formatter):
    """`id=... from=<a@b> reply="250 2.0.0 Ok"`; other lines are `level=... logger=... msg="..."`."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_value(value)}" for name, value in _line(record, self).items())


class Json(logging.Formatter):
    """The same, one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": self.formatTime(record), **_line(record, self)}
        return json.dumps(fields)


def _line(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    fields: dict[str, Any] | None = getattr(record, "fields", None)
    if fields is not None:
        return fields
    line = {"level": record.levelname.lower(), "logger": record.name, "msg": record.getMessage()}
    if record.exc_info:
        line["trace"] = formatter.formatException(record.exc_info)[-4000:]
    return line


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    if len(text) > _MAX_VALUE:
        text = text[: _MAX_VALUE - 3] + "..." if not text.startswith("Traceback") else text
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class LineWriter(logging.Handler):
    """Hands lines to a thread that writes them; when it cannot keep up, lines are lost and counted."""

    def __init__(self, fd: int, on_lost: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._fd = fd
        self._lines: deque[str] = deque()
        self._some = threading.Event()
        self._ended = False
        self.on_lost = on_lost
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._lines) >= _MAX_LINES:
            self.on_lost()
            return
        self._lines.append(self.format(record))
        if not self._some.is_set():
            self._some.set()

    def _write(self) -> None:
        while not (self._ended and not self._lines):
            self._some.wait()
            self._some.clear()
            while self._lines:
                batch = [self._lines.popleft() for _ in range(min(len(self._lines), 500))]
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
        self._ended = True
        self._some.set()
        self._thread.join(timeout=5.0)
        super().close()


def set_up(format_: str, level: str) -> LineWriter:
    """Everything to standard error, in one form. aiosmtpd's own lines below warning are left out."""
    writer = LineWriter(sys.stderr.fileno())
    writer.setFormatter(Json() if format_ == "json" else KeyValue())
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
    root.addHandler(writer)
    root.setLevel(level.upper())
    mail.setLevel(logging.INFO if level != "debug" else logging.DEBUG)
    for noisy in ("mail.log", "mail.error", "asyncio", "uvicorn", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return writer
