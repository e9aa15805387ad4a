"""Cases of which `make test` runs the first ones, and `make test-long` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def few(cases: Iterable[Any], count: int) -> list[Any]:
    """For `parametrize`. They should be so similar that what breaks one of them likely breaks the first ones, too."""
    return [case if at < count else pytest.param(case, marks=pytest.mark.long) for at, case in enumerate(cases)]


def by_turns(rows: Iterable[Any], columns: Iterable[Any]) -> list[Any]:
    """For `parametrize` with two names: every pair, of which `make test` has each row and each column at least once."""
    rows, columns = list(rows), list(columns)
    turns = min(len(rows), len(columns))
    return [
        pytest.param(row, column, marks=[] if at % turns == beside % turns else pytest.mark.long)
        for at, row in enumerate(rows)
        for beside, column in enumerate(columns)
    ]
