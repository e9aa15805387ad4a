"""File names in header fields: every name that one mail program or another shows for a part.

Whether a file is dangerous depends on its name, because mail programs open a file by its name. A part may
have several: in two fields, in one field twice, in pieces, encoded in two standards, with quotes and
comments in odd places. Nothing here decides between them. The work is linear, because it is done for every
attachment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from bridge.mime import tokens
from bridge.mime.encodings import embedded_names
from bridge.mime.words import (
    ODD,
    SWITCHING,
    as_text,
    codec_of,
    decode_words,
    decoded,
    has_byte_order,
    unusual_readings,
    without_parameters,
    without_switches,
)

MAX_FIELDS = 2000  # fields in one mail, and
MAX_BYTES = 1024 * 1024  # their length: with more, `everywhere` raises
# Nothing here stops at a certain length: a name may be at the very end of a field, which `structure` reads whole.
_PLAIN = re.compile(r"""[^;="]*;[ \t]*(?:file)?name="?([A-Za-z0-9_.-]+)"?""", re.IGNORECASE)  # nothing to disagree on
_NAME = re.compile("name", re.IGNORECASE)
_VALUE = re.compile(r"""[ \t]*("[^"\\]*(?:\\.[^"\\]*)*"?|[^;]*)""", re.DOTALL)
_NUMBER = re.compile(r"\*[ \t]*0*([0-9]+)")
_AFTER_TOKEN = re.compile(r"[:,<>@\[\]]")  # also in quotes
_ODD_ENDS = tokens.ENDS - {" ", "="}
_COMMENT = re.compile(r"\([^()]*\)")
_MAX_COMMENTS = 8  # in each other; programs that remove comments at all do not go deeper
_BETWEEN_TOKENS = re.compile(r"""("[^"\\]*+(?:\\.[^"\\]*+)*+"?)|[\s<>()]++""", re.DOTALL)  # outside of quotes
_SEPARATORS = re.compile(r"""[\s"';,=<>\0]+""")
_SPACES = re.compile(r"\s+")
_LANGUAGE = re.compile(r"([^']{0,60})'(?:[A-Za-z0-9-]{0,20}')?")  # RFC 2231: charset'language', or only one of them
_MAX_ROUNDS = 3  # of decoding
_SHOWN = 255  # characters at the end of a name, which decide how a file is opened
_FIELD = re.compile(  # with the lines that continue it, or that contain a name as if they did
    rb"(?:(?<=[\r\n])|\A)(?:[^\r\na-z]{0,8}|[!-9;-~]{1,40}-)content[-_ ]{0,3}[tdl][^\r\n]*"
    rb"(?:\r?\n(?:[ \t]|[^\r\n:]{0,40}?name)[^\r\n]*)*",
    re.IGNORECASE,
)


class TooManyNames(Exception):
    """More fields than we are willing to search."""


def work(field: str) -> int:
    """About how many microseconds it takes to read the names in a field: a short one may be encoded in many ways."""
    if _PLAIN.fullmatch(field):
        return 10 + len(field)
    ways = ("%" in field) + 2 * ("=?" in field) + ("'" in field) + (field.count("=?") > 1) + has_byte_order(field)
    once = ways * (300 + 6 * len(field)) if ways else 100 + 2 * len(field)
    once *= sum(1 for _ in _readings(field))
    if _ODD_ENDS.isdisjoint(field):
        return once
    values = [value.text for value in _values(field) if value.is_open]
    loose = [text for text in _loose(field) if not text.lstrip().startswith('"')]
    return once * (1 + len(_ODD_ENDS.intersection("".join([*values, *loose]))))


def may_name(field: str) -> bool:
    """Whether such a field may give a name, in any of its readings."""
    return any(map(_NAME.search, _readings(field)))


def _readings(field: str) -> Iterator[str]:
    """The field, and as read by programs that decode it or clean it before they look for parameters in it.

    `filena()me=x.js` and `filena\\me=x.js` are names to some, and so is what an encoded word contains.
    """
    yield field
    known = len(_NAME.findall(field))
    if "(" in field or "\\" in field:
        for cleaned in (*list(_without_comments(field))[-1:], field.replace("\\", "")):
            if len(_NAME.findall(cleaned)) > known:
                yield cleaned
    if "=?" in field:
        decoded_first, shorter = decode_words(field), without_parameters(field)
        if shorter != field or len(_NAME.findall(decoded_first)) > known:
            yield decoded_first
        if shorter != field:
            yield decode_words(shorter)


