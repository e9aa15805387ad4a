"""Sizes and times with their units, as people write them: `50MiB`, `90s`, `30d`."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SIZES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "KB": 1000, "MB": 1000**2, "GB": 1000**3}
_TIMES = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(rf"([0-9]+) *({'|'.join(_SIZES)})")
_LONGEST_D = 100_000  # days: a little less than the longest wait of a thread (2**63 ns), and dates can express it
_TIME = re.compile(rf"([0-9]+(?:\.[0-9]+)?) *({'|'.join(_TIMES)})")


def parse_size(value: Any) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a size needs a number and a unit: B, KiB, MiB or GiB (for example 50MiB)")
    return int(match.group(1)) * _SIZES[match.group(2)]


def parse_duration(value: Any) -> float:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError("a time needs a number and a unit: ms, s, m, h or d (for example 90s)")
    seconds = float(match.group(1)) * _TIMES[match.group(2)]
    if seconds > _LONGEST_D * _TIMES["d"]:
        raise ValueError(f"a time must not be longer than {_LONGEST_D}d")
    return round(seconds, 6)  # so that 1.1d is exactly 95040 s


def show_size(value: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if value and value % _SIZES[unit] == 0:
            return f"{value // _SIZES[unit]}{unit}"
    return f"{value}B"


def show_duration(value: float) -> str:
    for unit in ("d", "h", "m", "s"):
        if value >= _TIMES[unit] and value % _TIMES[unit] == 0:
            return f"{int(value // _TIMES[unit])}{unit}"
    milliseconds = round(value * 1000, 3)
    return f"{milliseconds:.0f}ms" if milliseconds.is_integer() else f"{milliseconds:.3f}ms"


# Defaults are plain numbers: pydantic does not validate defaults.
Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(show_size, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+ *(B|KiB|MiB|GiB|KB|MB|GB)$", "examples": ["50MiB"]}),
]
Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(show_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? *(ms|s|m|h|d)$", "examples": ["90s"]}),
]
