"""Changes that a scanner requests along with its decision, made safe: header fields, subject, text of a refusal.

Only what the operator allows is kept (`scanner.allow_changes`). A scanner repeats what a sender wrote, so a value is
checked as if the sender had written it: nothing in it can end a line, hide another field, or change how the body is
read. A change that fails this check is left out; the decision stands. If this is wrong, a sender adds header fields of
any kind to a mail, or writes a second line into our reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from email.header import Header
from typing import Any

from bridge.api.changes import Changes

ADD, REMOVE, SUBJECT, REPLY_TEXT = "add_headers", "remove_headers", "subject", "reply_text"
KINDS = (ADD, REMOVE, SUBJECT, REPLY_TEXT)

MAX_FIELDS = 100  # of each kind in one answer
_MAX_VALUE = 8192
_MAX_LINE = 998  # RFC 5322 2.1.1
_MAX_SUBJECT = 900
_MAX_REPLY = 200

_NAME = re.compile(r"[!-9;-~]{1,76}")
_FOLD = re.compile(r"\r?\n(?=[ \t]+[^ \t\r\n])")
_UNSAFE = re.compile(r"[^\x20-\x7e\t]")
# They determine how the body is read, or trace the mail's path: changing them would change what was scanned.
_FIXED = re.compile(r"(?i)content-.*|mime-version|received|return-path|bcc|resent-bcc")


class Wishes:
    """Collects the allowed changes that one answer requests."""

    def __init__(self, allowed: frozenset[str], prefix: str) -> None:
        self._allowed = allowed
        self._prefix = prefix.lower()  # of the fields that only we may write
        self._add: list[tuple[int, str, str]] = []
        self._remove: list[tuple[str, int]] = []
        self._subject: str | None = None
        self._reply_text = ""

    def add(self, name: Any, value: Any, order: Any = 0) -> None:
        """One header field; a small `order` comes first."""
        if ADD not in self._allowed or len(self._add) >= MAX_FIELDS or not self._may_touch(name):
            return
        text = _field_value(value)
        if text is not None:
            self._add.append((order if type(order) is int else 0, name, text))

    def replace(self, name: Any, value: Any) -> None:
        """One header field instead of all others of this name."""
        if ADD in self._allowed and self._may_touch(name) and _field_value(value) is not None:
            self._remove.append((name.lower(), 0))
            self.add(name, value)

    def remove(self, name: Any, which: Any) -> None:
        """0: all fields of this name; otherwise the number of one, counted from 1, or from the end (-1)."""
        numbers = which if isinstance(which, list) else [which]
        if REMOVE not in self._allowed or not self._may_touch(name):
            return
        for number in numbers[:MAX_FIELDS]:
            if type(number) is int and abs(number) < 10_000 and len(self._remove) < MAX_FIELDS:
                self._remove.append((name.lower(), number))

    def subject(self, value: Any) -> None:
        if SUBJECT not in self._allowed or not isinstance(value, str):
            return
        text = _one_line(value)[:_MAX_SUBJECT]
        if not text.isascii():  # RFC 2047: several encoded words, each on its own line
            text = Header(text, "utf-8", maxlinelen=76, header_name="Subject").encode(linesep="\r\n")
        self._subject = text

    def reply_text(self, value: Any) -> None:
        if REPLY_TEXT in self._allowed and isinstance(value, str):
            self._reply_text = _UNSAFE.sub("?", _one_line(value))[:_MAX_REPLY].strip()

    def found(self) -> Changes | None:
        """None if there is nothing to change: the usual case."""
        if not (self._add or self._remove or self._subject is not None or self._reply_text):
            return None
        add = tuple((name, text) for _, name, text in sorted(self._add, key=lambda field: field[0]))
        return Changes(add, tuple(self._remove), self._subject, self._reply_text)

    def _may_touch(self, name: Any) -> bool:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None or _FIXED.fullmatch(name) is not None:
            return False
        return not name.lower().startswith(self._prefix)


def _field_value(value: Any) -> str | None:
    """Printable ASCII, folded as it came, because a signature may cover its spaces; None if it cannot be a field."""
    if not isinstance(value, str) or len(value) > _MAX_VALUE:
        return None
    lines = _FOLD.split(value.strip())
    if not lines[0] or any("\r" in line or "\n" in line for line in lines):
        return None
    text = "\r\n".join(_UNSAFE.sub("?", line) for line in lines)
    return text if _has_short_lines(text) else None


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.split()))


def _has_short_lines(text: str) -> bool:
    return all(len(line) < _MAX_LINE - 80 for line in text.split("\r\n"))


def names(symbols: Iterable[Any], limit: int, length: int = 100) -> Iterator[str]:
    """Names that a scanner gives to what it found, as tags: printable, short, and not too many."""
    count = 0
    for symbol in symbols:
        if isinstance(symbol, str) and symbol:
            yield (symbol if symbol.isascii() and symbol.isprintable() else _UNSAFE.sub("?", symbol))[:length]
            count += 1
            if count >= limit:
                return
