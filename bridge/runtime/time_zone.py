"""Time zones by name.

Python reads them from the system's tzdata, which a small Debian 12 or a container may lack. UTC, our default, works
without it.
"""

from __future__ import annotations

import zoneinfo
from datetime import UTC, tzinfo


def time_zone(name: str) -> tzinfo:
    """The zone with this name. Raises ValueError, which says what to do."""
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        pass
    if not zoneinfo.available_timezones():
        raise ValueError("this machine has no time zones except UTC: install the tzdata package")
    raise ValueError("expected a time zone, for example Europe/Zurich")
