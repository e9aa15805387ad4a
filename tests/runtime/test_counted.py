"""Numbers for people."""

from __future__ import annotations

import pytest

from bridge.runtime.counted import counted, spoken


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (119, "119 s"),
        (120, "2 minutes"),
        (7199, "119 minutes"),
        (7200, "2 hours"),
        (604_800, "7 days"),
        (172_799, "47 hours"),
        (86_400 * 1500, "1,500 days"),
    ],
)
def test_the_uptime_was_shown_in_seconds(seconds: float, text: str) -> None:
    """`up 604800 s`."""
    assert spoken(seconds) == text


def test_one_of_something_is_no_plural() -> None:
    assert (counted(1, "mail"), counted(2000, "mail"), counted(2, "entry", "entries")) == (
        "1 mail",
        "2,000 mails",
        "2 entries",
    )
