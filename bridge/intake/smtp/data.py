"""The mail's content off the wire: where it ends, dots unstuffed, smuggling refused.

Works on whole blocks as they arrive, never line by line. Only CRLF . CRLF ends a mail. A CR or
LF on its own, or a NUL, makes the whole mail refused: some next hop would see a line end, and
with it another mail, where we saw none (SMTP smuggling).
"""

from __future__ import annotations

from enum import Enum, auto
from io import IncrementalNewlineDecoder

from bridge.errors import Saturated
from bridge.mail.message import Message

_END = b"\r\n.\r\n"
_DOT = b"\r\n."  # the end, or a stuffed dot
_ANY_DOT, _NUL = b".\0"  # as numbers: looking for bytes in bytes, `in` makes an exception and drops it


class Fault(Enum):
    """Why a mail cannot be taken, known only when its end has come."""

    BARE = auto()  # a CR, LF or NUL that is part of no CRLF
    TOO_LARGE = auto()
    SATURATED = auto()  # bytes in processing at their limit
    STORAGE = auto()  # the spool file could not be written


class DataReader:
    """`feed` blocks until it returns what came after the end of the mail."""

    __slots__ = ("_carry", "_kept", "_limit", "_line_ends", "_start", "fault", "message", "received", "total")

    def __init__(self, message: Message, limit: int | None) -> None:
        self.message = message
        self._limit = limit
        self._kept = 0
        self._carry = b"\r\n"  # as if a line had just ended: a dot in front is seen like any other
        self._start = 2  # bytes of that made-up line end still to be dropped
        # Knows which kinds of line ends it has seen, and looks for them three times as fast as
        # counting CR, LF and CRLF would (measured on 256 KiB blocks of base64).
        self._line_ends = IncrementalNewlineDecoder(None, translate=False)
        self.fault: Fault | None = None
        self.received = 0  # bytes since somebody last looked at the rate
        self.total = 0

    def feed(self, data: bytes) -> bytes | None:
        """Take a block. None: the mail goes on; else the mail has ended and this is the rest."""
        if not self.total and data and data[0] != _ANY_DOT:
            self._carry, self._start = b"", 0  # no dot in front: a mail that came whole is copied twice less
        self.received += len(data)
        self.total += len(data)
        if self._carry:
            data = self._carry + data
        dot = data.find(_DOT) if _ANY_DOT in data else -1
        if dot >= 0:
            end = dot if data.startswith(_END, dot) else data.find(_END, dot + 1)  # mostly, there is no other dot
            if end >= 0:
                self._take(data[: end + 2], is_stuffed=dot != end, is_last=True)
                return data[end + 5 :]
        held = _held_back(data)
        self._carry = data[len(data) - held :]
        self._take(data[: len(data) - held] if held else data, is_stuffed=dot >= 0, is_last=False)
        return None

    def _take(self, block: bytes, *, is_stuffed: bool, is_last: bool) -> None:
        """One block whose line ends are all whole: check it, unstuff it, keep it."""
        if self.fault is not None or not block:
            return
        self._line_ends.decode(block.decode("latin-1"))
        if self._line_ends.newlines not in (None, "\r\n") or _NUL in block:
            return self._fail(Fault.BARE)
        if is_stuffed:
            block = block.replace(_DOT, b"\r\n")
        if self._start:
            block, self._start = block[self._start :], 0
        self._kept += len(block)
        if self._limit is not None and self._kept > self._limit:
            return self._fail(Fault.TOO_LARGE)
        try:
            self.message.write(block, is_last)
        except Saturated:
            self._fail(Fault.SATURATED)
        except OSError:
            self._fail(Fault.STORAGE)

    def _fail(self, fault: Fault) -> None:
        """The rest is read to its end and thrown away; so is what was kept."""
        self.fault = fault
        self.message.close()


def _held_back(data: bytes) -> int:
    """How many bytes at the end might be the beginning of the end."""
    for size in (4, 3, 2, 1):
        if data.endswith(_END[:size]):
            return size
    return 0
