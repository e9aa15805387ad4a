"""Metrics: closed sets of label values, and a separate reason for each error."""

from __future__ import annotations

import pytest

from bridge import errors
from bridge.errors import BridgeError, FailureLabel
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.observe.metrics import ACTIONS, DECISIONS, Metrics, reason_of


def test_every_error_of_a_mail_has_its_own_reason() -> None:
    """`internal` is only for unexpected errors."""
    reasons = {label.value for label in FailureLabel}
    for kind in (errors.Saturated, *errors.ScanError.__subclasses__(), errors.StoreError, errors.StoreFull):
        assert reason_of(kind("x")) in reasons - {"internal"}
    assert reason_of(NextHopError(Reply(451, "4.4.1", "x"))) == "next_hop"
    assert reason_of(ValueError("x")) == reason_of(BridgeError("x")) == "internal"


def test_every_combination_starts_at_zero() -> None:
    """So `rate()` works from the first scrape on."""
    metrics = Metrics(["a", "b"])
    families = {family.name: family for family in metrics.registry.collect()}
    mails = families["scanbridge_mails"].samples
    assert len(mails) == 2 * len(DECISIONS) * len(ACTIONS) and not any(sample.value for sample in mails)
    assert {sample.labels["reason"] for sample in families["scanbridge_failures"].samples} == set(FailureLabel)


def test_every_metric_has_a_prefix_and_a_help_sentence() -> None:
    """Names and help texts are part of the interface."""
    for family in Metrics(["a"]).registry.collect():
        assert family.name.startswith(("scanbridge_", "process_")) and family.documentation.endswith(".")


@pytest.mark.parametrize(
    ("seconds", "bucket"), [(0.0, "0.01"), (0.01, "0.01"), (0.0101, "0.025"), (300.0, "300.0"), (301.0, "+Inf")]
)
def test_times_fall_into_the_right_bucket(seconds: float, bucket: str) -> None:
    """Upper bounds are inclusive, as in Prometheus."""
    metrics = Metrics(["a"])
    metrics.scan.observe("a", seconds)
    samples = [s for family in metrics.registry.collect() for s in family.samples]
    counts = {s.labels["le"]: s.value for s in samples if s.name == "scanbridge_scan_seconds_bucket"}
    first = next(le for le, count in counts.items() if count == 1)
    assert first == bucket and counts["+Inf"] == 1
    assert next(s.value for s in samples if s.name == "scanbridge_scan_seconds_sum") == seconds
