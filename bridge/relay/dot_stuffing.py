"""Content as SMTP carries it: dots stuffed, ended by a line with a dot, in blocks worth a write.

The bytes between are not looked at: a leading dot is found by one `replace` over a whole chunk,
never line by line. If this is wrong a mail is changed, cut short, or split in two.

Content that does not end in CRLF gets one: SMTP cannot say "the last line has no end". It is the
only byte that is ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

BLOCK = 128 * 1024  # small chunks are joined up to this before they are written


class DotStuffer:
    """Doubles the dot at each line start, also where a chunk ends in the middle of CRLF and dot."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail = b"\r\n"  # the last bytes seen; the content starts at a line start

    def feed(self, chunk: bytes) -> bytes:
        if not chunk:
            return chunk
        tail = self._tail
        self._tail = chunk[-2:] if len(chunk) > 1 else tail[-1:] + chunk
        stuffed = chunk.replace(b"\r\n.", b"\r\n..")
        if chunk[0] == 0x2E and tail == b"\r\n":  # "." after CRLF
            return b"." + stuffed
        if chunk[0] == 0x0A and tail[-1:] == b"\r" and chunk[1:2] == b".":  # LF "." after CR
            return b"\n." + stuffed[1:]
        return stuffed

    def end(self) -> bytes:
        """The end of data, on a line of its own."""
        return b".\r\n" if self._tail == b"\r\n" else b"\r\n.\r\n"


def blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The stuffed content in blocks; the last one, and only it, holds the final dot."""
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
