"""Content in SMTP form: dots stuffed, ended by a line with a single dot, in blocks large enough for a write.

Leading dots are found by one `replace` over a whole chunk, never line by line. If this is wrong, a mail is
changed, cut short, or split in two.

Content that does not end in CRLF gets one, because SMTP cannot express a last line without an end. Nothing
else is ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bridge.mail.leading_dot import find_leading_dot

BLOCK = 128 * 1024  # bytes; smaller chunks are joined before they are written


class DotStuffer:
    """Doubles the dot at each line start, even if a chunk ends inside CRLF and dot."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b"\r\n"  # the last bytes seen; the content starts at a line start

    def feed(self, chunk: bytes) -> bytes:
        if not chunk:
            return chunk
        tail = self._tail
        self._tail = chunk[-2:] if len(chunk) > 1 else tail[-1:] + chunk
        stuffed = chunk if find_leading_dot(chunk) < 0 else chunk.replace(b"\r\n.", b"\r\n..")
        if chunk[0] == 0x2E and tail == b"\r\n":  # "." after CRLF
            return b"." + stuffed
        if chunk[0] == 0x0A and tail[-1:] == b"\r" and chunk[1:2] == b".":  # LF "." after CR
            return b"\n." + stuffed[1:]
        return stuffed

    def end(self) -> bytes:
        """The final dot, after a line end if one is missing."""
        return b".\r\n" if self._tail == b"\r\n" else b"\r\n.\r\n"


def blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The stuffed content in blocks; only the last one holds the final dot."""
    stuffer = DotStuffer()
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        if size >= BLOCK:
            yield b"".join(parts)
            parts, size = [], 0
        parts.append(stuffer.feed(chunk))
        size += len(chunk)
    parts.append(stuffer.end())
    yield b"".join(parts)
