"""The content of a mail: finds its end, removes stuffed dots, refuses smuggling.

Works on whole blocks as they arrive, never line by line. Only CRLF . CRLF ends a mail. A mail with a bare CR, a bare LF
or a NUL is refused: some next hop would see a line end there, and with it a second mail (SMTP smuggling). After a
queue, where a refusal would become a bounce, it is marked instead (`Message.has_clean_lines`): the filter keeps it, and
no relay sends it. Knows neither commands nor sockets.
"""

from __future__ import annotations

from enum import Enum, auto

from bridge.errors import Saturated
from bridge.intake.smtp.session_settings import SessionLimits
from bridge.mail.bare_line_ends import LineEnds
from bridge.mail.leading_dot import find_leading_dot
from bridge.mail.message import Message

# While the spool is more than half full, a client with a large mail must keep sending. Otherwise, a few clients that
# send the rest of a large mail very slowly could block all others for hours.
_LARGE_MAIL = 1024 * 1024  # bytes
_MIN_RATE_HALF_FULL = 4096  # bytes per second: half of a 64 kbit/s line
_END = b"\r\n.\r\n"
_DOT = b"\r\n."  # the end, or a stuffed dot
_ANY_DOT = b"."[0]


class Fault(Enum):
    """Why a mail cannot be accepted; the client is told after the final dot."""

    BARE = auto()  # a CR or LF outside a CRLF, or a NUL
    TOO_LARGE = auto()
    SATURATED = auto()  # the limit of bytes in processing is reached
    STORAGE = auto()  # the spool file could not be written


class DataReader:
    """`feed` it blocks until it returns what came after the end of the mail."""

    __slots__ = ("_carry", "_is_clean", "_keeps_bare", "_kept", "_limit", "_line_ends", "_start",
                 "began", "fault", "message", "received", "silent_s", "total")  # fmt: skip

    def __init__(self, message: Message, limit: int | None, keeps_bare: bool = False) -> None:
        self.message = message
        self._keeps_bare = keeps_bare
        self._is_clean = True
        self._limit = limit
        self._kept = 0
        self._carry = b"\r\n"  # as if a line had just ended, so that a leading dot is treated like any other
        self._start = 2  # bytes of that invented line end that remain to be dropped
        self._line_ends = LineEnds()
        self.fault: Fault | None = None
        self.began = 0.0  # on the clock of the event loop
        self.received = 0  # bytes since `exceeded_limit` was last asked
        self.silent_s = 0.0
        self.total = 0

    def feed(self, data: bytes) -> bytes | None:
        """Take a block. Returns None while the mail continues, and what follows the mail once it has ended."""
        if not self.total and data and data[0] != _ANY_DOT:
            self._carry, self._start = b"", 0  # no leading dot: saves two copies of a mail that came in one block
        self.received += len(data)
        self.total += len(data)
        if self._carry:
            data = self._carry + data
        dot = find_leading_dot(data)
        if dot >= 0:
            end = dot if data.startswith(_END, dot) else data.find(_END, dot + 1)  # usually the only dot
            if end >= 0:
                self._take(data[: end + 2], is_stuffed=dot != end, is_last=True)
                self.message.has_clean_lines = self._is_clean and self.fault is None
                return data[end + 5 :]
        held = _held_back(data)
        self._carry = data[len(data) - held :]
        self._take(data[: len(data) - held] if held else data, is_stuffed=dot >= 0, is_last=False)
        return None

    def exceeded_limit(
        self, limits: SessionLimits, now: float, waited_s: float, is_half_full: bool = False, is_stopped: bool = False
    ) -> str:
        """The limit that the client exceeds: too long in total, silent for too long, or too slow. "": none.

        `waited_s` have passed since it was last asked. `is_half_full`: more than half of the room for mail is taken.
        `is_stopped`: we do not read from it, because our disk is slow.
        """
        if now - self.began >= limits.mail_timeout_s:
            return "mail_timeout"
        if is_stopped:
            return ""
        received, self.received = self.received, 0
        if is_half_full and self._kept > _LARGE_MAIL and received < _MIN_RATE_HALF_FULL * waited_s:
            return "min_data_rate"
        if not received:
            self.silent_s += waited_s
            return "data_timeout" if self.silent_s >= limits.data_timeout_s else ""
        self.silent_s = 0.0
        return "min_data_rate" if received < limits.min_data_rate * waited_s else ""

    def _take(self, block: bytes, *, is_stuffed: bool, is_last: bool) -> None:
        """Check, unstuff and keep a block that does not end within a line end."""
        if self.fault is not None or not block:
            return
        if not self._line_ends.are_clean(block):
            self._is_clean = False
            if not self._keeps_bare:
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
        """Drop what was kept; the rest is read to its end and dropped as well."""
        self.fault = fault
        self.message.close()


def _held_back(data: bytes) -> int:
    """How many of the last bytes may be the start of the end marker."""
    for size in (4, 3, 2, 1):
        if data.endswith(_END[:size]):
            return size
    return 0
