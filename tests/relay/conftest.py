from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.relay.scripted_hop import made


@pytest.fixture(autouse=True)
def close_messages() -> Iterator[None]:
    """What the intake does in the end."""
    yield
    while made:
        made.pop().close()
