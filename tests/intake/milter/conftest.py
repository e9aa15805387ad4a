"""Milter tests over real sockets run on Python's own event loop and on uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.event_loops import EACH_LOOP


@pytest.fixture(params=EACH_LOOP)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def strict_loop(anyio_backend: Any) -> AsyncIterator[None]:
    """Fails the test if the event loop reports a problem anywhere: an exception, a lost task."""
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    yield
    assert not problems
