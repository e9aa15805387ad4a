"""Reply: what the client receives. A code, an enhanced status, one or more lines of text.

The first digits of enhanced status and code must agree; that is enforced here, so that a `451 5.x.x`
cannot be built anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from bridge.runtime.value import value

_ENHANCED = re.compile(r"([245]\.\d{1,3}\.\d{1,3})(?:\s+|$)")
_UNPRINTABLE = re.compile(r"[^\t\x20-\x7e]")


@value
class Reply:
    """One SMTP reply, e.g. Reply(451, "4.3.2", "Try again later")."""

    code: int
    status: str  # enhanced status code (RFC 3463), or ""
    text: str  # lines separated by "\n"
    is_foreign: bool = field(default=False, compare=False)  # another server's own words: passed on without our id
    # Built once: most replies are constants, and the others are sent, logged and recorded.
    _wire: bytes = field(default=b"", init=False, repr=False, compare=False)
    _shown: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 200 <= self.code <= 599:
            raise ValueError("a reply code has three digits, 200 to 599")
        if self.status and self.status[0] != str(self.code)[0]:
            raise ValueError("enhanced status and code disagree")

    @property
    def is_success(self) -> bool:
        return self.code < 300

    @property
    def is_temporary(self) -> bool:
        return 400 <= self.code < 500

    def lines(self) -> list[str]:
        """The text lines with their enhanced status, without the code."""
        prefix = f"{self.status} " if self.status else ""
        return [prefix + _UNPRINTABLE.sub("?", line) for line in self.text.split("\n")]

    def to_bytes(self) -> bytes:
        """As sent to the client, with CRLF."""
        if not self._wire:
            if "\n" in self.text:
                *others, last = self.lines()
                wire = "".join(f"{self.code}-{line}\r\n" for line in others) + f"{self.code} {last}\r\n"
            else:
                wire = f"{self}\r\n"
            object.__setattr__(self, "_wire", wire.encode("ascii"))
        return self._wire

    def __str__(self) -> str:
        if not self._shown:
            object.__setattr__(self, "_shown", self._show())
        return self._shown

    def _show(self) -> str:
        if self.text.isascii() and self.text.isprintable():  # one line, and nothing to replace: nearly every reply
            return f"{self.code} {self.status} {self.text}" if self.status else f"{self.code} {self.text}"
        return f"{self.code} " + " / ".join(self.lines())

    @classmethod
    def from_lines(cls, code: int, lines: list[str]) -> Reply:
        """Build from another server's reply lines, without their codes."""
        match = _ENHANCED.match(lines[0]) if lines else None
        if match is None or match.group(1)[0] != str(code)[0]:
            return cls(code, "", "\n".join(lines), is_foreign=True)
        status = match.group(1)
        text = "\n".join(line.removeprefix(status).lstrip(" ") for line in lines)
        return cls(code, status, text, is_foreign=True)


def weightiest(replies: Iterable[Reply]) -> Reply | None:
    """The one refusal that a client receives for several recipients, chosen so that no recipient loses the mail.

    A temporary refusal wins, because the mail is then sent again and reaches all recipients it can; otherwise
    the first refusal. A reply that neither accepts nor refuses (3xx) leaves doubt and counts as temporary.
    """
    refusals = [reply for reply in replies if not reply.is_success]
    for reply in refusals:
        if reply.code < 500:
            return reply
    return refusals[0] if refusals else None
