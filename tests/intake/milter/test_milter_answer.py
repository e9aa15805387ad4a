"""The edits that a milter's mail server is told to make."""

from __future__ import annotations

import pytest

from bridge.filter.changes import FieldEdit
from bridge.intake.milter.answer import _all_edits

NAME = b"authentication-results"


@pytest.mark.parametrize(
    ("forged", "wanted", "expected"),
    [
        ([1, 3], [], [3, 1]),
        ([1, 3], [2, 1], [4, 3, 2, 1]),  # five fields; the scanner has seen the second, fourth and fifth
        ([2], [3, 2, 1], [4, 3, 2, 1]),
        ([1, 2], [1], [3, 2, 1]),
    ],
)
def test_the_scanners_numbers_count_the_fields_that_it_has_seen(
    forged: list[int], wanted: list[int], expected: list[int]
) -> None:
    """It got the mail without the forged fields, while the mail server still has them."""
    edits = _all_edits([FieldEdit(NAME, number, None) for number in wanted], {NAME: forged})
    assert edits == [FieldEdit(NAME, number, None) for number in expected]
