"""Dots at the beginning of a line: SMTP doubles them, and a line with nothing but a dot ends the mail.

`bytes.find` looks at each byte when it searches for several bytes, but leaves the search for a single byte to the C
library, which is forty times as fast (Python 3.11: 64 KiB in 70 us and 1.5 us). Encoded content has no dots at all, and
a header section has few, so in a long block each dot is examined, until there are too many. Knows nothing about mails.
If this is wrong, a mail is changed, cut short, or split in two.
"""

from __future__ import annotations

_SHORT = 16 * 1024  # bytes: looking at each dot of a header section would cost as much
_FEW = 32


def find_leading_dot(block: bytes) -> int:
    """The position of the first line ending before a dot, or -1. A dot at the start of the block has none."""
    if len(block) < _SHORT:
        return block.find(b"\r\n.")
    dot = block.find(b".", 2)
    for _ in range(_FEW):
        if dot < 0:
            return -1
        if block.startswith(b"\r\n", dot - 2):
            return dot - 2
        dot = block.find(b".", dot + 1)
    return block.find(b"\r\n.", dot - 2) if dot >= 0 else -1
