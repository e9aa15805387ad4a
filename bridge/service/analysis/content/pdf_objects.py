"""The objects of a PDF document: where they are, and their values, read token by token.

White space and comments may be as long as they like, numbers may have signs, zeros and fractions, and names may be
escaped, as in viewers. Reading begins at a word `obj` or at a key, so that nothing before it can mislead it. Whatever
is read is charged: many places may be followed by the same comment, or be in the same dictionary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from bridge.service.analysis.content.unpacking import Budget

_WHITE = rb"[\s\0]"
_REGULAR = rb"[^\s\0()<>\[\]{}/%]"
_NUMBER = rb"(?:[+\-]++[\r\n]*+)?(?:\d[\d\-]*+(?:\.[\d\-]*+)?|\.\d[\d\-]*+)(?:[eE][+\-]?\d++)?"
_SKIPPED = re.compile(rb"(?:" + _WHITE + rb"++|%[^\r\n]*+)*+")
_TOKEN = re.compile(
    rb"(?P<number>" + _NUMBER + rb")|(?P<name>/" + _REGULAR + rb"*+)|(?P<open><<|\[)|(?P<close>>>|\])"
    rb"|(?P<string>\()|(?P<reference>R)(?!" + _REGULAR + rb")|<[^>]*+>?|[>{})]|" + _REGULAR + rb"++"
)
# Up to the next parenthesis; the group is empty if that opens another one, or if there is none.
_SIMPLE_STRING = re.compile(rb"\((?:[^()\\]++|\\.)*+(\)?)", re.DOTALL)
_PARENTHESIS = re.compile(rb"\\.|[()]", re.DOTALL)
# Backwards, before the word `obj`: the generation and the number.
_HEADER = re.compile(_WHITE + rb"*+[\d.eE+\-]++" + _WHITE + rb"++([\d.eE+\-]++)")
_FIRST = re.compile(rb"/First(?!" + _REGULAR + rb")")
_WINDOW = 64  # bytes before it; more if it is full
_MOST_DIGITS = 10  # of the number of an object
# Only letters and digits: another escaped character must not become a delimiter.
_ESCAPE = re.compile(rb"#(3[0-9]|[46][1-9a-fA-F]|[57][0-9aA])")
_MAX_DEPTH = 100  # of nested arrays and dictionaries; viewers have such limits, too
_TOKEN_WORK, _PARENTHESIS_WORK, _OBJECT_WORK = 450, 80, 200
_SKIP_WORK, _COMMENT_WORK = 3, 25  # for a byte that is skipped, and for each comment among these
_SEARCH_WORK, _STRING_WORK = 4, 70  # for a byte in which pairs are counted again, and for a string that is removed


class Reference(NamedTuple):
    number: int


Dictionary = dict[bytes, list["Value"]]  # each key may be there more than once
# A number, a name without its slash, an array; None for strings and everything else.
Value = int | bytes | Reference | list["Value"] | Dictionary | None


def plain(text: bytes) -> bytes:
    """With the escapes in names replaced: `/J#61vaScript`."""
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text) if b"#" in text else text


def number_of(token: bytes) -> int | None:
    """If it is a whole number: `+05`, `5.0` and `50e-1` are, and minus signs within are ignored."""
    if len(token) < _MOST_DIGITS and token.isdigit():
        return int(token)
    base, mark, exponent = token.strip(b"+-\r\n").lower().partition(b"e")
    base = base.replace(b"-", b"")
    if not mark and base.isdigit():
        digits = base.lstrip(b"0")
        return int(digits or b"0") if len(digits) <= _MOST_DIGITS else None
    try:
        value = float(base + mark + exponent)
    except ValueError:
        return None
    return int(value) if value.is_integer() and value < 10**_MOST_DIGITS else None


class Reader:
    """Reads objects at any place of a text."""

    def __init__(self, text: bytes, budget: Budget) -> None:
        self._text = text
        self._budget = budget

    def skip(self, at: int) -> int:
        """The place after white space and comments."""
        end = _SKIPPED.match(self._text, at).end()  # type: ignore[union-attr]  # (it matches nothing, too)
        if end > at:
            self._budget.take_work(_SKIP_WORK * (end - at) + _COMMENT_WORK * self._text.count(b"%", at, end))
        return end

    def value(self, at: int) -> tuple[Value, int]:
        """The object at a place, and where it ends. If its end is missing, as much of it as there is."""
        stack: list[list[Value]] = [[]]
        while token := self._token(at):
            at, kind = token.end(), token.lastgroup
            if kind == "open":
                stack.append([])
                if len(stack) > _MAX_DEPTH:
                    return None, at
                continue
            if kind == "close":
                if len(stack) == 1:
                    break
                items = stack.pop()
                stack[-1].append(items if token.group() == b"]" else _dictionary(items))
            elif kind == "reference":
                if (number := _referred(stack[-1])) is not None:
                    stack[-1][-2:] = [Reference(number)]
            elif kind == "string":
                at = self._string_end(at)
                stack[-1].append(None)
            else:
                word = token.group()
                stack[-1].append(number_of(word) if kind == "number" else plain(word[1:]) if kind == "name" else None)
            if len(stack) == 1 and not (kind == "number" and self._may_be_reference(at, len(stack[0]))):
                break
        while len(stack) > 1:
            items = stack.pop()
            stack[-1].append(_dictionary(items))
        return (stack[0][0] if stack[0] else None), at

    def _token(self, at: int) -> re.Match[bytes] | None:
        """The next one; charged with what precedes it."""
        start = self.skip(at)
        token = _TOKEN.match(self._text, start)
        self._budget.take_work(_TOKEN_WORK + (token.end() - start if token else 0))
        return token

    def _may_be_reference(self, at: int, count: int) -> bool:
        """Whether the next token belongs to the numbers before it."""
        token = _TOKEN.match(self._text, self.skip(at))
        return token is not None and token.lastgroup == ("number" if count == 1 else "reference" if count == 2 else "")

    def _string_end(self, at: int) -> int:
        """After the parenthesis that ends a string; each may contain others."""
        depth = 1
        for match in _PARENTHESIS.finditer(self._text, at):
            self._budget.take_work(_PARENTHESIS_WORK)
            depth += {b"(": 1, b")": -1}.get(match.group(), 0)
            if not depth:
                self._budget.take_work(match.end() - at)
                return match.end()
        self._budget.take_work(len(self._text) - at)
        return len(self._text)


def _referred(items: list[Value]) -> int | None:
    match items[-2:]:
        case [int(number), int() | None]:
            return number
    return None


def _dictionary(items: list[Value]) -> Dictionary:
    found: Dictionary = {}
    at = 0
    while at + 1 < len(items):
        key = items[at]
        if isinstance(key, bytes):
            found.setdefault(key, []).append(items[at + 1])
        at += 2 if isinstance(key, bytes) else 1
    return found


def references(value: Value) -> Iterator[int]:
    """The numbers of the objects that it refers to, itself or as an array."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, Reference):
            yield item.number


