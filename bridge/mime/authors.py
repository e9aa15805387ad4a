"""The authors of a mail: all addresses that one mail program or another reads in its From fields."""

from __future__ import annotations

import re
from typing import NamedTuple

from bridge.mime.words import decode_words

# A quoted local part, an address literal, or a plain word.
_WORD = re.compile(r"\"[^\"]*\"@[^\s<>\"'(),;\0]+|[^\s<>\"'(),;:\0]+@\[[^\s<>\[\]]*\]|[^\s<>\"'(),;:\0]+")
_SIMPLE = re.compile(r"""(?:[^"<>(),:;\\@=]*|"[^"<>(),:;\\@=]*" ?)<([^\s"<>(),:;\\@]+@[^\s"<>(),:;\\@]+)>""")
_BRACKETS = re.compile("<([^<>]*)>")
_TOKEN = re.compile(r"""("[^"\\]*(?:\\.[^"\\]*)*")|<([^<>]*)>|([(,;:])|([^"<(,;:\\]+|\\.|.)""", re.DOTALL)
_AT = re.compile(r"\s*@")
_IN_COMMENT = re.compile(r"[()]|\\.", re.DOTALL)
_FROM = re.compile(rb"^from[ \t]*:([^\r\n]*+(?:(?:\r\n|\n)[ \t][^\r\n]*+)*+)", re.IGNORECASE | re.MULTILINE)
_MOST_FIELDS, _LONGEST = 4, 4096  # of one mail; what readers show is far shorter
_MAX_LOCAL, _MAX_HOST = 66, 253  # characters (RFC 5321 4.5.3.1, with quotes)


class InFrom(NamedTuple):
    """The addresses in the From fields of one mail."""

    addresses: list[str]
    is_all: bool  # False: there may be others, and what was read of the last one may be a piece of another address


def addresses_in_from(head: bytes) -> InFrom:
    """The addresses in all From fields of a header section."""
    fields = _FROM.findall(head)
    found: list[str] = []
    for field in fields[:_MOST_FIELDS]:
        text = field[:_LONGEST].decode("utf-8", "replace")
        found += addresses(re.sub(r"\r?\n(?=[ \t])", "", text).strip())
    is_all = len(fields) <= _MOST_FIELDS and all(len(field) <= _LONGEST for field in fields)
    return InFrom(list(dict.fromkeys(found)), is_all)


def addresses(value: str) -> list[str]:
    """All addresses that one mail program or another takes for the author's, those of RFC 5322 first."""
    simple = _SIMPLE.fullmatch(value)
    if simple is not None:
        return [simple[1]]
    found = _readings(value)
    if "=?" in value and (decoded := decode_words(value)) != value:  # some decode before they look for the address
        found += _readings(decoded)
    return list(dict.fromkeys(found))


def authors(value: str) -> list[str]:
    """The addresses as RFC 5322 says; if there are none, whatever could be one."""
    simple = _SIMPLE.fullmatch(value)
    return [simple[1]] if simple is not None else list(dict.fromkeys(_by_grammar(value))) or addresses(value)


def _readings(value: str) -> list[str]:
    """By the grammar; if brackets alone say something else, or are not in pairs, everything that looks like one."""
    exact = _by_grammar(value)
    in_brackets = [address for address in _BRACKETS.findall(value) if "@" in address]
    is_odd = not value.count("<") == value.count(">") == len(in_brackets)
    simply = in_brackets or bare_addresses(value)
    if set(exact) == set(simply) and not is_odd:
        return exact
    return [*exact, *simply, *(bare_addresses(value) if is_odd else ())]


def _by_grammar(value: str) -> list[str]:
    """RFC 5322 3.4: comments and quoted text are not addresses, and brackets count only outside them."""
    found: list[str] = []
    text: list[str] = []  # of one mailbox, outside brackets
    position = 0
    while (match := _TOKEN.match(value, position)) is not None:
        position = match.end()
        quoted, bracket, mark, other = match.groups()
        if bracket is not None and "@" in bracket:
            found.append(bracket)
            text = []  # what precedes is a name
        elif mark == "(":
            position = _after_comment(value, position)
        elif mark in (",", ";"):
            found += _unbracketed(text)
            text = []
        elif mark == ":":  # the name of a group
            text = []
        elif quoted is None or _AT.match(value, position):  # else it is a name, whatever it looks like
            text.append(quoted or other or "")
    return found + _unbracketed(text)


def _unbracketed(text: list[str]) -> list[str]:
    """White space around @ and dots does not count (RFC 5322 4.4)."""
    joined = "".join(text)
    if "@" not in joined:
        return []
    return bare_addresses("@".join(".".join(map(str.strip, part.split("."))) for part in joined.split("@")))


def _after_comment(value: str, position: int) -> int:
    """Comments contain comments; one that does not end reaches to the end of the field."""
    depth = 1
    for match in _IN_COMMENT.finditer(value, position):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end()
    return len(value)


def bare_addresses(value: str) -> list[str]:
    """Addresses without brackets. Word by word: a pattern that looks back from each @ would be quadratic."""
    words = (word.rpartition("@") for word in _WORD.findall(value)) if "@" in value else ()
    return [f"{_end_of_local(local)}@{_end_of_host(host)}" for local, _, host in words if local and host]


def _end_of_local(local: str) -> str:
    """Of one that is longer than any on a list, the end, with a mark: the end alone might be on a list."""
    return local if len(local) <= _MAX_LOCAL else f"!{local[-_MAX_LOCAL:]}"


def _end_of_host(host: str) -> str:
    """Likewise, from the beginning of a label: the domains above this host are what they were."""
    return host if len(host) <= _MAX_HOST else f"!.{host[-_MAX_HOST:].partition('.')[2]}"
