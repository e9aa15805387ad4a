from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.event_loops import EACH_LOOP
from tests.relay.scripted_hop import made


@pytest.fixture(params=EACH_LOOP)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Async tests run on uvloop; `make test-long` runs them on asyncio's loop as well."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture(autouse=True)
def close_messages() -> Iterator[None]:
    """As the intake does when a mail is done."""
    yield
    while made:
        made.pop().close()