class Described(NamedTuple):
    """A dictionary that the word `stream` follows."""

    numbers: frozenset[int] | None  # of the object, as different readers see them; None if it is not clear
    start: int  # of the dictionary
    dictionary: Dictionary


class Objects:
    """The objects of a document, in all its versions."""

    def __init__(self, content: bytes, budget: Budget) -> None:
        self._budget = budget
        self._content = content
        self._reader = Reader(content, budget)
        self._places: dict[int, list[int]] = {}
        self._packed: list[tuple[bytes, list[int]]] = []  # object streams, and where their objects may begin
        self._packed_places: dict[int, list[tuple[Reader, bytes, int]]] | None = None
        self.streams: dict[int, list[Described]] = {}  # by the place of the word `stream`
        self._searched = 0  # up to where pairs were counted
        self._find()

    def _find(self) -> None:
        content, end = self._content, 0
        words = {b"stream": 0, b"endobj": 0}  # where each of them is next
        while (at := content.find(b"obj", end)) >= 0:
            end = at + 3
            if content.startswith(b"end", max(0, at - 3)):
                continue
            self._budget.take_work(_OBJECT_WORK)
            numbers = _numbers_before(content, at)
            for number in numbers or ():
                self._places.setdefault(number, []).append(end)
            for word, place in words.items():
                words[word] = content.find(word, end) if 0 <= place < end else place
            start = self._reader.skip(end)
            if content.startswith(b"<<", start) and self._may_have_stream(start, words[b"stream"], words[b"endobj"]):
                value, after = self._reader.value(start)
                after = self._reader.skip(after)
                if content.startswith(b"stream", after) and isinstance(value, dict):
                    self.streams.setdefault(after, []).append(Described(numbers, start, value))

    def _may_have_stream(self, start: int, word: int, end: int) -> bool:
        """Whether the next `stream` may belong to this dictionary: the next `endobj` may be in a string, or a value."""
        if word < 0 or end < 0 or word < end:
            return word >= 0
        text = self._content[start:end]
        is_again = start < self._searched
        self._searched = max(self._searched, end)
        self._budget.take_work((_SEARCH_WORK if is_again else 1) * (end - start))
        if b"%" in text or b"\\" in text:
            self._budget.take_work(_STRING_WORK * text.count(b"(") if is_again else 0)

            def without(string: re.Match[bytes]) -> bytes:
                if not is_again:  # one by one: ordinary documents have escaped parentheses, which are no strings
                    self._budget.take_work(_STRING_WORK)
                return b"" if string[1] else string[0]

            text = _SIMPLE_STRING.sub(without, text)
        pairs = ((b"<<", b">>"), (b"(", b")"))
        return b"%" in text or b"\\" in text or any(text.count(first) != text.count(last) for first, last in pairs)

    def add_packed(self, data: bytes, about: bytes) -> None:
        """An object stream, and what describes it."""
        reader, firsts = Reader(about, self._budget), []
        for match in list(_FIRST.finditer(about)):
            first, _ = reader.value(match.end())
            firsts += [first] if isinstance(first, int) else []
        self._packed.append((data, firsts[:1] + firsts[1:][-1:]))  # the first and the last one, if several are named

    def values(self, number: int) -> Iterator[tuple[Value, bytes]]:
        """The objects with this number, and how they are written."""
        for reader, text, place in self._all_places(number):
            self._budget.take_work(_OBJECT_WORK)
            start = reader.skip(place)
            value, end = reader.value(start)
            yield value, text[start:end]

    def _all_places(self, number: int) -> list[tuple[Reader, bytes, int]]:
        if self._packed_places is None:
            self._packed_places = {}
            for data, firsts in self._packed:
                self._read_places(data, firsts, self._packed_places)
        outside = [(self._reader, self._content, place) for place in self._places.get(number, ())]
        return outside + self._packed_places.get(number, [])

    def _read_places(self, data: bytes, firsts: list[int], into: dict[int, list[tuple[Reader, bytes, int]]]) -> None:
        """An object stream begins with pairs: the number of an object, and how far it is from the first one."""
        reader, end, found = Reader(data, self._budget), 0, []
        while (number := _TOKEN.match(data, reader.skip(end))) and number.lastgroup == "number":
            offset = _TOKEN.match(data, reader.skip(number.end()))
            if offset is None or offset.lastgroup != "number":
                break
            self._budget.take_work(_OBJECT_WORK)
            found.append((number_of(number.group()), number_of(offset.group())))
            end = offset.end()
        for key, distance in found:
            for place in sorted({first + (distance or 0) for first in (end, *firsts)}):
                if key is not None and place < len(data):
                    self._budget.take_work(_OBJECT_WORK)
                    into.setdefault(key, []).append((reader, data, place))


def _numbers_before(content: bytes, at: int) -> frozenset[int] | None:
    """The number of the object whose word `obj` is here; also that of its last digits, if more precedes them."""
    size = _WINDOW
    while True:
        start = max(0, at - size)
        match = _HEADER.match(content[start:at][::-1])
        if start and (match is None or match.end() == at - start):
            window = content[start:at]
            if match is not None or not window.strip(b"0123456789.eE+- \t\r\n\f\v\0"):
                size *= 2
                continue
        if match is None:
            return None
        token = match[1][::-1]
        found = (number_of(token), number_of(token[len(token.rstrip(b"0123456789")) :]))
        return frozenset(number for number in found if number is not None)
