"""Mail from Stalwart, whose "body" is the whole mail.

Stalwart's milter client sends the header fields first as fields, and then once more with the body
(its issue 2346, and its source up to 0.16). Rebuilt in the usual way, the header section would be
there twice, and an attachment that is a mail's only part would begin with text, so a scanner could
not decode it.

So the fields are held back until the beginning of the body is there. If their names are in its
header section, the body is the mail, byte for byte, and the held fields are dropped. If not, nobody
can tell what Stalwart delivers: its client wrote both, so nothing is guessed, and the mail is refused.
A Stalwart that no longer repeats the fields would have all its mail deferred, and needs another profile.
If this is wrong, the scanner reads a different mail from the one that is delivered.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from bridge.filter.policy import LONG_HEAD
from bridge.intake.milter.mail import Mail
from bridge.mail.message import HEAD_LIMIT
from bridge.mail.reply import Reply

log = logging.getLogger(__name__)


UNCLEAR = Reply(451, "4.6.0", "The header section cannot be distinguished from the body, try again later")

_BLANK_LINE = re.compile(rb"\n\r?\n")
_SLACK = 4096  # for white space that the fields lost


class WholeMail(Mail):
    """Checks at the first blank line of the body that the body is the whole mail."""

    __slots__ = ("_held", "_start")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._held: bytes | None = b""  # the fields; None once it is decided
        self._start = b""  # of the body

    def _write_head(self, block: bytes) -> None:
        assert self._held is not None  # no field comes after the body
        self._held += block
        if len(self._held) > HEAD_LIMIT:  # no real header section is that long; bounds what is held
            self._limits.on_hit("header")
            self.refuse(LONG_HEAD)

    def add_body(self, chunk: bytes) -> None:
        if self._in_head:
            self.end_headers()
        if self._held is None or self.refusal is not None:
            return super().add_body(chunk)
        self._start += chunk
        blank = _BLANK_LINE.search(self._start)
        if blank is not None or len(self._start) > 2 * len(self._held) + _SLACK:
            self._decide(self._start[: blank.start()] if blank else self._start)
        return None

    def end(self, chunk: bytes) -> None:
        self.add_body(chunk)
        if self._held is not None and self.refusal is None:
            self._decide(self._start)
        super().end(b"")

    def refuse(self, reply: Reply) -> None:
        super().refuse(reply)
        self._held, self._start = None, b""

    def _decide(self, head: bytes) -> None:
        held, self._held = self._held or b"", None
        start, self._start = self._start, b""
        if _has_fields(head, held):
            self._write(start)
        else:
            log.warning(
                "a mail was deferred: its body does not repeat the header fields, although Stalwart normally repeats "
                "them; if all mail is deferred, choose another profile for this server"
            )
            self.refuse(UNCLEAR)


def _has_fields(head: bytes, fields: bytes) -> bool:
    """Whether all these fields are in `head`, by name and in order."""
    names = [_name(line) for line in fields.split(b"\n") if line[:1] not in (b"", b" ", b"\t", b"\r")]
    lines = map(_name, head.split(b"\n"))
    return bool(names) and all(name in lines for name in names)  # each look-up continues after the last one


def _name(line: bytes) -> str:
    """As Stalwart sends it: without the white space around it, of which Unicode has many kinds."""
    return line.partition(b":")[0].decode("utf-8", "replace").strip().lower()
