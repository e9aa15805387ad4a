"""What many tests share: a whole bridge on loopback, with its scanner and its next hop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sweeper import Sweeper

from bridge.testing import RunningBridge, running_bridge

# Time says nothing about an example while other processes run tests too.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For `make fuzz`; a test that says itself how many examples it wants keeps to that.
settings.register_profile("long", settings.get_profile("patient"), max_examples=2000)
settings.load_profile("patient")


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[RunningBridge]:
    """A daemon with one SMTP listener; the scanner says deliver, the next hop takes everything."""
    with running_bridge(tmp_path) as running:
        yield running


SWEEPER = pytest.StashKey[Sweeper]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # that is, not in a process that pytest-xdist has started
        config.stash[SWEEPER] = Sweeper()


def pytest_unconfigure(config: pytest.Config) -> None:
    if sweeper := config.stash.get(SWEEPER, None):
        sweeper.sweep()
