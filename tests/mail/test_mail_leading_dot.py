"""A dot that begins a line is found in blocks of every length, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.mail.leading_dot import find_leading_dot
from tests.long_cases import few

_LONG = b"x" * 40_000  # a short block is searched in another way


@pytest.mark.parametrize("rest", [b"", _LONG], ids=["short", "long"])
@pytest.mark.parametrize("dots", [0, 1, *few([31, 32, 33, 5, 200], 3)])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"\r\n.", 0),
        (b"\r\n..\r\n", 0),
        (b"a.b\r\n.\r\n", 3),
        (b"a\r\n\r\n.", 3),
        (b"", None),
        (b".", None),
        (b"..", None),
        (b"\n.", None),
        (b"\r.", None),
        (b"\n\r.", None),
        (b"\r\n", None),
        (b"\r\na.", None),
    ],
)
def test_a_dot_that_begins_a_line_is_found_behind_any_number_of_others(
    text: bytes, found: int | None, dots: int, rest: bytes
) -> None:
    """After a few dots, the rest of a long block is searched in the other way: that must not skip any."""
    before = b"a." * dots + b"a" if dots else b""
    expected = -1 if found is None else len(before) + found
    assert find_leading_dot(before + text + rest) == expected
    if not text.startswith(b"."):
        assert find_leading_dot(rest + before + text) == (-1 if found is None else len(rest) + expected)


@given(st.lists(st.sampled_from([b".", b"\r", b"\n", b"a", b"\r\n", b"\r\n."]), max_size=100))
def test_a_long_block_is_searched_as_a_short_one_is(pieces: list[bytes]) -> None:
    """Both ways of searching agree, also near the ends of the block."""
    text = b"".join(pieces)
    for block in (text + _LONG, _LONG + text):
        assert find_leading_dot(block) == block.find(b"\r\n.")
