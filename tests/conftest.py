"""What many tests share: a whole bridge on loopback, with its scanner and its next hop."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

from bridge.testing import RunningBridge, running_bridge
from tests.sweeper import Sweeper

# Time says nothing about an example while other processes run tests too.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For `make fuzz`; a test that says itself how many examples it wants keeps to that.
settings.register_profile("long", settings.get_profile("patient"), max_examples=2000)
settings.load_profile("patient")


ASYNC_TEST_LIMIT_S = 120.0


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


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Any:
    """Runs a coroutine on either event loop. For tests that are not async functions yet."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as one:
            return one.run(asyncio.wait_for(coroutine, 120))

    return runner


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
