"""RTF: objects embedded in hexadecimal, and templates and fields that load something. Linear; raises nothing.

`rtf_destinations` reads the syntax, in every way in which programs may read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.rtf_destinations import BASE, FIELD, TEMPLATE, Destination, destinations
from bridge.service.analysis.content.unpacking import Budget

_RTF = b"{\\rt"
_BEFORE, _BEFORE_WITHIN = b" \t\v\f\r\n\0\xef\xbb\xbf", 4096  # what may precede it: white space, a byte order mark
_MAX_CLASS = 100  # bytes of the name of a class


class Embedded(NamedTuple):
    class_name: str  # in lower case
    content: bytes


def is_rtf(content: bytes) -> bool:
    return content[:_BEFORE_WITHIN].lstrip(_BEFORE).startswith(_RTF)


class Contents(NamedTuple):
    templates: list[str]  # addresses; most templates are files of the author
    fields: str  # the instructions of all fields, one on each line
    bases: list[str]  # which complete the links without a folder
    objects: list[Destination]
    limit: TooMuch | None  # if not everything was read


def read_rtf(content: bytes, budget: Budget) -> Contents:
    templates: dict[str, None] = {}
    fields: list[str] = []
    bases: list[str] = []
    objects: list[Destination] = []
    limit = None
    try:
        for found in destinations(content, budget):
            if found.kind == TEMPLATE:
                addresses = (text.strip() for text in found.texts())
                templates |= dict.fromkeys(text for text in addresses if "//" in text.replace("\\", "/"))
            elif found.kind == FIELD:
                fields += (text.replace("\\", "/") for text in found.texts())
            elif found.kind == BASE:
                bases += (text.strip() for text in found.texts())
            else:
                objects.append(found)
    except TooMuch as error:
        limit = error
    return Contents(list(templates), "\n".join(fields), bases, objects, limit)


def embedded(found: Destination) -> Iterator[Embedded]:
    """An object, in each way in which it may be read."""
    return map(_object, found.objects())


def _object(raw: bytes) -> Embedded:
    """OLE 1: a version, a kind, three strings with their lengths, and the length of the data (MS-OLEDS 2.2.5)."""
    length = int.from_bytes(raw[8:12], "little")
    if length > _MAX_CLASS:
        return Embedded("", raw)
    name = raw[12 : 12 + length].partition(b"\0")[0].decode("latin-1").lower()
    at = 12 + length
    for _ in range(2):
        at += 4 + int.from_bytes(raw[at : at + 4], "little")
    return Embedded(name, raw[at + 4 :] or raw)
