"""Points in time, as people write them: `2h`, `yesterday`, `monday`, `2026-11-01 14:30`.

Every option of a command and every field of the console that names a point in time uses this parser. Days are those
of the calendar in the reader's time zone, so `yesterday` begins at midnight on the clock, even when the clock was
changed that night; an age such as `2d` is elapsed time, 48 hours. Knows neither mail nor the commands.
"""

from __future__ import annotations

import re
import time as clock
from datetime import UTC, datetime, time, timedelta, tzinfo

from bridge.runtime.suggestion import did_you_mean

FORMS = (
    "an age (90m, 2h, 3d, 1w), today, yesterday, a weekday (monday is the most recent Monday), or a date, "
    "with or without a time ('today 10:00', 2026-11-01, '2026-11-01 14:30'; "
    "local time, unless an offset follows: 2026-11-01T14:30+01:00)"
)
# A day before the year 10000, so that it can be shown in every time zone.
LATEST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAYS = ("now", "today", "yesterday", *_WEEKDAYS)
_UNITS = {
    "s": 1, "sec": 1, "second": 1,
    "m": 60, "min": 60, "minute": 60,
    "h": 3600, "hour": 3600,
    "d": 86400, "day": 86400,
    "w": 604800, "week": 604800,
}  # fmt: skip
_PIECE = r"(\d{1,6}(?:\.\d{1,6})?) ?([a-z]+)"
_AGE = re.compile(rf"(?:{_PIECE} ?)+(?:ago)?")
_DAY = re.compile(r"(?:last )?([a-z]+)(?: (?:at )?(\d{1,2}:\d\d(?::\d\d)?))?")
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?", re.IGNORECASE)


def parse(text: str, now: float | None = None, zone: tzinfo | None = None) -> float:
    """The Unix time of a moment, in this time zone or in the local one. Raises ValueError, which names the forms.

    Nothing happened before 1970, and a year has four digits: a date outside this range is moved to its nearest end,
    because databases and calendars cannot express it. An age that reaches back further is a mistake: `delete --since`
    would mean all mail.
    """
    given = " ".join(text.lower().split())
    present = clock.time() if now is None else now
    try:
        moment = _moment(given, present, zone)
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a time: expected {FORMS}{did_you_mean(given, _DAYS)}") from None
    if moment < 0 and not _DATE.fullmatch(given):
        raise ValueError(f"{text!r} is too long ago: it is before 1970; expected {FORMS}")
    return min(max(moment, 0.0), LATEST)


def _moment(given: str, present: float, zone: tzinfo | None) -> float:
    if _DATE.fullmatch(given):
        return _date(given, zone)
    if given == "now":
        return present
    found = _age(given)
    return _day(given, datetime.fromtimestamp(present, zone)) if found is None else present - found


def _date(given: str, zone: tzinfo | None) -> float:
    day, _, rest = given.replace("t", " ").partition(" ")
    if match := _CLOCK.match(rest):
        rest = f"{int(match[1]):02}:{rest.partition(':')[2]}"  # 9:30 as well as 09:30
    moment = datetime.fromisoformat(f"{day} {rest}".strip().upper())
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()  # without any zone: local time


def _age(given: str) -> float | None:
    """In seconds; None if it is not an age."""
    if not _AGE.fullmatch(given):
        return None
    elapsed = 0.0
    for number, unit in re.findall(_PIECE, given.removesuffix("ago").rstrip()):
        name = unit if unit in _UNITS else unit.removesuffix("s")
        if name not in _UNITS:
            raise ValueError(unit)
        elapsed += float(number) * _UNITS[name]
    return elapsed


def _day(given: str, now: datetime) -> float:
    """Midnight at the start of a day, or the time given after it. A weekday is the last one before today."""
    match = _DAY.fullmatch(given)
    if match is None or match[1] not in (names := _names()):
        raise ValueError(given)
    days_ago = names[match[1]]
    if match[1] not in ("today", "yesterday"):
        days_ago = (now.weekday() - days_ago - 1) % 7 + 1
    hour, minute, second = (int(part) for part in f"{match[2] or 0}:0:0".split(":")[:3])
    day = now.date() - timedelta(days=days_ago)
    return datetime.combine(day, time(hour, minute, second), now.tzinfo).timestamp()


def _names() -> dict[str, int]:
    """Days ago for `today` and `yesterday`; the number of the day for weekdays, which may be shortened."""
    short = {name[:length]: i for i, name in enumerate(_WEEKDAYS) for length in range(3, len(name) + 1)}
    return {**short, "today": 0, "yesterday": 1}
