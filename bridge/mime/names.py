"""File names in header fields: every name that one mail program or another shows for a part.

Whether a file is dangerous depends on its name, because mail programs open a file by its name. A part may
have several: in two fields, in one field twice, in pieces, encoded in two standards, with quotes and
comments in odd places. Nothing here decides between them. The work is linear and bounded, because it is
done for every attachment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from urllib.parse import unquote_to_bytes

from bridge.mime.words import as_text, decode_words

MAX_FIELD = 2000  # characters of one field
MAX_VALUES = 30  # values in one field
MAX_FIELDS = 2000  # fields in one mail
_VALUE = re.compile(r"""name([^=;]{0,20})=[ \t]{0,50}("(?:[^"\\]|\\.){0,2000}"?|[^;]{0,2000})""", re.IGNORECASE)
_PLAIN = re.compile(r"""[^;="]*;[ \t]*(?:file)?name="?([A-Za-z0-9_.-]+)"?""", re.IGNORECASE)  # nothing to disagree on
_TO_SEMICOLON = re.compile(r"name[^=;]{0,20}=([^;]{0,2000})", re.IGNORECASE)
_NUMBER = re.compile(r"\*[ \t]{0,9}([0-9]{1,4})")
_COMMENT = re.compile(r"\([^()]{0,200}\)")
_SEPARATORS = re.compile(r"""[\s"';,=<>\0]+""")
_SPACES = re.compile(r"\s+")
_LANGUAGE = re.compile(r"[A-Za-z0-9_-]{0,40}'(?:[A-Za-z0-9-]{0,20}')?")
_FIELD = re.compile(  # with the lines that continue it, or that begin with a name as if they did
    rb"(?:(?<=[\r\n])|\A)[^\r\na-z]{0,8}content[-_ ]{0,3}[td][^\r\n]{0,9000}"
    rb"(?:\r?\n(?:[ \t]|[a-z]{0,8}name)[^\r\n]{0,2000}){0,50}",
    re.IGNORECASE,
)


class TooManyNames(Exception):
    """More fields than we are willing to search."""


def candidates(field: str) -> set[str]:
    """All names that a `Content-Type` or `Content-Disposition` field may give."""
    plain = _PLAIN.fullmatch(field)
    if plain is not None:
        return {plain[1][-255:]} if "." in plain[1] else set()
    at = field.lower().find("name")
    field = field[max(0, at) : max(0, at) + MAX_FIELD]
    pieces = [(match[1], match[2].strip().strip("\"'")) for match in islice(_VALUE.finditer(field), MAX_VALUES)]
    loose = (match[1] for match in islice(_TO_SEMICOLON.finditer(field), MAX_VALUES))
    texts = {*(value for _, value in pieces), *_joined(pieces), *loose}
    found: set[str] = set()
    for text in texts:
        for form in _forms(text):
            found.add(_SPACES.sub(" ", form.strip().strip("\"'")))
            found.update(_SEPARATORS.split(form))
    return {name[-255:] for name in found if "." in name}


def everywhere(data: bytes) -> set[str]:
    """All names in everything that looks like such a field, wherever it is in the mail. Raises TooManyNames."""
    found: set[str] = set()
    for number, match in enumerate(_FIELD.finditer(data)):
        if number >= MAX_FIELDS:
            raise TooManyNames
        text = match.group().decode("utf-8", "replace")
        if "name" in text.lower():
            found |= candidates(re.sub(r"\r?\n[ \t]+", " ", text))
    return found


def _joined(pieces: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The pieces put together: in their order, backwards, and by their numbers, of which some may occur twice."""
    values = [_LANGUAGE.sub("", value, count=1) for _, value in pieces]
    yield "".join(values)
    yield "".join(reversed(values))
    first: dict[int, str] = {}
    last: dict[int, str] = {}
    for (number, _), value in zip(pieces, values, strict=True):
        match = _NUMBER.search(number)
        if match is not None:
            first.setdefault(int(match.group(1)), value)
            last[int(match.group(1))] = value
    for numbered in (first, last):
        yield "".join(numbered[number] for number in sorted(numbered))


def _forms(text: str) -> Iterator[str]:
    yield text
    yield text.replace("\\", "").replace('"', "").replace("\0", "")
    yield _COMMENT.sub("", text)
    yield _LANGUAGE.sub("", text, count=1)
    if "%" in text:
        decoded = unquote_to_bytes(text)
        yield as_text(decoded, "utf-8")
        yield decoded.replace(b"\0", b"").decode("latin-1")
    if "?=" in text:
        yield text.replace("?=", "")  # the end of an encoded word that begins before the name
    if "=?" in text:
        yield decode_words(text)
        yield decode_words(text.replace('"', "")).replace("\0", "")