def candidates(field: str) -> set[str]:
    """All names that a `Content-Type` or `Content-Disposition` field may give."""
    plain = _PLAIN.fullmatch(field)
    if plain is not None:
        return {plain[1][-_SHOWN:]} if "." in plain[1] else set()
    return set().union(*map(_candidates, _readings(field)))


def _candidates(field: str) -> set[str]:
    values = list(_values(field))
    raw = set(_loose(field))
    loose = raw.difference(value.text for value in values)
    texts = {*(value.text for value in values), *loose, *_together(values), *map(_without_gaps, raw)}
    if _AFTER_TOKEN.search(field):
        texts.update(_together([value._replace(text=_AFTER_TOKEN.split(value.text, 1)[0]) for value in values]))
    for ended in _ended(values):
        texts.update(_together(ended))
    for text in loose:
        for ended in _ended([_Value("", "", text.strip(), not text.lstrip().startswith('"'))]):
            texts.add(ended[0].text)
    found: set[str] = set()
    for text in texts:
        if not _may_have_dot(text):
            continue
        for form in _forms(text):
            found.add(_SPACES.sub(" ", form.strip().strip("\"'")))
            found.update(_SEPARATORS.split(form))
    return {name[-_SHOWN:] for name in found if "." in name}


def _may_have_dot(text: str) -> bool:
    """Whether a name with a dot may be in it, perhaps encoded. A name without one is not that of a program."""
    return "." in text or "%" in text or "'" in text or "=?" in text


def located(value: str, *, is_shown: bool = False) -> set[str]:
    """The names that a `Content-Location` field may give. Some programs save a part under the end of that address.

    An address without a path ends with a host. That is a name too, but not of what mail programs show, such as HTML.
    """
    found: set[str] = set()
    for form in _forms(_SPACES.sub("", value)):
        address = form.strip("\"'<>")
        _, slashes, rest = address.partition("//")
        path = rest if slashes else address
        if slashes and is_shown and "/" not in path:
            continue
        found |= {path.rpartition("/")[2], re.split("[?#]", path)[0].rpartition("/")[2]}
    return {name[-_SHOWN:] for name in found if "." in name}


def described(value: str) -> set[str]:
    """The name that a `Content-Description` field may give: some programs take all of it for one.

    It is not one if it only ends with the name of a host: "mail from example.com".
    """
    found = {_SPACES.sub(" ", form.strip().strip("\"'<>")) for form in _forms(value)}
    return {name[-_SHOWN:] for name in found if "." in name and not _HOST_AT_END.search(name)}


_HOST_AT_END = re.compile(r"\s\S+\.com\W*\Z", re.IGNORECASE)


def titles(subject: str) -> set[str]:
    """The names of files that a subject may contain: `Re: "x.js" (1/3)`."""
    found: set[str] = set()
    for form in _forms(subject[:_TITLE]):
        found.update(_TITLE_SEPARATORS.split(form))
    return {name[-_SHOWN:] for name in found if _TITLE_NAME.search(name)}


_TITLE = 1000  # characters; programs read no longer names
_TITLE_SEPARATORS = re.compile(r"""[\s"'`;,:=<>()\[\]{}|\0]+""")
_TITLE_NAME = re.compile(r"[^.@/]\.[A-Za-z0-9_-]{1,10}[.!?]?\Z")


def everywhere(data: bytes, charge: Callable[[int], object] = int, seen: set[bytes] | None = None) -> set[str]:
    """All names in everything that looks like such a field, wherever it is in the mail. Raises TooManyNames.

    `charge` is called with the work that each field takes, in nanoseconds; it may raise. Fields in `seen` are left out,
    and those that are read are added to it: several readings of one mail have most of them in common.
    """
    found: set[str] = set()
    seen = set() if seen is None else seen
    size = 0
    for number, match in enumerate(_fields(data)):
        size += match.end() - match.start()
        if number >= MAX_FIELDS or size > MAX_BYTES:
            raise TooManyNames
        if match.group() not in seen:
            seen.add(match.group())
            text = match.group().decode("utf-8", "replace")
            charge(1000 * work(text))
            found |= _names_in(text)
    return found


