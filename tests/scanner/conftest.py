"""Tests of a module with `usefixtures("each_dialect")` run once for each dialect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scanner import spoken
from tests.scanner.spoken import SPOKEN, Spoken


@pytest.fixture(params=SPOKEN, ids=lambda one: one.name)
def each_dialect(request: pytest.FixtureRequest) -> Iterator[Spoken]:
    spoken.choose(request.param)
    yield request.param
    spoken.choose(SPOKEN[0])
