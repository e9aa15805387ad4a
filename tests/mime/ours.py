"""Our own reader, as the comparison calls it: everything that the inspection looks at in a mail, in one list."""

from __future__ import annotations

import inspect as introspection

from bridge.service.analysis.inspection import Inspection, Limits, inspect
from tests.mime.reader import Found


def read(mail: bytes) -> list[Found] | None:
    """Every object found; None if the mail reached a limit and is therefore never delivered."""
    if "see" not in introspection.signature(inspect).parameters:
        return _walked(mail)
    seen: list[bytes] = []
    result = inspect(mail, Limits(), seen.append)
    return None if result.limits else [Found(content) for content in seen]


def _walked(mail: bytes) -> list[Found] | None:
    """The reader as it was before it told what it sees."""
    from bridge.service.analysis import structure

    try:
        parts = list(structure.walk(mail, structure.Bounds()))
    except structure.TooMuch:
        return None
    return [Found(structure.decoded(mail, part), part.filename) for part in parts]


def inspected(mail: bytes) -> Inspection:
    """What the service concludes from the bytes alone."""
    return inspect(mail, Limits())
