"""Our own reader, as the comparison calls it: everything it finds in a mail, in one list."""

from __future__ import annotations

import importlib
import importlib.util

from bridge.service.analysis import structure
from bridge.service.analysis.inspection import Inspection, Limits, inspect
from tests.mime.readers import Found


def read(mail: bytes) -> list[Found] | None:
    """Every object found; None if the mail reached a limit and is therefore never delivered."""
    found = []
    if importlib.util.find_spec("bridge.service.analysis.objects") is not None:
        return _extracted(mail)
    try:
        for part in structure.walk(mail, structure.Bounds()):
            found.append(Found(structure.decoded(mail, part), part.filename, part.content_type))
    except structure.TooMuch:
        return None
    return found


def _extracted(mail: bytes) -> list[Found] | None:
    objects = importlib.import_module("bridge.service.analysis.objects")
    try:
        return [Found(bytes(item.content), item.name) for item in objects.extract(mail, structure.Bounds())]
    except structure.TooMuch:
        return None


def inspected(mail: bytes) -> Inspection:
    """What the service concludes from the bytes alone."""
    return inspect(mail, Limits())
