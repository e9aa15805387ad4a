"""Points in time on the command line, in the local time zone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from bridge.history.lines import lines_of
from bridge.history.query import Sum
from bridge.runtime.moments import parse

MONDAY = "2026-11-16 12:00"


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def local(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("now", MONDAY),
        ("today", "2026-11-16"),
        ("yesterday", "2026-11-15"),
        ("Yesterday 14:30", "2026-11-15 14:30"),
        ("today at 9:05", "2026-11-16 09:05"),
        ("sunday", "2026-11-15"),
        ("tuesday", "2026-11-10"),
        ("monday", "2026-11-09"),
        ("last mon", "2026-11-09"),
        ("FRI 17:00", "2026-11-13 17:00"),
        ("2h", "2026-11-16 10:00"),
        ("90m", "2026-11-16 10:30"),
        ("1.5h", "2026-11-16 10:30"),
        ("1h30m", "2026-11-16 10:30"),
        ("3d", "2026-11-13 12:00"),
        ("3 days ago", "2026-11-13 12:00"),
        ("1w", "2026-11-09 12:00"),
        ("2026-11-01", "2026-11-01"),
        ("2026-11-01 14:30", "2026-11-01 14:30"),
        ("2026-11-01T9:30", "2026-11-01 09:30"),
        ("2026-11-01 14:30:15", "2026-11-01 14:30:15"),
        ("2026-11-01T14:30+09:00", "2026-11-01T05:30+00:00"),
        ("2026-11-01T14:30Z", "2026-11-01T14:30+00:00"),
    ],
)
def test_a_moment_is_understood(zone: str, given: str, expected: str) -> None:
    assert parse(given, local(MONDAY)) == local(expected)


def test_a_day_begins_at_midnight_on_the_clock_and_an_age_is_elapsed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 25 October 2026, a day in Berlin had 25 hours; the hour from two to three came twice."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")  # also where no time zones are installed
    time.tzset()
    try:
        noon = local("2026-10-26 12:00")
        assert noon - parse("yesterday", noon) == 37 * 3600
        assert noon - parse("1d", noon) == 86400
        second_time = datetime(2026, 10, 25, 1, 30, tzinfo=UTC).timestamp()  # 02:30 for the second time
        assert parse("30m", second_time) == second_time - 1800
        assert second_time - parse("today", second_time) == 3.5 * 3600
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "given",
    ["", " ", "30", "2x", "-2d", "2026-13-01", "2026-02-30", "2026-11-01 25:00", "today 24:61", "99999999d",
     "0000-01-01", "monday tuesday", "ago", "d", "noon", "\x1b[2J", "1" * 5000 + "h", "2h " * 3000 + "!"],
)  # fmt: skip
def test_a_mistake_names_the_accepted_forms(given: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse(given)
    assert all(form in str(raised.value) for form in ("2h", "yesterday", "monday", "2026-11-01"))


@pytest.mark.parametrize(("given", "meant"), [("yesteday", "yesterday"), ("wensday", "wednesday"), ("todya", "today")])
def test_a_typing_mistake_names_what_may_be_meant(given: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean {meant}\\?"):
        parse(given)


@pytest.mark.parametrize(("given", "year"), [("1969-07-20", 1970), ("0001-01-02", 1970), ("9999-12-31 12:00", 9999)])
def test_a_moment_that_no_calendar_has_ended_commands_with_a_traceback(zone: str, given: str, year: int) -> None:
    """`stats --since 999999w --json` began seventeen thousand years before our era; such an age is a mistake now."""
    found = parse(given)
    assert datetime.fromtimestamp(found, UTC).year == year
    assert abs(datetime.fromtimestamp(found).year - year) <= 1
    assert time.localtime(found).tm_year < 10000


@pytest.mark.parametrize("given", ["100000d", "999999w", "100000 days ago", "30000d 1h"])
def test_an_age_before_all_mail_meant_all_mail(given: str) -> None:
    """`quarantine delete --since 100000d --yes` deleted everything, as only `--all` may."""
    with pytest.raises(ValueError, match="is too long ago: it is before 1970"):
        parse(given)


def test_the_hour_that_comes_twice_was_one_line_with_the_mails_of_both() -> None:
    """When summer time ends: that hour had twice as many mails as any other."""
    found = [Sum(f"2026-10-25 {hour:02}:00", 10 + hour, 0) for hour in range(3)]
    for zone in (ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Lord_Howe")):
        assert [mails for _, mails, _ in lines_of("hour", found, zone)] == [10, 11, 12]
    assert [label for label, _, _ in lines_of("hour", found, ZoneInfo("Europe/Berlin"))] == [
        *("2026-10-25 02:00 CEST", "2026-10-25 02:00 CET", "2026-10-25 03:00"),
    ]
    assert lines_of("day", found, ZoneInfo("Europe/Berlin")) == [("2026-10-25", 33, 0)]
