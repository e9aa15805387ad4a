"""HTML's character references (`&amp;`, `&#65;`), replaced. Nothing here raises, and all time is linear.

A text with references has two readings. Within the value of an attribute, a reference never ends the value: there, what
would end it is written as in addresses (`&quot;` as `%22`). In the other reading it is the character itself, as in a
page that is the value of an attribute of another page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import lru_cache

from bridge.mime.blocks import blocks

_LEADING_ZEROS = re.compile(r"&#(x?)0+(?=[0-9a-f])", re.IGNORECASE)
_LONG_NUMBER = re.compile(r"&#(?:[0-9]{8}[0-9]*|x[0-9a-f]{8}[0-9a-f]*);?", re.IGNORECASE)
_DELIMITER = re.compile(  # white space, quotes, and brackets; all names begin like these
    r"(&(?:#(?:32|34|39|4[01]|60|62|96|160)(?![0-9])|#[xX](?:2[02789]|3[cCeE]|60|[aA]0)(?![0-9a-fA-F])"
    r"|quot|QUOT|lt|LT|gt|GT|nbsp|(?:apos|lpar|rpar|grave|DiacriticalGrave|NonBreakingSpace)(?=;));?)"
)


def unescaped(text: str) -> str:
    """Numbers may have any length: browsers ignore leading zeros."""
    return "".join([_unescape(_short(block)) for block in blocks(text, _BEFORE)]) if "&" in text else text


def in_values(text: str) -> str:
    """As `unescaped`, but no reference ends the value of an attribute."""
    if "&" not in text:
        return text
    return "".join([_unescape(_replaced(_DELIMITER, _escape, _short(block))) for block in blocks(text, _BEFORE)])


def _unescape(text: str) -> str:
    """`html.unescape` with a cache: each reference takes a microsecond, and a page repeats a few of them."""
    return _replaced(_REFERENCE, _character, text)


def _replaced(pattern: re.Pattern[str], replacement: Callable[[str], str], text: str) -> str:
    """Python 3.11: splitting and joining takes half the time of `re.sub`, which calls back for each reference."""
    pieces = pattern.split(text)
    pieces[1::2] = map(replacement, pieces[1::2])
    return "".join(pieces)


_BEFORE = re.compile("()&")
# As in `html`, except for what cannot begin with a name: in binary data, nearly all of that would be new to the cache.
_REFERENCE = re.compile(r"(&(?:#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[a-zA-Z][a-zA-Z0-9][^\t\n\f <&#;]{0,30};?))")
_character = lru_cache(2048)(html.unescape)


def have_delimiters(text: str) -> bool:
    """Whether the two readings differ."""
    return "&" in text and _DELIMITER.search(_short(text)) is not None


def _short(text: str) -> str:
    if "&#" in text:  # Python refuses to read a number of more than 4300 digits
        text = _LONG_NUMBER.sub("\ufffd", _LEADING_ZEROS.sub(r"&#\1", text))
    return text


def _escape(reference: str) -> str:
    return _ESCAPED.get(_character(reference), "%C2%A0")


_ESCAPED = {character: f"%{ord(character):02X}" for character in " \"'()<>`"}
