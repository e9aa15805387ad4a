"""A text in blocks of bounded size, for decoders that make an object of every line, escape or piece of it.

Such an object takes 40 bytes or more, and a line may have one byte: of a whole mail, they would take thirty times its
size. A block ends only where the decoder starts afresh, so the joined results of all blocks are those of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import AnyStr

BLOCK = 64 * 1024  # bytes, or characters; a multiple of 4, for groups of Base64
AFTER_LF = re.compile(rb"\n")
AFTER_SPACE = re.compile(rb"[ \t\n\r\f\v]")  # as `bytes.split` does
BEFORE_EQUALS = re.compile(rb"()=")  # up to its group; searching for "(?==)" takes fifty times as long (Python 3.11)


def blocks(text: AnyStr, cut: re.Pattern[AnyStr], size: int = BLOCK) -> Iterator[AnyStr]:
    """Each at least of this size, except for the last, and up to the end of the next match of `cut` or its group."""
    at = 0
    while at < len(text):
        match = cut.search(text, at + size) if len(text) - at > size else None
        end = len(text) if match is None else match.end(cut.groups)
        yield text[at:end]
        at = end


def line_blocks(text: bytes, size: int = BLOCK) -> Iterator[bytes]:
    """Blocks that end where `bytes.splitlines` sees the end of a line. A pattern for that takes long in a long line."""
    at = 0
    while at < len(text):
        end = _line_end(text, at + size) if len(text) - at > size else len(text)
        yield text[at:end]
        at = end


def _line_end(text: bytes, start: int) -> int:
    feed = text.find(b"\n", start)
    at = text.find(b"\r", start, feed if feed >= 0 else len(text))
    if at < 0 or at + 1 == feed:
        return feed + 1 if feed >= 0 else len(text)
    return at + 1


def line_lists(text: bytes) -> Iterator[list[bytes]]:
    """All lines, which end with LF, in lists of bounded size: joined, they are `text.split(b"\\n")`."""
    is_open = True  # the last line is there even if it is empty
    for block in blocks(text, AFTER_LF):
        is_open = not block.endswith(b"\n")
        yield (block if is_open else block[:-1]).split(b"\n")
    if not is_open or not text:
        yield [b""]
