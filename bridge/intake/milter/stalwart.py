"""Mail from Stalwart, whose "body" is the whole mail.

Stalwart's milter client sends the header fields first as fields, and then once more with the body
(its issue 2346, and its source up to 0.16). Rebuilt in the usual way, the header section would be
there twice, and an attachment that is a mail's only part would begin with text, so a scanner could
not decode it.

So the fields are held back until the beginning of the body is there. If the body begins with the
same header section, it is the mail, byte for byte, and the held fields are dropped. If not,
Stalwart has fixed this, and the mail is put together like any other.
"""

from __future__ import annotations

import re
from typing import Any

from bridge.intake.milter.mail import Mail
from bridge.mail.message import HEAD_LIMIT

_BLANK_LINE = re.compile(rb"\n\r?\n")
_FIELD_NAME = re.compile(rb"^([^\s:][^:\r\n]*?)[ \t]*:", re.MULTILINE)
_SLACK = 4096  # for white space that the fields lost


class WholeMail(Mail):
    """Decides at the first blank line of the body whether the body is the whole mail."""

    __slots__ = ("_held", "_start")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held: bytes | None = b""  # the fields; None once it is decided
        self._start = b""  # of the body

    def _write_head(self, block: bytes) -> None:
        if self._held is None:
            return self._write(block)
        self._held += block
        if len(self._held) > HEAD_LIMIT:  # no real header section is that long; bounds what is held
            self._decide(is_whole=False)
        return None

    def add_body(self, chunk: bytes) -> None:
        if self._in_head:
            self.end_headers()
        if self._held is None or self.refusal is not None:
            return super().add_body(chunk)
        self._start += chunk
        blank = _BLANK_LINE.search(self._start)
        if blank is not None or len(self._start) > 2 * len(self._held) + _SLACK:
            self._decide(_has_fields(self._start[: blank.start()] if blank else self._start, self._held))
        return None

    def end(self, chunk: bytes) -> None:
        self.add_body(chunk)
        if self._held is not None and self.refusal is None:
            self._decide(_has_fields(self._start, self._held))
        super().end(b"")

    def _decide(self, is_whole: bool) -> None:
        held, self._held = self._held or b"", None
        start, self._start = self._start, b""
        self._write(start if is_whole else held + start)


def _has_fields(start: bytes, fields: bytes) -> bool:
    """Whether the names of all these fields are in `start`, in order, each at the start of a line."""
    names = _FIELD_NAME.findall(fields)
    position, lines = 0, b"\n" + start
    for name in names:
        position = lines.find(b"\n" + name, position) + 1
        if not position:
            return False
    return bool(names)