def _fields(data: bytes) -> Iterator[re.Match[bytes]]:
    """The matches of `_FIELD`. Finding the word in their first lines takes a 25th of the time (Python 3.11)."""
    lower = data.lower()
    done = 0
    at = lower.find(b"content")
    while at >= 0:
        line = max(done, data.rfind(b"\n", done, at) + 1, data.rfind(b"\r", done, at) + 1)
        match = _FIELD.match(data, line)
        if match is not None:
            yield match
        done = match.end() if match is not None else at + 1
        at = lower.find(b"content", done)


def _names_in(field: str) -> set[str]:
    """With its own name, and perhaps folded."""
    found: set[str] = set()
    if may_name(field):
        found |= candidates(re.sub(r"\r?\n[ \t]+", " ", field))
    key = field.lstrip().lower()
    if key.startswith("content-l"):
        found |= located(field.partition(":")[2], is_shown=True)
    elif key.startswith("content-desc"):
        found |= described(field.partition(":")[2])
    return found


def embedded(text: bytes) -> set[str]:
    """The names of files that are encoded within a text: uuencode, yEnc, BinHex. Raises TooManyNames."""
    found: set[str] = set()
    size = 0
    for number, name in enumerate(embedded_names(text)):
        size += len(name)
        if number >= MAX_FIELDS or size > MAX_BYTES:
            raise TooManyNames
        for form in _forms(as_text(name, "utf-8")):
            found.add(_SPACES.sub(" ", form.strip().strip("\"'")))
            found.update(_SEPARATORS.split(form))
    return {name[-_SHOWN:] for name in found if "." in name}


class _Value(NamedTuple):
    kind: str  # what precedes "name": `filename` has "file"
    number: str  # what follows it, up to the "="
    text: str
    is_open: bool  # without quotes: programs differ on where it ends


def _values(field: str) -> Iterator[_Value]:
    """The values of all parameters with "name" in their names."""
    at = 0
    while (equals := field.find("=", at)) >= 0:
        key = field[at:equals].rstrip("; \t").rpartition(";")[2]  # `filename;=x.js`
        at = equals + 1
        name = _NAME.search(key)
        if name is not None and (match := _VALUE.match(field, at)):
            kind, number, text = key[: name.start()].strip().lower(), key[name.end() :], match[1].strip()
            is_open = text[:1] != '"' or text[-1:] != '"' or len(text) == 1
            yield _Value(kind, number, text.strip("\"'"), is_open)
            at = match.end()


def _ended(values: Sequence[_Value]) -> Iterator[list[_Value]]:
    """Values without quotes up to where some programs end them: which of `tokens.ENDS` count depends on the program.

    A program ends them at the first of several characters. That is the first occurrence of one of them, so trying each
    on its own is enough for a value, but not for pieces, which may end at different ones.
    """
    marks = tokens.ENDS.intersection("".join([value.text for value in values if value.is_open]))
    if "(" in marks:
        values = _changed(values, tokens.after_comments)
    if marks:
        yield _changed(values, tokens.until_end)
    for mark in marks if len(marks) > 1 else ():
        yield _changed(values, lambda text, mark=mark: text.partition(mark)[0])  # type: ignore[misc]


def _changed(values: Sequence[_Value], change: Callable[[str], str]) -> list[_Value]:
    return [value._replace(text=change(value.text)) if value.is_open else value for value in values]


def _together(values: Sequence[_Value]) -> Iterator[str]:
    """Pieces put together: those of `name` and of `filename` each on their own, and all."""
    kinds: dict[str, list[tuple[str, str]]] = {}
    for value in values:
        kinds.setdefault(value.kind, []).append((value.number, value.text))
    kinds[""] = [(value.number, value.text) for value in values]
    for pieces in kinds.values():
        yield from _joined(pieces)


def _loose(field: str) -> Iterator[str]:
    """What is between "name" and the next semicolon, whatever quotes there are, and even without a "="."""
    last: list[str] = []
    for text in field.split(";"):
        if last and "=" not in text:
            last.append(text)  # the semicolon may be part of the value
            continue
        if len(last) > 1:
            yield ";".join(last)
        last = []
        name = _NAME.search(text)
        if name is None:
            continue
        key, equals, value = text[name.end() :].partition("=")
        if equals:
            yield value
            last = [value]
        if key[:1].isspace():
            yield key
    if len(last) > 1:
        yield ";".join(last)


