"""Text from outside is shown as text: every character is seen, none acts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.runtime.visible_text import visible, visible_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("w\u00f6rld \u4f60\u597d \U0001f600 [red]\\[/x]", "w\u00f6rld \u4f60\u597d \U0001f600 [red]\\[/x]"),
        ("\x1b[31mred", "?[31mred"),
        ("\x1b]8;;http://e.example\x07link", "?]8;;http://e.example?link"),
        ("\x9b31m\x90q\x9c", "?31m?q?"),  # C1
        ("a\rb\nc\x0bd\x0ce\x85f\u2028g\u2029h\x1ci", "a?b?c?d?e?f?g?h?i"),
        ("\u202eexe.txt\u202c \u2066x\u2069 \u200f\u061c", "?exe.txt? ?x? ??"),
        ("pay\u200bpal \u200c\u200d\u2060\ufeff\u00ad\U000e0041", "pay?pal ??????"),
        ("x\ufe0f\u3164\u2800\u034f\u115f\U000e0100", "x??????"),
        ("a\u00a0b\u3000c\u2003d", "a b c d"),
        ("e\u0301 " + "x" + "\u0301" * 6, "e\u0301 x" + "\u0301" * 4 + "??"),
        ("\u0336over our own text", "?over our own text"),
        ("\x7f\x00\x08", "???"),
        ("\ud800\ue000\uffff", "???"),
        ("tab\there", "tab?here"),
    ],
)  # fmt: skip
def test_each_character_is_seen_or_replaced(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_nothing_else_gets_through(text: str) -> None:
    """Any text is printable, of the same length, and shown the same when shown again."""
    shown = visible(text)
    assert shown.isprintable() and len(shown) == len(text) and visible(shown) == shown


def test_only_line_feeds_divide_lines() -> None:
    assert visible_lines("a\r\nb\x0bc\n") == "a?\nb?c\n"
