"""Time zones by name, with and without the system's tzdata."""

from __future__ import annotations

import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC

import pytest

from bridge.config.digests import Digests
from bridge.digests.schedule import Clock
from bridge.runtime.time_zone import time_zone


@pytest.fixture
def no_tzdata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a Debian 12 without tzdata: neither the system nor Python's package has zones."""
    for name in [name for name in sys.modules if name.split(".")[0] == "tzdata"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(to=[])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.usefixtures("no_tzdata")
def test_utc_needs_no_tzdata() -> None:
    """The default can be written into the configuration, and digests are due, on a machine without time zones."""
    assert Digests.model_validate({"time_zone": "UTC"}).time_zone == "UTC"
    assert Clock().last_turn("daily", 86400.0 * 2) == 86400.0 + 7 * 3600


@pytest.mark.usefixtures("no_tzdata")
def test_another_zone_without_tzdata_says_what_to_install() -> None:
    with pytest.raises(ValueError, match="install the tzdata package"):
        time_zone("Europe/Zurich")


@pytest.mark.parametrize("name", ["Europe/Zurch", "", "../etc/passwd", "/etc/passwd", "Europe", "a\0b", "x" * 5000])
def test_a_name_that_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="expected a time zone"):
        time_zone(name)


def test_zones_of_the_system_are_known() -> None:
    assert time_zone("Europe/Zurich") == zoneinfo.ZoneInfo("Europe/Zurich")
    assert time_zone("UTC") is UTC
