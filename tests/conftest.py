"""Shared by all tests: settings for hypothesis and async tests, a complete bridge on loopback, and the clean-up."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from bridge.testing import RunningBridge, running_bridge
from tests.postgresql import fragile_postgresql, postgresql  # noqa: F401  fixtures
from tests.postgresql_pair import pair  # noqa: F401  a fixture
from tests.surroundings import forget_the_surroundings
from tests.sweeper import Sweeper

# How long an example takes means nothing while other processes run tests, too.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For `make fuzz`; a test that sets its own number of examples keeps it.
settings.register_profile("long", settings.get_profile("patient"), max_examples=2000)
settings.load_profile("patient")

ASYNC_TEST_LIMIT_S = 300.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on uvloop, as the daemon does. A folder that tests both loops overrides this."""
    return "asyncio", {"use_uvloop": True}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Gives every async test a deadline."""
    if inspect.iscoroutinefunction(test := pyfuncitem.obj):

        @functools.wraps(test)
        async def with_deadline(*args: Any, **kwargs: Any) -> None:
            await asyncio.wait_for(test(*args, **kwargs), ASYNC_TEST_LIMIT_S)

        pyfuncitem.obj = with_deadline


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[RunningBridge]:
    """A daemon with one SMTP listener; the scanner answers deliver, the next hop accepts everything."""
    with running_bridge(tmp_path) as running:
        yield running


def pytest_collection_finish() -> None:
    """The thousands of tests live as long as this process: let no collection, and no search for objects, visit them."""
    gc.collect()
    gc.freeze()


SWEEPER = pytest.StashKey[Sweeper]()


def pytest_configure(config: pytest.Config) -> None:
    forget_the_surroundings()
    if not hasattr(config, "workerinput"):  # not in the worker processes of pytest-xdist
        config.stash[SWEEPER] = Sweeper()


def pytest_unconfigure(config: pytest.Config) -> None:
    if sweeper := config.stash.get(SWEEPER, None):
        sweeper.sweep()