def _without_gaps(text: str) -> str:
    """As read by programs that put its tokens together: `"a.e" "xe"`, `a.e xe` and `a.e >xe` are `a.exe`."""
    return _BETWEEN_TOKENS.sub(r"\1", _COMMENT.sub("", text)).replace('"', "")


def _joined(pieces: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The pieces put together: in their order, backwards, and by their numbers, some of which may occur twice."""
    values = [value for _, value in pieces]
    yield from _pieces_of(values)
    yield from _pieces_of(values[::-1])
    yield from _pieces_of([value for number, value in pieces if "*" in number])
    first: dict[tuple[int, str], str] = {}
    last: dict[tuple[int, str], str] = {}
    every: list[tuple[tuple[int, str], str]] = []
    for number, value in pieces:
        match = _NUMBER.search(number)
        if match is not None:
            place = len(match.group(1)), match.group(1)  # the order of numbers of any length
            first.setdefault(place, value)
            last[place] = value
            every.append((place, value))
    if len(every) > len(first) or len(every) < len(pieces):  # twice the same number, or others without one
        yield from _pieces_of([value for _, value in sorted(every, key=lambda piece: piece[0])])
    for numbered in (first, last):
        places = sorted(numbered)
        yield from _pieces_of([numbered[place] for place in places])
        gap = next((i for i, (_, digits) in enumerate(places) if digits != str(i)), len(places))
        yield from _pieces_of([numbered[place] for place in places[:gap]])  # some stop where a number is missing


def _pieces_of(values: Sequence[str]) -> Iterator[str]:
    """As one value. The charset at its beginning is that of all; some programs remove others from later pieces."""
    yield "".join(values)
    yield "".join([*values[:1], *(_LANGUAGE.sub("", value, count=1) for value in values[1:])])


def _forms(text: str) -> Iterator[str]:
    """The text as programs may read it. Some decode what they have decoded: percent signs, then encoded words."""
    texts, seen = [text], {text}
    for _ in range(_MAX_ROUNDS):
        for reading in texts:
            yield from _forms_once(reading)
        decoded = {form for reading in texts for form in _decoded(reading)}
        texts = sorted(decoded - seen)
        seen |= decoded


def _decoded(text: str) -> Iterator[str]:
    yield from _extended(text)
    if "%" in text:
        yield as_text(unquote_to_bytes(text), "utf-8")
    if "=?" in text:
        yield decode_words(text)
        yield decode_words(text + "?=")  # the end may be missing
        yield decode_words(_unescaped(text))
        yield from unusual_readings(text)


def _unescaped(text: str) -> str:
    return text.replace("\\", "").replace('"', "")


def _forms_once(text: str) -> Iterator[str]:
    yield text
    yield _unescaped(text).replace("\0", "")
    yield from _without_comments(text)
    yield from _extended(text)
    if "%" in text:
        decoded = unquote_to_bytes(text)
        yield as_text(decoded, "utf-8")
        yield decoded.replace(b"\0", b"").decode("latin-1")
    if "?=" in text:
        yield text.replace("?=", "")  # the end of an encoded word that begins before the name
    if "=?" in text:
        yield decode_words(text)
        unescaped = _unescaped(text)
        yield decode_words(unescaped).replace("\0", "")
        yield from unusual_readings(unescaped)
    if not text.isprintable():
        yield without_switches(text)


def _extended(text: str) -> Iterator[str]:
    """RFC 2231: charset'language'value, with percent signs or without. Some programs do not decode it."""
    language = _LANGUAGE.match(text)
    if language is None:
        return
    value = text[language.end() :]
    yield value
    codec = codec_of(language[1])
    if codec in ODD or codec in SWITCHING:  # else the ASCII in it is the same without the charset
        yield decoded(unquote_to_bytes(value), codec)


def _without_comments(text: str) -> Iterator[str]:
    """Without the innermost comments, and without all: some programs do not know that one may contain another."""
    for _ in range(_MAX_COMMENTS if "(" in text else 0):
        longer, text = text, _COMMENT.sub("", text)
        if text == longer:
            return
        yield text
