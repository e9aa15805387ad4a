"""Names that are not ours, such as that of a list, as one part of the path of a link.

Percent encoding is not enough: proxies and servers decode `%2F` before they look for the page, browsers remove `..`.
So letters, digits, `-`, `_` and most dots stay, and every other byte is written as `~` and two hexadecimal digits,
which nobody on the way changes. Knows nothing of pages.
"""

from __future__ import annotations

import re

_ODD = re.compile(rb"^\.|[^A-Za-z0-9._-]")
_WRITTEN = re.compile(rb"~([0-9A-F]{2})")


def to_part(name: str) -> str:
    """Every name has a different part, and none is empty, `.` or `..` unless the name is empty."""
    data = name.encode("utf-8", "surrogatepass")
    return _ODD.sub(lambda found: b"~%02X" % found[0][0], data).decode("ascii")


def from_part(part: str) -> str:
    """The name; "" if no name has this part."""
    try:
        data = part.encode("ascii")
        name = _WRITTEN.sub(lambda found: bytes([int(found[1], 16)]), data).decode("utf-8", "surrogatepass")
    except UnicodeError:
        return ""
    return name if to_part(name) == part else ""
