"""File names in header fields: every name that one mail program or another shows for a part.

Whether a file is dangerous depends on its name, because mail programs open a file by its name. A part may
have several: in two fields, in one field twice, in pieces, encoded in two standards, with quotes and
comments in odd places. `candidates` does not decide between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from bridge.mime.words import as_text, decode_words

MAX_FIELD = 2000
MAX_FIELDS = 500
_VALUE = re.compile(r"""name[^=;]{0,20}=\s{0,50}("(?:[^"\\]|\\.)*"?|[^;]*)""", re.IGNORECASE | re.DOTALL)
_TOKEN = re.compile(r"""[^\s"';=/\\<>()]{1,100}\.[A-Za-z0-9]{1,5}(?![A-Za-z0-9])""")
_COMMENT = re.compile(r"\([^()]{0,200}\)")
_FIELD = re.compile(rb"content[-_ ]{0,3}[td][^\r\n]{0,2000}(?:\r?\n[ \t][^\r\n]{0,2000}){0,20}", re.IGNORECASE)
_LANGUAGE = re.compile(r"[A-Za-z0-9_-]{0,40}'[A-Za-z0-9-]{0,20}'")


def candidates(field: str) -> set[str]:
    """All names that a `Content-Type` or `Content-Disposition` field may give."""
    values = _VALUE.findall(field[:MAX_FIELD])
    pieces = [_LANGUAGE.sub("", value.strip().strip("\"'"), count=1) for value in values]
    texts = {*values, *pieces, "".join(pieces), "".join(reversed(pieces)), field[:MAX_FIELD]}
    found: set[str] = set()
    for text in list(texts):
        for form in _forms(text):
            found.add(form.strip().strip("\"'"))
            found |= set(_TOKEN.findall(form))
    return {name[:255] for name in found if "." in name}


def everywhere(data: bytes) -> set[str]:
    """All names in everything that looks like such a field, wherever it is in the mail."""
    found: set[str] = set()
    for number, match in enumerate(_FIELD.finditer(data)):
        if number >= MAX_FIELDS:
            break
        found |= candidates(re.sub(r"\r?\n[ \t]+", " ", match.group().decode("utf-8", "replace")))
    return found


def _forms(text: str) -> Iterator[str]:
    yield text
    yield text.replace("\\", "").replace('"', "").replace("\0", "")
    yield _COMMENT.sub("", text)
    if "%" in text:
        decoded = unquote_to_bytes(text)
        yield as_text(decoded, "utf-8")
        yield decoded.replace(b"\0", b"").decode("latin-1")
    if "=?" in text:
        yield decode_words(text)
        yield decode_words(text.replace('"', "")).replace("\0", "")
