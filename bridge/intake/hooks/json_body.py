"""The JSON of one request, read while it arrives, with one long string taken out of it.

A mail of 50 MiB is 70 MB of JSON, and a JSON parser would hold it several times. So the one string that contains the
mail is passed on piece by piece, an empty string stays in its place, and what is left is small and is parsed at the
end by Python's own parser: this reader only has to know where strings begin and end. Anything that is not strict JSON
is refused: duplicate keys, lone surrogates, NaN, deep nesting, too much of anything. Knows nothing of mail. If this is
wrong, a field of the sender's is read as the mail server's, or one request takes all memory.
"""

from __future__ import annotations

import json
import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from bridge.api.json_answer import DuplicateKey, unique_keys

MAX_KEPT = 2 * 1024 * 1024  # what is left: a thousand recipients, or (Stalwart) a whole header section
_MAX_DEPTH = 32
_MAX_MARKS = 100_000  # braces, brackets, colons and commas: a bound for the objects that are made of them

# The part of a string that is complete. An escape may be cut at the end of a block; a surrogate needs its partner. Not
# possessive: Python 3.11.2 continues after an alternative that fails. It always matches, so nothing is tried twice.
_TEXT = re.compile(
    rb'(?:[^"\\\x00-\x1f]+|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
_LONGEST_ESCAPE = 12
_MARK = re.compile(rb'["{}\[\]:,]')


class BadJson(ValueError):
    """The request is not the JSON that it should be."""


class TooMuch(BadJson):
    """The request has more than a limit allows."""


class Taker(Protocol):
    """Receives the long string: the bytes it stands for, with escapes decoded. All methods may raise BadJson."""

    def begin(self, kept: bytes) -> None:
        """The string begins; `kept` is the JSON before it."""

    def take(self, block: bytes) -> None: ...

    def end(self) -> None: ...


class _Frame:
    """An object or an array that is open."""

    __slots__ = ("awaits_key", "is_object", "key")

    def __init__(self, is_object: bool) -> None:
        self.is_object = is_object
        self.awaits_key = is_object
        self.key: str | None = None


class JsonBody:
    """`feed` the blocks of a body, then `end`."""

    def __init__(self, place: tuple[str, ...], taker: Taker) -> None:
        self._place = place
        self._taker = taker
        self._kept = bytearray()
        self._frames: list[_Frame] = []
        self._marks = 0
        self._rest = b""  # an escape that is cut off
        self._string = 0  # where in `_kept` the string that is open begins; 0: none is open
        self._is_taken = False  # the open string is passed on
        self.has_taken = False

    @property
    def kept_bytes(self) -> int:
        return len(self._kept)

    def feed(self, block: bytes) -> None:
        """Raises BadJson."""
        data, self._rest = self._rest + block if self._rest else block, b""
        position = 0
        while position < len(data):
            read = self._read_string if self._string else self._read_marks
            position = read(data, position)
        if len(self._kept) > MAX_KEPT:
            raise TooMuch("the request is too large even without the mail")

    def end(self) -> dict[str, Any]:
        """What is left. Raises BadJson."""
        try:
            text = self._kept.decode("utf-8")  # json would guess the encoding
            found = json.loads(
                text, object_pairs_hook=unique_keys, parse_constant=_no_constant, parse_float=_no_long_number
            )
        except DuplicateKey as exc:
            raise BadJson(str(exc)) from None
        except BadJson:
            raise
        except (ValueError, RecursionError):
            raise BadJson("the request is not valid JSON") from None
        if not isinstance(found, dict):
            raise BadJson("the request is not a JSON object")
        return found

    # Outside of strings

    def _read_marks(self, data: bytes, position: int) -> int:
        found = _MARK.search(data, position)
        if found is None:
            self._kept += data[position:]
            return len(data)
        self._kept += data[position : found.end()]
        mark = found[0]
        if mark == b'"':
            self._begin_string()
        else:
            self._marks += 1
            if self._marks > _MAX_MARKS:
                raise TooMuch("the request has too many values")
            self._step(mark)
        return found.end()

    def _step(self, mark: bytes) -> None:
        frames = self._frames
        if mark in b"{[":
            if len(frames) >= _MAX_DEPTH:
                raise TooMuch("the request is nested too deeply")
            frames.append(_Frame(mark == b"{"))
        elif not frames:
            raise BadJson("the request is not valid JSON")
        elif mark in b"}]":
            frames.pop()
        elif frames[-1].is_object:
            frames[-1].awaits_key = mark == b","

    # Strings

    def _begin_string(self) -> None:
        self._string = len(self._kept)
        frames = self._frames
        if frames and len(frames) == len(self._place) and not frames[-1].awaits_key:
            self._is_taken = all(frame.key == key for frame, key in zip(frames, self._place, strict=True))
        if self._is_taken:
            if self.has_taken:
                raise BadJson("a key occurs twice")
            self.has_taken = True
            self._taker.begin(bytes(self._kept))

    def _read_string(self, data: bytes, position: int) -> int:
        found = _TEXT.match(data, position)
        assert found is not None  # it matches the empty string
        end = found.end()
        if self._is_taken:
            self._taker.take(_plain(data[position:end]))
        else:
            self._kept += data[position:end]
        if end == len(data):
            return end
        if data[end : end + 1] == b'"':
            self._end_string()
            return end + 1
        if data[end : end + 1] != b"\\" or len(data) - end >= _LONGEST_ESCAPE:
            raise BadJson("a string in the request has an invalid character or escape")
        self._rest = data[end:]
        return len(data)

    def _end_string(self) -> None:
        if self._is_taken:
            self._taker.end()
        elif self._frames and self._frames[-1].awaits_key:
            key = bytes(self._kept[self._string :])
            try:
                self._frames[-1].key = _plain(key).decode("utf-8")
            except UnicodeDecodeError:
                raise BadJson("the request is not UTF-8") from None
        self._kept += b'"'
        self._string, self._is_taken = 0, False


def _plain(text: bytes) -> bytes:
    """With the escapes decoded, all of which are complete; other bytes that are not UTF-8 stay as they are."""
    if b"\\" not in text:
        return text
    meant: str = json.loads(f'"{text.decode("utf-8", "surrogateescape")}"')
    return meant.encode("utf-8", "surrogateescape")


def _no_constant(name: str) -> NoReturn:
    raise BadJson(f"{name} is not JSON")


def _no_long_number(text: str) -> float:
    if len(text) > 40:
        raise BadJson("a number is too long")
    return float(text)


class Base64Content:
    """A taker of base64, as strict as RFC 4648 allows: every byte of the string is part of the content."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._rest = b""
        self._is_padded = False

    def begin(self, kept: bytes) -> None:
        """Nothing that comes before matters."""

    def take(self, block: bytes) -> None:
        if not block:
            return
        if self._is_padded:
            raise BadJson("the content is not valid base64")
        data = self._rest + block
        end = len(data) - len(data) % 4
        self._rest = data[end:]
        whole = data[:end]
        try:
            self._write(a2b_base64(whole, strict_mode=True))
        except Base64Error:
            raise BadJson("the content is not valid base64") from None
        self._is_padded = whole.endswith(b"=")

    def end(self) -> None:
        if self._rest:
            raise BadJson("the content is not valid base64")
