"""Reads the next hop's replies: what counts as one, bounded and well formed, and which queue id it shows."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

from bridge.errors import ProtocolError
from bridge.mail.reply import Reply

LINE_LIMIT = 4096  # RFC 5321 4.5.3.1.5 says 512; real servers exceed that
REPLY_LIMIT = 64 * 1024
_SHORT = 80  # bytes; longer lines are not cached

_LINE = re.compile(rb"([2-5][0-9]{2})(?:([ -])(.*))?", re.DOTALL)
_QUEUE_ID = re.compile(
    r"(?:queued as|\bid=|queue-id)\s*([A-Za-z0-9._-]{1,64})"  # Postfix, Exim, others
    r"|^([A-Za-z0-9]{6,32}) Message accepted"  # Sendmail, OpenSMTPD
)


class ReplyReader:
    """Splits bytes into replies. Knows no commands, so it cannot tell what a reply answers."""

    __slots__ = ("_code", "_lines", "_rest", "_size")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Discard an incomplete reply."""
        self._rest = b""
        self._code = b""
        self._lines: list[str] = []
        self._size = 0

    @property
    def has_rest(self) -> bool:
        """Whether part of a reply has arrived."""
        return bool(self._rest or self._lines)

    def feed(self, data: bytes) -> Iterator[Reply]:
        """The replies that `data` completes. Raises ProtocolError at the first malformed line."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if len(line) <= _SHORT and not self._lines and line[3:4] == b" ":
                yield _single(line)
                continue
            reply = self._take(line.removesuffix(b"\r"))
            if reply is not None:
                yield reply
        if len(self._rest) > LINE_LIMIT + 1:  # a line of maximum length and its CR may wait for the LF
            raise ProtocolError("the next hop sent a reply line that is too long")

    def _take(self, line: bytes) -> Reply | None:
        code, separator, text = _split(line)
        self._size += len(line)
        if (self._lines and code != self._code) or self._size > REPLY_LIMIT:
            raise ProtocolError("the next hop sent a reply with different codes, or one that is too long")
        self._code = code
        self._lines.append(text)
        if separator == b"-":
            return None
        lines, self._lines, self._size = self._lines, [], 0
        return Reply.from_lines(int(code), lines)


def _split(line: bytes) -> tuple[bytes, bytes | None, str]:
    match = _LINE.fullmatch(line) if len(line) <= LINE_LIMIT else None
    if match is None:
        raise ProtocolError("the next hop sent a line that is not an SMTP reply")
    code, separator, text = match.groups()
    return code, separator, text.decode("utf-8", "replace") if text else ""


@functools.lru_cache(256)  # the same few lines come with every mail; parsing them took a third of the relay's time
def _single(line: bytes) -> Reply:
    code, _, text = _split(line.removesuffix(b"\r"))
    return Reply.from_lines(int(code), [text])


def queue_id_in(reply: Reply) -> str:
    """The next hop's own id for the mail, if its reply shows one."""
    match = _QUEUE_ID.search(reply.text)
    return (match.group(1) or match.group(2)) if match else ""
