"""A mail server whose "body" is the whole mail: Stalwart, whose milter client sends the fields first as fields, and
then once more with the body (its issue 2346, and its source up to 0.16).

Rebuilt in the usual way the head would stand there twice, and an attachment that is a mail's only part would begin
with text: a scanner could no longer decode it. So the fields wait until the body's beginning is there; if that is
the same head, the body is the mail, byte for byte, and what waited is dropped. If it is not, the mail server has
learned better, and the mail is put together like any other.
"""

from __future__ import annotations

import re
from typing import Any

from bridge.intake.milter.mail import Mail
from bridge.mail.message import HEAD_LIMIT

_BLANK = re.compile(rb"\n\r?\n")
_NAME = re.compile(rb"^([^\s:][^:\r\n]*?)[ \t]*:", re.MULTILINE)
_SLACK = 4096  # white space that the fields have lost


class WholeMail(Mail):
    """Decides at the first blank line of the body."""

    __slots__ = ("_held", "_start")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held: bytes | None = b""  # the fields; None once it is decided
        self._start = b""

    def _write_head(self, block: bytes) -> None:
        if self._held is None:
            return self._write(block)
        self._held += block
        if len(self._held) > HEAD_LIMIT:  # no honest head; what is held is bounded
            self._decide(is_whole=False)
        return None

    def body(self, chunk: bytes) -> None:
        if self._in_head:
            self.end_of_headers()
        if self._held is None or self.refusal is not None:
            return super().body(chunk)
        self._start += chunk
        blank = _BLANK.search(self._start)
        if blank is not None or len(self._start) > 2 * len(self._held) + _SLACK:
            self._decide(_is_same(self._held, self._start[: blank.start()] if blank else self._start))
        return None

    def end(self, chunk: bytes) -> None:
        self.body(chunk)
        if self._held is not None and self.refusal is None:
            self._decide(_is_same(self._held, self._start))
        super().end(b"")

    def _decide(self, is_whole: bool) -> None:
        held, self._held = self._held or b"", None
        start, self._start = self._start, b""
        self._write(start if is_whole else held + start)


def _is_same(fields: bytes, start: bytes) -> bool:
    """Whether the names of all fields stand there, in their order, each at the start of a line."""
    names = _NAME.findall(fields)
    place, lines = 0, b"\n" + start
    for name in names:
        place = lines.find(b"\n" + name, place) + 1
        if not place:
            return False
    return bool(names)
