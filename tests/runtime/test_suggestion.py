"""Suggestions after a typing mistake."""

from __future__ import annotations

import pytest

from bridge.runtime.suggestion import did_you_mean, nearest

KNOWN = ("blocked-urls", "blocked-senders", "allowed-senders", "max_in_processing", "deliver", "quarantine")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("blocked-sender", "blocked-senders"),
        ("Blokced-URLs", "blocked-urls"),
        ("max_in_procesing", "max_in_processing"),
        ("quaran", "quarantine"),
        ("dliver", "deliver"),
        ("blocked-subjects", ""),
        ("xyz", ""),
    ],
)
def test_a_suggestion_is_near_in_every_word(given: str, meant: str) -> None:
    """`blocked-subjects` was taken for `blocked-urls`, because they begin alike."""
    assert nearest(given, KNOWN) == meant
    assert did_you_mean(given, KNOWN) == (f"; did you mean {meant}?" if meant else "")
