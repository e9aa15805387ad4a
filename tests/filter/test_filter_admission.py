"""Admission: slots, the linear delay, and the limit."""

from __future__ import annotations

import pytest

from bridge.daemon.workers.shared_counters import SharedCounters
from bridge.errors import Saturated
from bridge.filter.admission import PATIENCE_S, RUSH_S, Admission, AdmissionSettings


def delays(limit: int, threshold: int, longest_s: float) -> list[float]:
    """The delay of each mail, entering one after another up to the limit."""
    admission = Admission(AdmissionSettings(limit, threshold, longest_s))
    return [admission.enter() for _ in range(limit)]


@pytest.mark.parametrize(
    ("limit", "threshold", "expected"),
    [
        (4, 4, [0, 0, 0, 0]),  # the default: no throttle, only the limit
        (4, 9, [0, 0, 0, 0]),  # a threshold above the limit has no effect
        (6, 2, [0, 0, 2.5, 5, 7.5, 10]),
        (4, 1, [0, 10 / 3, 20 / 3, 10]),
        (2, 1, [0, 10]),
        (1, 1, [0]),
    ],
)
def test_the_delay_grows_linearly_from_the_threshold_to_the_limit(
    limit: int, threshold: int, expected: list[float]
) -> None:
    """No delay up to the threshold, the longest delay for the last slot."""
    assert delays(limit, threshold, 10.0) == pytest.approx(expected)


def test_a_yellow_status_starts_the_throttle_immediately() -> None:
    """YELLOW counts as if the threshold were reached; with no threshold, it applies to the first mail."""
    admission = Admission(AdmissionSettings(6, 2, 10.0))
    assert [admission.enter(lambda: True) for _ in range(6)] == pytest.approx([2.5, 2.5, 2.5, 5, 7.5, 10])
    admission = Admission(AdmissionSettings(4, 4, 10.0))
    assert [admission.enter(lambda: True) for _ in range(4)] == pytest.approx([2.5, 5, 7.5, 10])
    assert Admission(AdmissionSettings(4, 4, 10.0)).enter() == 0.0


def test_above_the_limit_is_saturation() -> None:
    """No slot is taken, and a slot that was given back can be taken again."""
    admission = Admission(AdmissionSettings(2, 2, 5.0))
    admission.enter()
    admission.enter()
    assert admission.is_full
    with pytest.raises(Saturated):
        admission.enter()
    assert admission.in_processing == 2
    admission.leave()
    assert not admission.is_full
    admission.enter()
    assert admission.is_full


def test_the_delay_shrinks_when_slots_are_given_back() -> None:
    """It follows the load, not the history."""
    admission = Admission(AdmissionSettings(10, 5, 10.0))
    for _ in range(10):
        admission.enter()
    for _ in range(7):
        admission.leave()
    assert admission.enter() == 0.0


def test_in_a_rush_two_mails_are_on_their_way_to_each_free_slot() -> None:
    """More would send their content for nothing. Each mail that arrives makes room for another."""
    admission = Admission(AdmissionSettings(4, 4))
    for _ in range(4):
        admission.enter()
    admission.note_arrival(100.0)
    assert not admission.lets_in(4, 100.0)
    admission.leave()
    assert [admission.lets_in(4, 100.001) for _ in range(4)] == [True, True, False, False]
    admission.leave()
    assert [admission.lets_in(4, 100.002) for _ in range(3)] == [True, True, False]
    assert not admission.lets_in(4, 100.2)
    for _ in range(2):
        admission.note_arrival(100.2)
        admission.enter()
    assert not admission.lets_in(4, 100.3)  # all slots are taken
    admission.leave()
    assert not admission.lets_in(4, 100.31)  # two mails are still on their way to this slot
    admission.note_arrival(100.32)
    assert [admission.lets_in(4, 100.33) for _ in range(2)] == [True, False]


def test_mail_that_never_arrives_blocks_no_other() -> None:
    admission = Admission(AdmissionSettings(1, 1))
    admission.enter()
    admission.note_arrival(100.0)
    assert not admission.lets_in(1, 100.0)
    admission.leave()
    assert [admission.lets_in(1, 100.01) for _ in range(3)] == [True, True, False]
    assert [admission.lets_in(1, 100.01 + PATIENCE_S) for _ in range(3)] == [True, True, False]


def test_after_the_rush_all_mail_is_let_in() -> None:
    admission = Admission(AdmissionSettings(1, 1))
    admission.enter()
    assert not admission.lets_in(1, 100.0)
    admission.leave()
    assert all(admission.lets_in(1, 100.0 + RUSH_S + 0.001) for _ in range(50))


@pytest.mark.parametrize("kind", ["one process", "workers"])
def test_without_saturation_all_mail_is_let_in(kind: str) -> None:
    """Slow uploads hold no slots: many may be on their way to a few of them."""
    settings = AdmissionSettings(4, 4)
    admission = Admission(settings) if kind == "one process" else Admission(settings, SharedCounters(2).mails(0))
    assert all(admission.lets_in(4, 100.0) for _ in range(100))
