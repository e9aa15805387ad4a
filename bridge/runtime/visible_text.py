"""Text from outside, made safe to show: what a person reads is what is there, and nothing acts on the terminal.

Mail, services and mail servers send us text. Shown as it is, it could move the cursor, change colours or the
clipboard (ESC, C1), reverse the reading direction, hide characters, or begin a line that looks like ours. Knows text
only; `bridge.cli.terminal` prints it. If this is wrong, a stranger's mail decides what an operator sees.
"""

from __future__ import annotations

import re
import unicodedata

_MAX_MARKS = 4  # on one letter; more would cover other lines
JOINERS = "\u200c\u200d"
# Without width or ink, although Unicode counts them as letters, marks or symbols.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")


def visible(text: str) -> str:
    """One line of printable characters: `?` for each other one, and a plain space for every kind of space."""
    if text.isascii() and text.isprintable():
        return text
    return _BLANK.sub("?", "".join(map(_visible_character, _with_few_marks(text))))


def visible_lines(text: str) -> str:
    """The same for text of several lines that we divided ourselves: line feeds stay, and nothing else does."""
    return "\n".join(map(visible, text.split("\n")))


def without_invisible(text: str) -> str:
    """What is left to see of a name: without format characters and blanks. Joiners stay, which change other letters."""
    if text.isascii():
        return text
    return "".join(char for char in _BLANK.sub("", text) if char in JOINERS or unicodedata.category(char) != "Cf")


def _visible_character(char: str) -> str:
    if char.isprintable():
        return char
    return " " if unicodedata.category(char) == "Zs" else "?"


def _with_few_marks(text: str) -> str:
    """`?` for each combining mark after the fourth in a row, and for one at the start, which would join our text."""
    kept, marks = [], _MAX_MARKS
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        kept.append(char if marks <= _MAX_MARKS else "?")
    return "".join(kept)
