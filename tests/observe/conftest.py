"""One bridge with two workers under a real Prometheus, for all tests that only look."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """Mail of every kind has gone through, and Prometheus has seen it."""
    from tests.observe.observe_kit import hurried_rules, watched_bridge

    with watched_bridge(tmp_path_factory.mktemp("observe"), hurried_rules()) as found:
        found.every_kind_of_mail()
        yield found
