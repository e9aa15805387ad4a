"""JSON from a scanner. Pydantic's parser is three times as fast as `json`, and limits nesting."""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json


def read_json(body: bytes | str) -> Any:
    """Raises ValueError."""
    return from_json(body)
