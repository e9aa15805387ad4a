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
    """Blocks that end where `bytes.splitlines` sees the end of a line. A pattern for that takes long in a long line.

    No byte is searched twice for the same character: a text may have only one of the two, or neither.
    """
    at, feed, carriage_return = 0, -1, -1
    while len(text) - at > size:
        feed = _place(b"\n", text, at + size, feed)
        carriage_return = _place(b"\r", text, at + size, carriage_return)
        end = min(feed, carriage_return + (carriage_return + 1 == feed)) + 1
        yield text[at:end]
        at = end
    if at < len(text):
        yield text[at:]


def _place(character: bytes, text: bytes, start: int, known: int) -> int:
    """The first one from `start` on, or else the end of the text; `known`: what was found from an earlier place on."""
    if known >= start:
        return known
    found = text.find(character, start)
    return found if found >= 0 else len(text)


def line_lists(text: bytes) -> Iterator[list[bytes]]:
    """All lines, which end with LF, in lists of bounded size: joined, they are `text.split(b"\\n")`."""
    is_open = True  # the last line is there even if it is empty
    for block in blocks(text, AFTER_LF):
        is_open = not block.endswith(b"\n")
        yield (block if is_open else block[:-1]).split(b"\n")
    if not is_open or not text:
        yield [b""]
