"""Files within a web page: the content of `data:` addresses, and the names that the page gives to downloads.

A browser saves the content of `<a download="x.js" href="data:...">` as a file of that name, at a click or when a
script clicks. Files that a script puts together are not found. The page is one of the readings of `page_text`: its
character references are replaced already. Where an address ends depends on what precedes it; if that leaves
doubts, each end is tried. Everything here is linear in its length, but addresses may contain each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import unquote, unquote_to_bytes

from bridge.mime import encodings
from bridge.mime.rare_charsets import escapes_replaced
from bridge.service.analysis.content import file_types
from bridge.service.analysis.content.link_address import without_breaks
from bridge.service.analysis.content.page_text import ascii_lower

# Both are searched for in lower case, without a pattern: one that ignores case takes ten times as long (Python 3.11).
_SCHEME, _DOWNLOAD = "data:", "download"
_NAME = re.compile(  # of an attribute, of a property, or in `setAttribute("download", "x.js")`
    r"[\s\"'`./]download(?:\s*+=|[\"'`]\s*+(?:\]\s*+)?[=,])\s*+(?:\"([^\"]*)|'([^']*)|`([^`]*)|([^\s>]+))",
    re.IGNORECASE,
)
_TYPE = re.compile(r"[a-z0-9.+-]{1,99}/[a-z0-9.+-]{1,99}")
_NO_SCRIPTS = ("image/", "audio/", "video/", "font/", "text/css", "text/csv")
_SHOWN = 255  # characters at the end of a name, which decide how a file is opened
_MAX_TYPE = 200  # characters of a media type; no program has a longer one
_MAX_PARAMETERS = 2000  # characters; after more, both readings are tried
_END = re.compile(r"[\s\"'<>)`]")
_ENDS = {"=": re.compile(r"[\s>]"), "(": re.compile(r"\)"), **{quote: re.compile(quote) for quote in "\"'`"}}


class PageFile(NamedTuple):
    content_type: str
    content: bytes


def files(page: str, charge: Callable[[int], object] | None = None) -> Iterator[PageFile]:
    """What is in `data:` addresses (RFC 2397).

    `charge` is called with the length of each, because each may contain all that follow, and it may raise.
    """
    text = without_breaks(page)
    comma = -1
    for at in _places(_SCHEME, ascii_lower(text)):
        start = at + len(_SCHEME)
        comma = comma if comma >= start else text.find(",", start)
        if comma < 0:
            return
        kind = text[start : min(comma, start + _MAX_TYPE)].partition(";")[0].strip().lower()
        parameters = text[max(start, comma - _MAX_PARAMETERS) : comma].rstrip().lower()
        is_long = comma - start > _MAX_PARAMETERS
        for end in _ends(text, at, comma + 1):
            if charge is not None:
                charge(end - comma)
            content = unquote_to_bytes(text[comma + 1 : end].partition("#")[0])  # what follows is not content
            if "base64" in parameters or is_long:
                yield PageFile(kind, encodings.decode(content, "base64")[0])
            if not parameters.endswith("base64"):  # not every browser looks for it elsewhere
                yield PageFile(kind, content)


def may_be_script(file: PageFile) -> bool:
    """Whether a browser may run it: `<script src="data:,...">` needs no type. In scripts, "data:" is also a word."""
    kind = file.content_type
    if (kind and not _TYPE.fullmatch(kind)) or kind.startswith(_NO_SCRIPTS) or not file_types.is_text(file.content):
        return False
    return b"\0" not in file.content or file_types.is_program_type(kind)


def _places(word: str, lower: str) -> Iterator[int]:
    at = lower.find(word)
    while at >= 0:
        yield at
        at = lower.find(word, at + len(word))


def _ends(text: str, start: int, content: int) -> set[int]:
    """A quote that begins the address ends it: it may contain spaces. Without one, it depends on the language."""
    while start and text[start - 1] <= " ":
        start -= 1
    before = text[start - 1 : start]
    patterns = [_ENDS.get(before, _END)] if before in ("'", '"', "`") else [_ENDS.get(before, _END), _END]
    found = (pattern.search(text, content) for pattern in patterns)
    return {match.start() if match else len(text) for match in found}


def names(page: str, lower: str) -> set[str]:
    """Those in attributes (`download="x.js"`), and those that scripts assign (`a.download = "x.js"`).

    `lower` is the page in lower case: converting a long page that is not ASCII takes milliseconds.
    """
    if _DOWNLOAD not in lower:
        return set()
    found = {"".join(match.groups("")).strip()[-_SHOWN:] for match in _name_matches(page)}
    found |= {form for name in found for form in (unquote(name), escapes_replaced(name))}
    return {name for name in found if "." in name}


def _name_matches(page: str) -> Iterator[re.Match[str]]:
    """What `_NAME.finditer` finds: each begins one character before the word."""
    after = 0
    for at in _places(_DOWNLOAD, ascii_lower(page)):
        match = _NAME.match(page, at - 1) if at > after else None
        if match is not None:
            yield match
            after = match.end()
