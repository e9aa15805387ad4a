"""Files within a web page: the content of `data:` addresses, and the names that the page gives to downloads.

A browser saves the content of `<a download="x.js" href="data:...">` as a file of that name, at a click or when a
script clicks. Files that a script puts together are not found. Character references in the page are replaced already.
Everything here is linear in its length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from bridge.mime import encodings
from bridge.service.analysis.links import without_breaks

_ADDRESS = re.compile(r"data:([^,\"'<>]{0,200}),", re.IGNORECASE)
_NAME = re.compile(  # of an attribute, of a property, or in `setAttribute("download", "x.js")`
    r"[\s\"'./]download(?:\s*=|[\"']\s*\]?\s*[=,])\s*(?:\"([^\"<>]{1,1000})|'([^'<>]{1,1000})|([^\s\"'<>;)]{1,1000}))",
    re.IGNORECASE,
)
_END = re.compile(r"[\s\"'<>)]")


class PageFile(NamedTuple):
    content_type: str
    content: bytes


def files(page: str) -> Iterator[PageFile]:
    """What is in `data:` addresses (RFC 2397)."""
    text = without_breaks(page)
    match = _ADDRESS.search(text)
    while match is not None:
        end = _end(text, match)
        content = unquote_to_bytes(text[match.end() : end])
        kind, *parameters = match[1].split(";")
        if any(parameter.strip().lower() == "base64" for parameter in parameters):
            content, _ = encodings.decode(content, "base64")
        yield PageFile(kind.strip().lower(), content)
        match = _ADDRESS.search(text, end)


def _end(text: str, match: re.Match[str]) -> int:
    """The quote that ends the address, if one begins it: it may contain spaces."""
    quote = text[max(0, match.start() - 1) : match.start()]
    if quote in ("'", '"'):
        end = text.find(quote, match.end())
        return end if end >= 0 else len(text)
    found = _END.search(text, match.end())
    return found.start() if found else len(text)


def names(page: str) -> set[str]:
    """Of attributes (`download="x.js"`), and what scripts assign (`a.download = "x.js"`)."""
    found = {"".join(groups).strip() for groups in _NAME.findall(page)}
    return {name for name in found if "." in name}
