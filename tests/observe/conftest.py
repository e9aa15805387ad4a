"""One bridge with two workers and a real Prometheus, shared by the tests that only read metrics."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Mail with every decision was processed, and Prometheus has scraped the result.

    Not for the whole run: it goes on scraping, which takes a tenth of a processor from all tests that follow.
    """
    from tests.observe.observe_kit import accelerated_rules, watched_bridge

    with watched_bridge(tmp_path_factory.mktemp("observe"), accelerated_rules()) as found:
        found.every_kind_of_mail()
        yield found
