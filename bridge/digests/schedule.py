"""When a digest is due."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo

from bridge.runtime.time_zone import time_zone

SCHEDULES = ("immediate", "hourly", "daily", "weekly", "never")
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
PAUSE_S = 60.0  # between two digests of the schedule `immediate`


@dataclass(frozen=True, slots=True)
class Clock:
    """When the day and the week of digests begin."""

    at: str = "07:00"
    weekday: str = "monday"
    time_zone: str = "UTC"

    @property
    def zone(self) -> tzinfo:
        return time_zone(self.time_zone)

    def last_turn(self, schedule: str, now: float) -> float:
        """The latest time at which such a digest was to be sent. A clock that is set back repeats none of them."""
        here = datetime.fromtimestamp(now, self.zone)
        if schedule == "hourly":
            return now - now % 3600
        hour, minute = map(int, self.at.split(":"))
        # An hour that occurs twice, when clocks are set back, counts once.
        turn = here.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0)
        if schedule == "weekly":
            turn -= timedelta(days=(here.weekday() - WEEKDAYS.index(self.weekday)) % 7)
        if turn.timestamp() > now:
            turn -= timedelta(days=7 if schedule == "weekly" else 1)
        return turn.timestamp()


def is_due(schedule: str, clock: Clock, *, now: float, last_at: float, oldest_new: float) -> bool:
    """`oldest_new`: when the oldest mail arrived that the person was not told about.

    A time in the future comes from a clock that was wrong; nobody has to wait until then.
    """
    last_at, oldest_new = (0.0 if moment > now else moment for moment in (last_at, oldest_new))
    if schedule == "never":
        return False
    if schedule == "immediate":
        return now - last_at >= PAUSE_S
    turn = clock.last_turn(schedule, now)
    return last_at < turn and oldest_new < turn
