from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop
from scripted_hop import Run, made


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine to its end on either event loop, within a minute."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def runner(coroutine: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=factory) as one:
            return one.run(asyncio.wait_for(coroutine, 120))

    return runner


@pytest.fixture(autouse=True)
def close_messages() -> Iterator[None]:
    """What the intake does in the end."""
    yield
    while made:
        made.pop().close()
