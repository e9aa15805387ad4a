"""Header fields in a raw header section: what one field is, folded lines included.

Works on bytes with CRLF line ends, as `Message.head` returns them; nothing is decoded, nothing is
repaired. Callers that cut fields out, or trust their values, share this definition: a field that one
of them saw differently from another could be smuggled past the first.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator

# RFC 5322 2.2.3: a value continues on every following line that begins with a space or tab. Without the last CRLF.
FOLDED = rb"[^\r\n]*(?:\r\n[ \t][^\r\n]*)*"

# RFC 5322 2.2: any field; the groups are its name and its folded value. White space before the colon is
# obsolete syntax (4.5), but servers accept it.
ANY_FIELD = re.compile(rb"^([!-9;-~]+)[ \t]*:(%b)" % FOLDED, re.MULTILINE)


def field_named(name: str) -> re.Pattern[bytes]:
    """Whole fields of this name, with their last CRLF; the group is the folded value."""
    return re.compile(rb"^%b[ \t]*:(%b)\r\n" % (_escaped(name), FOLDED), re.IGNORECASE | re.MULTILINE)


def fields_with_prefix(prefix: str) -> re.Pattern[bytes]:
    """Whole fields whose name begins with this prefix, with their last CRLF.

    Also lines without a colon: they are no fields, but a lenient reader may take them for ours.
    """
    return re.compile(rb"^%b%b\r\n" % (_escaped(prefix), FOLDED), re.IGNORECASE | re.MULTILINE)


def without_fields(head: bytes, names: Container[bytes]) -> bytes:
    """The header section without the fields of these names, which are given in lower case.

    Goes by lines, unlike the patterns above: late decisions hash the result and keep the hash across
    restarts and upgrades, so it must not change, not even for lines that are no fields.
    """
    return b"\r\n".join(_lines_without(head, names))


def _lines_without(head: bytes, names: Container[bytes]) -> Iterator[bytes]:
    is_named = False
    for line in head.split(b"\r\n"):
        if line[:1] not in (b" ", b"\t"):
            is_named = line.partition(b":")[0].rstrip(b" \t").lower() in names
        if not is_named:
            yield line


def _escaped(name: str) -> bytes:
    return re.escape(name.lower().encode("ascii"))
