"""A mail in a file, as it is sent: with CRLF at the end of each line.

A file whose lines all end with LF was written by a program on this machine, and its mail had CRLF. In a file that has
CRLF, other line ends are part of the mail: some server may see two mails in it, so they must not be repaired here.
"""

from __future__ import annotations

import errno
from pathlib import Path


def read(path: Path, limit: int) -> bytes:
    """The content of a file, a pipe or a device of at most `limit` bytes. Raises OSError."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit:,} bytes, which is too large for a mail", str(path))
    return content


def as_sent(content: bytes) -> bytes:
    return content if b"\r\n" in content else content.replace(b"\n", b"\r\n")
