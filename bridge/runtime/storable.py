"""Text that every database stores and compares.

PostgreSQL accepts no NUL, and neither PostgreSQL nor SQLite accepts half a character (a lone surrogate), which is how a
byte that is not text appears in Python. Both come from mail, file names and command lines. `bridge.runtime.database`
applies this to everything that is written or searched, so that one odd row never stops the others of its batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def storable(value: Any) -> Any:
    """The same, but with NULs removed from texts, and a question mark for anything that is not text."""
    if isinstance(value, str):
        return value if is_storable(value) else value.replace("\0", "").encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [storable(part) for part in value]
    return value


def is_storable(text: str) -> bool:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return "\0" not in text


def storable_row(row: Any) -> Any:
    """The values of one statement, by name or by place; the same object if nothing has to change."""
    if isinstance(row, Mapping):
        changed = {name: storable(value) for name, value in row.items() if _is_odd(value)}
        return {**row, **changed} if changed else row
    if isinstance(row, tuple):
        return tuple(map(storable, row)) if any(map(_is_odd, row)) else row
    return row


def _is_odd(value: Any) -> bool:
    return not is_storable(value) if isinstance(value, str) else isinstance(value, list)
