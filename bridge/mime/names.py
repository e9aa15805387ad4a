"""File names in header fields: every name that one mail program or another shows for a part.

Whether a file is dangerous depends on its name, because mail programs open a file by its name. A part may
have several: in two fields, in one field twice, in pieces, encoded in two standards, with quotes and
comments in odd places. Nothing here decides between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import unquote_to_bytes

from bridge.mime.words import as_text, decode_words

MAX_TEXT = 64 * 1024  # characters of all fields that may contain a name
_VALUE = re.compile(r"""name([^=;]{0,20})=\s{0,50}("(?:[^"\\]|\\.){0,1000}"?|[^;]{0,1000})""", re.I | re.DOTALL)
_TO_SEMICOLON = re.compile(r"name[^=;]{0,20}=([^;]{0,1000})", re.I)
_TOKEN = re.compile(r"""[^\s"';=/\\<>()]{1,100}\.[A-Za-z0-9]{1,5}(?![A-Za-z0-9])""")
_NUMBER = re.compile(r"\*\s{0,9}(\d{1,4})")
_COMMENT = re.compile(r"\([^()]{0,200}\)")
_FIELD = re.compile(  # with the lines that continue it, or that begin with a name as if they did
    rb"(?:(?<=[\r\n])|\A)[ \t]*content[-_ ]{0,3}[td][^\r\n]{0,9000}"
    rb"(?:\r?\n(?:[ \t]|[a-z]{0,8}name)[^\r\n]{0,2000}){0,50}",
    re.IGNORECASE,
)
_SPACES = re.compile(r"\s+")
_LANGUAGE = re.compile(r"[A-Za-z0-9_-]{0,40}'(?:[A-Za-z0-9-]{0,20}')?")


def candidates(field: str) -> set[str]:
    """All names that a `Content-Type` or `Content-Disposition` field may give."""
    field = field[:MAX_TEXT]
    pieces = [(number, _bare(value)) for number, value in _VALUE.findall(field)]
    texts = {*(value for _, value in pieces), *_joined(pieces), *_TO_SEMICOLON.findall(field)}
    found: set[str] = set()
    for text in texts:
        for form in _forms(text):
            found.add(form.strip().strip("\"'"))
            found |= set(_TOKEN.findall(form))
    return {_SPACES.sub(" ", name[-255:]) for name in found if "." in name}


def everywhere(data: bytes) -> set[str]:
    """All names in everything that looks like such a field, wherever it is in the mail."""
    found: set[str] = set()
    left = MAX_TEXT
    for match in _FIELD.finditer(data):
        text = re.sub(r"\r?\n[ \t]+", " ", match.group().decode("utf-8", "replace"))
        found |= candidates(text)
        left -= len(text)
        if left < 0:
            break
    return found


def _bare(value: str) -> str:
    return value.strip().strip("\"'")


def _joined(pieces: Iterable[tuple[str, str]]) -> Iterator[str]:
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
    if "=?" in text:
        yield decode_words(text)
        yield decode_words(text.replace('"', "")).replace("\0", "")
