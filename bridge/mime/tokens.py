"""Values without quotes in header fields: where they end.

RFC 2045 ends them at white space, control characters and any of its `tspecials`, and allows comments around them. Most
programs do so. Others read on to the next semicolon, or know only some of these characters.
"""

from __future__ import annotations

import re

# For one program or another; the last one is from RFC 2231.
ENDS = frozenset({*map(chr, range(0x21)), "\x7f", *'()<>@,:\\"/[]?=*'})
_END = re.compile(f"[{re.escape(''.join(sorted(ENDS)))}]")
_COMMENT_PIECE = re.compile(r"\\.|[()]|[^()\\\s]+", re.DOTALL)


def first(text: str) -> str:
    """The value up to the first of these characters, after any comments."""
    return until_end(after_comments(text)) if _END.search(text) else text


def until_end(text: str) -> str:
    return _END.split(text, 1)[0]


def after_comments(text: str) -> str:
    """What follows any comments at the beginning of a text; comments may be nested."""
    depth = 0
    for match in _COMMENT_PIECE.finditer(text):
        if match[0] in ("(", ")"):
            depth += 1 if match[0] == "(" else -1
        elif depth <= 0:
            return text[match.start() :]
    return text
