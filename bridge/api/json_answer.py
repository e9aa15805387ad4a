"""JSON from a scanner. Pydantic's parser is three times as fast as `json`, and limits nesting.

A key may occur twice in an object, and programs disagree about which of the two counts. Two programs could then act on
different decisions, so an answer with a duplicate decision is refused.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json


def read_json(body: bytes | str) -> Any:
    """Raises ValueError."""
    return from_json(body)


def read_decision(body: bytes, *keys: str) -> Any:
    """Like `read_json`, but refuses an object that has one of `keys` twice. Raises ValueError, RecursionError."""
    if _may_occur_twice(body, keys):  # rare: a key also occurs elsewhere, or is escaped
        json.loads(body, object_pairs_hook=lambda pairs: _refuse_twice(pairs, keys))
    return from_json(body)


def _may_occur_twice(body: bytes, keys: tuple[str, ...]) -> bool:
    for key in keys:
        if body.count(f'"{key}"'.encode("ascii")) != 1:
            return True
    return body.find(b"\\u00") >= 0


def read_decision_in_any_bytes(body: bytes, *keys: str) -> Any:
    """The same for an answer that repeats bytes of the mail, which need not be UTF-8. Raises the same.

    If such an answer were refused, a sender could choose not to be checked.
    """
    try:
        return read_decision(body, *keys)
    except DuplicateKey:
        raise
    except ValueError:
        return read_decision(body.decode("utf-8", "replace").encode(), *keys)


def read_unique(body: bytes) -> Any:
    """The same for every key of every object. Raises ValueError, RecursionError."""
    return json.loads(body, object_pairs_hook=unique_keys)


def _refuse_twice(pairs: list[tuple[str, Any]], keys: tuple[str, ...]) -> None:
    for key in keys:
        if sum(name == key for name, _ in pairs) > 1:
            raise DuplicateKey(f"{key} occurs twice")


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """For `object_pairs_hook`. Raises DuplicateKey."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DuplicateKey("a key occurs twice")
    return found


class DuplicateKey(ValueError):
    """Programs disagree about which of the two values counts."""
