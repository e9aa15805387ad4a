"""The authors of a mail: all addresses that one mail program or another reads in its From fields.

Programs show a malformed From as well as a correct one, and each in its own way. What our reading leaves is searched
for other addresses that a program may show (`shown_addresses`); if there are any, the field is not clear. If this is
wrong, a sender can show a reader an author whose domain is never queried, and whom no list blocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.mime import shown_addresses
from bridge.mime.words import readings_of_words
from bridge.runtime.visible_text import without_invisible

# A quoted local part, an address literal, or a plain word.
_WORD = re.compile(r"\"[^\"]*\"@[^\s<>\"'(),;\0]+|[^\s<>\"'(),;:\0]+@\[[^\s<>\[\]]*\]|[^\s<>\"'(),;:\0]+")
_SIMPLE = re.compile(r"""(?:[^"<>(),:;\\@=]*|"[^"<>(),:;\\@=]*" ?)<([^\s"<>(),:;\\@]+@[^\s"<>(),:;\\@]+)>""")
_PLAIN = re.compile(r"[\w.+-]+@[a-z0-9][a-z0-9-]*(?:\.[a-z0-9][a-z0-9-]*)*", re.ASCII | re.IGNORECASE)
_BRACKETS = re.compile("<([^<>]*)>")
_TOKEN = re.compile(r"""("[^"\\]*(?:\\.[^"\\]*)*")|<([^<>]*)>|([(,;:])|([^"<(,;:\\]+|\\.|.)""", re.DOTALL)
_AT = re.compile(r"\s*@")
_NAME_WITH_COMMENT = re.compile(r'\s*"[^"\\()@]*[^"\\()@\s]\s*\([^"\\()]*\)"')  # `"Smith (j@a.example)"`
_NAMED = re.compile(r"""[^"<>(),:;\\@=]*[^"<>(),:;\\@=\s]\s*<[^\s"<>(),:;\\@]+@[^\s"<>(),:;\\@]+>""")
_ATOM = r"""[^\s"(),:;<>@\[\]\\\x00-\x1f\x7f]++"""
_AT_FIRST = re.compile(rf"""\s*+("[^"@]*+"|{_ATOM})\s*+@\s*+({_ATOM}(?:\s*+\.\s*+{_ATOM})*)""")
_IN_COMMENT = re.compile(r"[()]|\\.", re.DOTALL)
_FROM = re.compile(rb"^from[ \t]*:([^\r\n]*+(?:(?:\r\n|\n)[ \t][^\r\n]*+)*+)", re.IGNORECASE | re.MULTILINE)
_MOST_FIELDS, _LONGEST = 4, 4096  # of one mail; what readers show is far shorter
_MAX_LOCAL, _MAX_HOST = 66, 253  # characters (RFC 5321 4.5.3.1, with quotes)


class InFrom(NamedTuple):
    """The addresses in the From fields of one mail."""

    addresses: list[str]
    others: list[str]  # what some program may show instead
    is_all: bool  # False: there may be others, and what was read of the last one may be a piece of another address


def addresses_in_from(head: bytes) -> InFrom:
    """The addresses in all From fields of a header section."""
    fields = _FROM.findall(head)
    found: list[str] = []
    others: list[str] = []
    for each in fields[:_MOST_FIELDS]:
        value = re.sub(r"\r?\n(?=[ \t])", "", each[:_LONGEST].decode("utf-8", "replace")).strip()
        others += read(value).others
        found += addresses(value)
    is_all = len(fields) <= _MOST_FIELDS and all(len(each) <= _LONGEST for each in fields)
    return InFrom([each for each in dict.fromkeys(found) if each not in others], list(dict.fromkeys(others)), is_all)


@dataclass(frozen=True, slots=True)
class Reading:
    """One From field."""

    authors: list[str]  # as RFC 5322 says; if there are none, whatever could be one
    others: list[str]  # what some program may show instead, of other domains; empty if the field is clear
    named: list[str] = field(default_factory=list)  # names without quotes that some take for the address, likewise


def read(value: str) -> Reading:
    if plain := _plain(value):
        return Reading([plain], [])
    value = without_invisible(value)
    exact, rest, named = _by_grammar(value)
    found = list(dict.fromkeys(exact)) or _in_any_way(value)
    unread = ",".join([*(address for address in found if not _PLAIN.fullmatch(address)), *rest])
    shown = shown_addresses.find(unread)
    known = {shown_addresses.host_of(address) for address in found} if shown or named else set()
    others, named = ([each for each in some if shown_addresses.host_of(each) not in known] for some in (shown, named))
    return Reading(found, others, named)


def addresses(value: str) -> list[str]:
    """All addresses that one mail program or another takes for the author's, those of RFC 5322 first."""
    if plain := _plain(value):
        return [plain]
    seen = read(value)
    return list(dict.fromkeys([*_in_any_way(without_invisible(value)), *seen.others, *seen.named]))


def _plain(value: str) -> str:
    """The address, if the field has nothing but one, and perhaps a name: nearly all do."""
    simple = _SIMPLE.fullmatch(value)
    address = simple[1] if simple is not None else value
    return address if _PLAIN.fullmatch(address) else ""


def authors(value: str) -> list[str]:
    """The addresses as RFC 5322 says; if there are none, whatever could be one."""
    return read(value).authors


def _in_any_way(value: str) -> list[str]:
    forms = dict.fromkeys((value, *readings_of_words(value)))  # some decode before they look for the address
    return list(dict.fromkeys(address for form in forms for address in _readings(form)))


def _readings(value: str) -> list[str]:
    """By the grammar; if brackets alone say something else, or are not in pairs, everything that looks like one."""
    exact, _, _ = _by_grammar(value)
    in_brackets = [address for address in _BRACKETS.findall(value) if "@" in address]
    is_odd = not value.count("<") == value.count(">") == len(in_brackets)
    simply = in_brackets or bare_addresses(value)
    if set(exact) == set(simply) and not is_odd:
        return exact
    return [*exact, *simply, *(bare_addresses(value) if is_odd else ())]


def _by_grammar(value: str) -> tuple[list[str], list[str], list[str]]:
    """RFC 5322 3.4: comments and quoted text are not addresses, and brackets count only outside them.

    Also returns what is neither an address nor the name of one, and names that begin like an address.
    """
    found: list[str] = []
    rest: list[str] = []
    named: list[str] = []
    text: list[str] = []  # of one mailbox, outside brackets
    name: list[str] = []  # the same, with quoted text
    start = position = 0  # `start`: of what is not yet read as an address or a name
    behind = -1  # where an address in brackets ends, with the white space and the comments after it

    def end_mailbox(end: int) -> None:
        addresses = _unbracketed(text)
        found.extend(addresses)
        if not addresses:
            rest.append(value[start:end])

    while (match := _TOKEN.match(value, position)) is not None:
        position = match.end()
        quoted, bracket, mark, other = match.groups()
        name.append(quoted or other or " ")
        if bracket is not None and "@" in bracket:
            found.append(bracket)
            named += _first_in_name(name)
            text, name, start, behind = [], [], position, position  # what precedes is a name
        elif bracket is not None:
            rest.append(bracket)
        elif mark == "(":
            position, is_closed = _after_comment(value, position)
            rest += [] if is_closed else [value[match.end() :]]
            if is_closed and match.start() == behind:
                start = behind = position
        elif mark == "," and _is_first_of_name(value, start, match.start()):
            text, name, start = [], [], position
        elif mark in (",", ";"):
            end_mailbox(match.start())
            text, name, start = [], [], position
        elif mark == ":":  # the name of a group
            named += _first_in_name(name)
            text, name, start = [], [], position
        elif quoted is None or _AT.match(value, position):  # else it is a name, whatever it looks like
            text.append(quoted or other or "")
            if match.start() == behind and text[-1].isspace():
                behind = position
    end_mailbox(len(value))
    return found, rest, named


def _first_in_name(pieces: list[str]) -> list[str]:
    """`ceo@bank.example <x@evil.example>`: Dovecot tells its clients that the first one is the author."""
    name = "".join(pieces)
    match = _AT_FIRST.match(name) if "@" in name else None
    local, host = (match[1].strip("'"), "".join(match[2].split()).strip("'")) if match else ("", "")
    return [f"{local}@{host}"] if "." in host else []


def _is_first_of_name(value: str, start: int, comma: int) -> bool:
    """`"Smith (j@a.example)", Corp <d@c.example>`: a name with a comma, only part of which is in quotes."""
    name = _NAME_WITH_COMMENT.match(value, start, comma)
    return name is not None and name.end() == comma and _NAMED.match(value, comma + 1) is not None


def _unbracketed(text: list[str]) -> list[str]:
    """White space around @ and dots does not count (RFC 5322 4.4)."""
    joined = "".join(text)
    if "@" not in joined:
        return []
    return bare_addresses("@".join(".".join(map(str.strip, part.split("."))) for part in joined.split("@")))


def _after_comment(value: str, position: int) -> tuple[int, bool]:
    """Comments contain comments; one that does not end reaches to the end of the field."""
    depth = 1
    for match in _IN_COMMENT.finditer(value, position):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if depth == 0:
            return match.end(), True
    return len(value), False


def bare_addresses(value: str) -> list[str]:
    """Addresses without brackets. Word by word: a pattern that looks back from each @ would be quadratic."""
    words = (word.rpartition("@") for word in _WORD.findall(value)) if "@" in value else ()
    return [f"{_end_of_local(local)}@{_end_of_host(host)}" for local, _, host in words if local and host]


def _end_of_local(local: str) -> str:
    """Of a local part longer than any on a list, the end, with a mark: the end alone might be on a list."""
    return local if len(local) <= _MAX_LOCAL else f"!{local[-_MAX_LOCAL:]}"


def _end_of_host(host: str) -> str:
    """Likewise, from the beginning of a label: the domains above this host are unchanged."""
    return host if len(host) <= _MAX_HOST else f"!.{host[-_MAX_HOST:].partition('.')[2]}"
