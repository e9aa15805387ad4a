"""The two forms of a log line: `key=value` for people, one JSON object per line for machines.

Most values come from outside, so everything except plain characters is quoted and escaped: no CR, LF
or ESC reaches a terminal, and no value can forge a line. Knows text only: `mail_log` knows mails,
`log_writer` knows files.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as _escape
from typing import Any

from bridge.mail.address import LoggedAddress
from bridge.observe.redaction import FULL, Redaction
from bridge.runtime.visible_text import visible, visible_lines

MAX_VALUE = 1000  # characters of one value; longer ones are cut
PLAIN = r"[A-Za-z0-9_.@:/+<>,=*~#%&\[\]$!?^{}|-]+"  # written as it is, without quotes
_is_plain = re.compile(PLAIN).fullmatch


def key_value(fields: Mapping[str, Any], never_quoted: Collection[str] = ()) -> str:
    """`id=... from=<a@b> reply="250 2.0.0 Ok"`. All values are text, except those of `never_quoted`."""
    return " ".join([f"{name}={value if name in never_quoted else _quoted(value)}" for name, value in fields.items()])


def as_json(fields: Mapping[str, Any]) -> str:
    """One JSON object that starts with the time."""
    cut = {name: _cut(value) if isinstance(value, str) else value for name, value in fields.items()}
    return json.dumps({"time": now(), **cut}).replace("\x7f", "\\u007f")  # JSON does not escape DEL


def now() -> str:
    """The time of a line, in UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def escaped(text: str) -> str:
    """Text that is not one plain word, as `key=value` writes it."""
    return _escape(_cut(text)).replace("\x7f", "\\u007f")


def _quoted(text: str) -> str:
    text = _cut(text)
    return text if _is_plain(text) else escaped(text)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_VALUE or isinstance(text, _Traceback) else text[: MAX_VALUE - 3] + "..."


class _Traceback(str):
    """Our own text, which may be longer than text from outside."""


class VisibleFormatter(logging.Formatter):
    """Lines without quotes, for processes that handle no mail: a message is one line of visible text."""

    def __init__(self, form: str, redaction: Redaction = FULL) -> None:
        super().__init__(form)
        self._redaction = redaction

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's name
        return visible(self._redaction.text(super().formatMessage(record)))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return visible_lines(self._redaction.text(super().formatException(ei)))


class KeyValueFormatter(logging.Formatter):
    """Lines that are not about one mail: `level=... logger=... msg="..."`."""

    def __init__(self, redaction: Redaction = FULL) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        return key_value(self._fields(record))

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        message = self._redaction.text(self._message(record))
        fields = {"level": record.levelname.lower(), "logger": record.name, "msg": message}
        if record.exc_info:
            trace = self._redaction.text(self.formatException(record.exc_info))
            fields["trace"] = _Traceback(trace[-4000:])
        return fields

    def _message(self, record: logging.LogRecord) -> str:
        """An address without a domain cannot be found in a text."""
        if self._redaction is FULL or not isinstance(record.args, tuple):
            return record.getMessage()
        hide = self._redaction.address
        args = tuple(hide(each) if isinstance(each, LoggedAddress) else each for each in record.args)
        return str(record.msg) % args if args else record.getMessage()


class JsonFormatter(KeyValueFormatter):
    """The same fields as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        return as_json(self._fields(record))


def quiet_libraries() -> None:
    """Log only their warnings and errors. HTTP clients log the URL of each request, which may contain a token."""
    aiosmtpd, http_clients = ("mail.log", "mail.error"), ("httpx2", "httpcore2", "urllib3")
    for noisy in (*aiosmtpd, *http_clients, "asyncio", "uvicorn", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
