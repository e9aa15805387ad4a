"""Header fields in a raw header section: what one field is, folded lines included.

Works on bytes with CRLF line ends, as `Message.head` returns them; nothing is decoded, nothing is
repaired. Callers that cut fields out, or trust their values, share this definition: a field that one
of them saw differently from another could be smuggled past the first.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count

from bridge.runtime.value import value

# RFC 5322 2.2.3: a value continues on every following line that begins with a space or tab. A CR or LF that does not
# end a line is part of it. Searching for the end takes a twentieth of the time of matching the lines one by one, which
# took a second for a header section of 1 MiB.
_END = re.compile(rb"\r\n(?![ \t])")
_REST = rb"((?s:.*?))\r\n(?![ \t])"  # of a field

# A field that every reader sees in the same way. White space before the colon is obsolete syntax (4.5), but common
# enough; it stays part of the name. A line of white space alone ends the header section for some readers, and so does a
# bare CR, LF or NUL: fields with these do not match.
_CLEAN_FIELD = re.compile(rb"([!-9;-~]+[ \t]*):([^\r\n\0]*(?:\r\n(?=[ \t]+[^ \t\r\n\0])[^\r\n\0]+)*)\r\n")
# The same, line by line, each with the line end before it: a first line with its name, and one that continues a field.
_CLEAN_NAME = re.compile(rb"\n([!-9;-~]++)[ \t]*+:")
_CLEAN_FOLD = re.compile(rb"\n(?=[ \t]++[^\r])")


@value
class Field:
    """One field as it is written; `name` includes white space before the colon."""

    name: bytes
    value: bytes  # folded, without the last CRLF
    raw: bytes

    @property
    def is_printable(self) -> bool:
        """Whether the value is plain text without control characters: nothing in it could end a line for any reader."""
        try:
            text = self.value.decode("utf-8")
        except UnicodeDecodeError:
            return False
        return text.replace("\r\n", "").replace("\t", " ").isprintable()


def clean_fields(head: bytes) -> list[Field] | None:
    """All fields of a header section; None if a line in it is not a field, because readers then disagree about it."""
    fields = clean_fields_from_top(head)
    return None if fields is None else list(fields)


def clean_fields_from_top(head: bytes) -> Iterator[Field] | None:
    """The same, for callers that need only some: a header section may have a quarter of a million fields."""
    return None if clean_names(head) is None else _read_clean(_ended(head))


def clean_names(head: bytes) -> list[bytes] | None:
    """Only their names, in lower case and without white space before the colon, in a tenth of the time."""
    head = _ended(head)
    lines = head.count(b"\r\n")
    if b"\0" in head or head.count(b"\r") != lines or head.count(b"\n") != lines:
        return None
    names: list[bytes] = _CLEAN_NAME.findall(b"\n" + head.lower())
    if len(names) < lines and len(names) + len(_CLEAN_FOLD.findall(head)) < lines:
        return None
    return names


def _ended(head: bytes) -> bytes:
    return head + b"\r\n" if head and not head.endswith(b"\r\n") else head


def _read_clean(head: bytes) -> Iterator[Field]:
    position = 0
    while (found := _CLEAN_FIELD.match(head, position)) is not None:
        yield Field(found[1], found[2], found[0])
        position = found.end()


def field_places(head: bytes, names: Collection[bytes], most: int | None = None) -> dict[bytes, list[tuple[int, int]]]:
    """Where the fields of these names, given in lower case, begin and end. `most`: the maximum number of fields."""
    found: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    position = 0
    any_name = b"|".join(map(re.escape, sorted(names)))
    beginning = re.compile(rb"^(%b)[ \t]*:" % any_name, re.IGNORECASE | re.MULTILINE)
    numbers = count(1)
    while names and (field := beginning.search(head, position)) is not None:
        last = _END.search(head, field.end())
        position = last.end() if last is not None else len(head)
        found[field[1].lower()].append((field.start(), position))
        if next(numbers) == most:
            break
    return found


def begins_behind(chunks: Iterable[bytes], seen: int, beginnings: Sequence[bytes]) -> bool:
    """Whether a line of a header section begins like this, in lower case, after the first `seen` bytes of the mail.

    For a header section that is too long to be read in one piece.
    """
    rest, longest = b"\r\n", max(map(len, beginnings))
    for chunk in chunks:
        if seen >= len(chunk):
            seen -= len(chunk)
            continue
        rest += chunk[seen:].lower()
        seen = 0
        end = rest.find(b"\r\n\r\n")
        searched = rest if end < 0 else rest[: end + 2]
        if any(b"\n" + beginning in searched for beginning in beginnings):
            return True
        if end >= 0:
            return False
        rest = rest[-longest - 4 :]
    return False


class FieldFinder:
    """Finds and removes whole fields, given how their first line begins.

    In a header section that was cut in a line, the last field ends with the line before. The fields are matched in one
    go: a header section of 1 MiB may have a hundred thousand of them, and a call for each took a quarter of a second.
    """

    def __init__(self, beginning: bytes) -> None:
        self._field = re.compile(rb"^%b%b" % (beginning, _REST), re.IGNORECASE | re.MULTILINE)

    def find(self, head: bytes) -> Iterator[Found]:
        """All such fields, the topmost first."""
        return (Found(found[1], found[0]) for found in self._field.finditer(_whole_lines(head)))

    def values(self, head: bytes) -> list[bytes]:
        """The values of all such fields, the topmost first."""
        return self._field.findall(_whole_lines(head))

    def first(self, head: bytes) -> Found | None:
        return next(self.find(head), None)

    def remove(self, head: bytes, is_wanted: Callable[[bytes], bool] | None = None) -> bytes:
        """The header section without them, or only without wanted values; the same object if there are none."""
        lines = _whole_lines(head)
        if is_wanted is None:
            kept = self._field.sub(b"", lines)
        else:
            kept = self._field.sub(lambda found: b"" if is_wanted(found[1]) else found[0], lines)
        return kept + head[len(lines) :] if len(kept) < len(lines) else head


def _whole_lines(head: bytes) -> bytes:
    return head[: head.rfind(b"\r\n") + 2]


@value
class Found:
    """A field that was found."""

    value: bytes  # folded: what follows the beginning, without the last CRLF
    raw: bytes


def field_named(name: str) -> FieldFinder:
    """Whole fields of this name; white space before the colon is allowed."""
    return FieldFinder(rb"%b[ \t]*:" % _escaped(name))


def fields_with_prefix(prefix: str) -> FieldFinder:
    """Whole fields whose name begins with this prefix.

    Also lines without a colon: they are not fields, but a lenient reader may take them for ours.
    """
    return FieldFinder(_escaped(prefix))


def _escaped(name: str) -> bytes:
    return re.escape(name.lower().encode("ascii"))
