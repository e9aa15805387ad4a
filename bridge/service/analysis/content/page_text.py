"""The texts that a browser may make of a page: with its character references, entities and escapes replaced.

Links and files are searched for in all of them. Nothing here runs a script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.mime import references
from bridge.mime.rare_charsets import escapes_replaced
from bridge.mime.structure import TooMuch

MAX_PAGES = 8  # nested in attributes: with more, TooMuch
MAX_ENTITIES = 2000  # that a page declares, and
MAX_SIGNS = 1000  # "@" of a page that are looked at one by one; with more, it is read in both ways
MAX_GROWTH = 10  # how many times as long they may make it: with more, TooMuch
_ENTITY = re.compile(r"""<!ENTITY\s+([^\s"'<>%]{1,200})\s+(?:"([^"]*)"|'([^']*)')""")
_NAMED = re.compile(r"&([^\s&;#<>\"']{1,200});")
_CSS_ESCAPE = re.compile(r"\\(?:'([0-9a-fA-F]{2})|([0-9a-fA-F]{1,6})[ \t\r\n\f]?|([g-zG-Z:/.@]))")

_INPUT = re.compile(r"<input[\s/][^<>]*+")


def readings(page: str) -> list[str]:
    """The page with its references replaced, as text and as an attribute; and what its own entities make of it."""
    if "<!ENTITY" in page:
        page = _expanded(page)
    found = [references.unescaped(page)]
    if references.have_delimiters(page):
        found.append(references.in_values(page))
    return found


def link_readings(page: str) -> list[str]:
    """The same for callers that look for hosts. A reference changes where a host is only if it is before an "@"."""
    if "[" in page and "<!ENTITY" in page:  # they are in brackets
        return readings(page)
    plain = references.unescaped(page)
    if not references.have_delimiters(page):
        return [plain]
    is_clear = plain.count("@") == page.count("@") <= MAX_SIGNS  # none is written as a reference
    if is_clear:
        is_clear = not any(references.have_delimiters(piece[_authority(piece) :]) for piece in page.split("@")[:-1])
    return [plain] if is_clear else [plain, references.in_values(page)]


def _authority(text: str) -> int:
    """Where the last user or host in it begins: after a slash, "?" or "#", but that may be part of a reference."""
    start = text.rfind("/") + 1  # in a page, this is near its end: nothing else is searched for before it
    return max(start, text.rfind("\\", start) + 1, text.rfind("?", start) + 1)


def every_reading(page: str) -> Iterator[str]:
    """All readings, and the pages within them."""
    for reading in readings(page):
        yield reading
        if "srcdoc" in ascii_lower(reading):
            yield from inner_pages(reading)


def inner_pages(page: str) -> Iterator[str]:
    """Pages in the attributes (`srcdoc`) of one of the readings: their references are written in references."""
    for _ in range(MAX_PAGES):
        further = references.unescaped(page)
        if further == page:
            return
        yield further
        page = further
    raise TooMuch("references")


def ascii_lower(text: str) -> str:
    """The letters of ASCII only: `str.lower` takes five times as long if there are others (Python 3.11).

    Names of hosts with other letters are converted by `link_address.host_of`.
    """
    if text.isascii():
        return text.lower()
    try:
        return text.encode("latin-1").lower().decode("latin-1")  # a fifth of the time of the next line
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def without_escapes(page: str) -> list[str]:
    r"""As styles (`\68 ttp:`), RTF (`\'68ttp`) and scripts (`\x68ttp:`) write it, where that makes a difference."""
    return [text for text in dict.fromkeys((_CSS_ESCAPE.sub(_character, page), escapes_replaced(page))) if text != page]


def _character(match: re.Match[str]) -> str:
    """The letters, digits and signs that links consist of."""
    character = match[3] or chr(int(match[1] or match[2], 16) % 0x110000)
    return character if " " < character < "\x7f" else match[0]


def escaped_inputs(page: str) -> list[str]:
    """The tags of input fields, with character references replaced: `<input type="pass&#119;ord">`. In lower case."""
    if "&#" not in page or "<input" not in page:
        return []
    return [references.unescaped(tag).lower() for tag in _INPUT.findall(page) if "&#" in tag]


def _expanded(page: str) -> str:
    """XML: a document may declare entities, whose values may contain others."""
    entities: dict[str, str] = {}
    for name, first, second in _ENTITY.findall(page):
        entities.setdefault(name, first or second)  # XML 1.0, 4.2: the first declaration counts
    if len(entities) > MAX_ENTITIES:
        raise TooMuch("entities")
    limit = MAX_GROWTH * len(page) + 1000
    for _ in range(MAX_PAGES):
        growth = sum(len(entities.get(match[1], "")) for match in _NAMED.finditer(page))
        if not growth:
            return page
        if len(page) + growth > limit:
            break
        page = _NAMED.sub(lambda match: entities.get(match[1], match[0]), page)
    raise TooMuch("entities")
