"""A mail in a file, as it is sent: with CRLF at the end of each line.

A file whose lines all end with LF was written by a program on this machine, and its mail had CRLF. In a file that has
CRLF, other line ends are part of the mail: some server may see two mails in it, so they must not be repaired here.
"""

from __future__ import annotations

import errno
import re
from itertools import islice
from pathlib import Path

# Where a mail begins in an mbox: `From jane@example.org Thu Jan  1 00:00:00 2026`, then a field.
_MBOX = re.compile(rb"(?:\A|\n\r?\n)From [^\r\n]*:[0-9]{2}[^\r\n]*\r?\n(?=[!-9;-~]+:)")


def read(path: Path, limit: int) -> bytes:
    """The one mail in a file, a pipe or a device, of at most `limit` bytes. Raises OSError."""
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if problem := mbox_problem(content):
        raise OSError(errno.EINVAL, problem, str(path))
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"has more than {limit:,} bytes, which is too large for a mail", str(path))
    return content


def mbox_problem(content: bytes) -> str:
    """Why this cannot be one mail: it is a mailbox with several; empty if it is not."""
    if not content.startswith(b"From ") or len(list(islice(_MBOX.finditer(content), 2))) < 2:
        return ""
    return (
        "it is a mailbox (mbox) with several mails, not one mail: "
        "split it into one file per mail first, for example with: formail -s sh -c 'cat > $FILENO.eml' < FILE"
    )


def as_sent(content: bytes) -> bytes:
    return content if b"\r\n" in content else content.replace(b"\n", b"\r\n")
