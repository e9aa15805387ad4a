"""Links in files that are not text: old Office documents, notes, messages of Outlook, and macros.

Found by their bytes alone, in 8-bit and in 16-bit characters, in capitals as well, with any scheme, and with slashes or
backslashes as browsers accept them. `link_address` says where one leads. Linear; raises only TooMuch.
"""

from __future__ import annotations

import re

from bridge.service.analysis.content.unpacking import Budget

_BYTE_WORK, _MARK_WORK, _MATCH_WORK = 4, 20, 250
# All in lower case. Each pattern begins with literal characters, which `re` searches for fast, and goes on to the end:
# a long user may precede the host.
_LINKS = tuple(
    re.compile(start + rb"[!-~]{4,}+")
    for start in (rb"http(?:s:|:)[/\\]*+", rb"ftp:[/\\]*+", rb":[/\\]{2,}+", rb"www\.")
)
_WIDE_LINKS = tuple(
    re.compile(start + rb"(?:[!-~]\0){4,}+")
    for start in (
        rb"h\0t\0t\0p\0(?:s\0:\0|:\0)(?:[/\\]\0)*+",
        rb"f\0t\0p\0:\0(?:[/\\]\0)*+",
        rb":\0(?:[/\\]\0){2,}+",
        rb"w\0w\0w\0\.\0",
    )
)
# Hosts with other letters. Anything may follow a link in such a file, so these count only if they end as a host does.
_HOSTS = re.compile(rb":[/\\]{1,9}+[0-9a-z.@_~%-]*+[\x80-\xff][0-9a-z.@_~%\x80-\xff-]{1,500}+(?=[/\\:?#\0-\x20\"'<>])")
_WIDE_HOSTS = re.compile(
    rb":\0(?:[/\\]\0){1,9}+(?:[0-9a-z.@_~%-]\0)*+(?:[\xa1-\xff]\0|[\0-\xff][^\0\xd8-\xfe])"
    rb"(?:[0-9a-z.@_~%\xa1-\xff-]\0|[\0-\xff][^\0\xd8-\xfe]){1,500}+(?=[/\\:?#\0-\x20\"'<>]\0)"
)
_SCHEME = re.compile(rb"[a-z][a-z0-9+.-]{1,30}\Z")
_WIDE_SCHEME = re.compile(rb"[a-z]\0(?:[a-z0-9+.-]\0){1,30}\Z")
_LONGEST_SCHEME = 64  # bytes


def links(content: bytes, budget: Budget) -> tuple[str, ...]:
    budget.take_work(_BYTE_WORK * len(content) + _MARK_WORK * content.count(b":"))
    found: dict[str, None] = {}
    lower = content.lower()
    for pattern in (*_LINKS, _HOSTS):
        for match in pattern.finditer(lower):
            budget.take_work(_MATCH_WORK + 2 * len(match[0]))
            found[_decoded(content[_start(match, _SCHEME) : match.end()])] = None
    for pattern in (*_WIDE_LINKS, _WIDE_HOSTS):
        for match in pattern.finditer(lower):
            budget.take_work(_MATCH_WORK + 2 * len(match[0]))
            found[content[_start(match, _WIDE_SCHEME) : match.end()].decode("utf-16-le", "replace")] = None
    return tuple(found)


def _start(match: re.Match[bytes], scheme: re.Pattern[bytes]) -> int:
    """Where the scheme begins."""
    start = match.start()
    if match[0].startswith(b":"):
        before = scheme.search(match.string, max(0, start - _LONGEST_SCHEME), start)
        return before.start() if before else start
    return start


def _decoded(link: bytes) -> str:
    try:
        return link.decode("utf-8")
    except UnicodeDecodeError:
        return link.decode("latin-1")
