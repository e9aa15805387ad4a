"""Times as mail servers write them: 30, 30s, 5m, 1h."""

from __future__ import annotations

import re

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(text: str) -> float:
    """Infinite if it cannot be parsed: reporting that is up to the mail server."""
    match = re.fullmatch(r"(\d+)([smhdw]?)", text)
    return float(match.group(1)) * _UNITS[match.group(2)] if match else float("inf")
