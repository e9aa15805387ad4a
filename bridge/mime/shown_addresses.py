"""Addresses that a reader may see in text which is not an address.

`ceo@"bank.example"`, `ceo@=?utf-8?q?bank.example?=` and `ceo\uff20bank.example` are no addresses, but mail programs
show them, and people read bank.example. So the text is searched in every form in which a program may show it: with
encoded words decoded, with compatibility characters replaced, without control characters, quotes and backslashes.
The time is linear.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

from bridge.mime.words import readings_of_words
from bridge.runtime.visible_text import JOINERS, without_invisible

_DOTS = re.compile("[.\u3002\uff0e\uff61]+")  # UTS 46 section 2.3
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_QUOTES = re.compile(r'["\'\\]')
_BEFORE_HOST = re.compile(r"[\s.\"'\[(<\\]*")
_COMMENT = re.compile(r"\([^()@]*\)|\s+")
_NOT_LOCAL = re.compile(r"[\s<>\"'(),;:\[\]\\\0]")
_BRACKETS = re.compile("\\A[^\\x00-\\x7f\\w]+")  # those of other scripts
_LITERAL = re.compile(r"\[(?:ipv6:)?([0-9a-f:.]+)\]", re.IGNORECASE)
_IN_NAMES = frozenset("-_.\u00b7\u0375\u05f3\u05f4\u30fb\u3002\uff0e\uff61" + JOINERS)  # RFC 5892 A.3 to A.7; dots
_MAX_LOCAL, _MAX_HOST = 66, 253  # characters; no entry of a list is longer


def find(text: str) -> list[str]:
    """Each address of a domain with a dot that may be shown."""
    return list(dict.fromkeys(address for form in _forms(text) for address in _at_signs(form)))


def host_of(address: str) -> str:
    """The domain after the last @, as it looks, ready to be compared with others; "" if it has none."""
    host = _COMMENT.sub("", address.rpartition("@")[2])
    literal = _LITERAL.fullmatch(host)
    name = literal[1] if literal else unicodedata.normalize("NFKC", without_invisible(host))
    return _DOTS.sub(".", name).strip(".").lower()[-_MAX_HOST:]


def _forms(text: str) -> dict[str, None]:
    if text.isascii() and "=?" not in text and "@" not in text:
        return {}  # nearly all
    forms: dict[str, None] = {}
    for decoded in dict.fromkeys((text, *readings_of_words(text))):
        for form in (without_invisible(decoded), unicodedata.normalize("NFKC", without_invisible(decoded))):
            seen = _CONTROL.sub("", form)
            forms |= dict.fromkeys((form, seen, _QUOTES.sub("", seen)))
    return forms


def _at_signs(text: str) -> list[str]:
    """Piece by piece: a pattern that looks back from each @ would be quadratic."""
    pieces = text.split("@")
    found = []
    for before, after in pairwise(pieces):
        begin = _BEFORE_HOST.match(after)
        host = _host(after[begin.end() if begin else 0 :][: _MAX_HOST + 1])
        local = _NOT_LOCAL.split(before[-_MAX_LOCAL:])[-1]
        if _DOTS.search(host):
            found.append(f"{_BRACKETS.sub('', local)}@{host}")
    return found


def _host(text: str) -> str:
    end = next((i for i, char in enumerate(text) if not _is_in_names(char)), len(text))
    return text[:end].strip("-_.\u3002\uff0e\uff61")


def _is_in_names(char: str) -> bool:
    return char.isalnum() or char in _IN_NAMES or unicodedata.category(char) in ("Mn", "Mc", "So")
