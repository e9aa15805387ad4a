"""The confusion matrix as a picture (SVG), written by hand: it is a few rectangles and words.

One hue, from light to dark by the share of its row, for the decisions that stayed; another one for those that changed.
Every cell also has its number, so that the colours are not needed to read it. Words from a service are escaped.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from bridge.cli.replay.judgement import Replay, in_order
from bridge.cli.replay.report import totals
from bridge.runtime.visible_text import visible

_CELL, _HIGH = 108, 56
_LEFT, _TOP, _EDGE = 150, 134, 28
_STAYED, _CHANGED = (33, 102, 172), (178, 74, 24)
_LETTER = 7.4  # upper bound of a letter's average width
_MAX_WORD = 12  # characters beside a row or above a column
_FONT = "font-family='DejaVu Sans, Helvetica, Arial, sans-serif'"


def draw(replay: Replay) -> str:
    matrix = replay.matrix
    befores, nows = in_order(set(matrix)), in_order({now for line in matrix.values() for now in line})
    wide = max(_LEFT + _CELL * max(len(nows), 1) + _EDGE, 640)
    room = int((wide - 40) / _LETTER)
    high = _TOP + _HIGH * max(len(befores), 1) + 44
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{wide}' height='{high}' viewBox='0 0 {wide} {high}' {_FONT}>",
        f"<title>{_safe(totals(replay))}</title>",
        f"<rect width='{wide}' height='{high}' fill='#ffffff'/>",
        _text(20, 30, "Decisions before and now", size=17, weight="bold"),
        _text(20, 52, _cut(f"scanner: {replay.scanner}", room), grey=True),
        _text(20, 71, _cut(f"compared with {replay.compared_with}", room), grey=True),
    ]
    if matrix:
        parts.append(_text(_LEFT + _CELL * len(nows) / 2, _TOP - 34, "now", anchor="middle", grey=True))
        parts.append(_text(_LEFT - 12, _TOP - 12, "before", anchor="end", grey=True))
    for number, now in enumerate(nows):
        parts.append(
            _text(_LEFT + _CELL * (number + 0.5), _TOP - 12, _cut(now, _MAX_WORD), anchor="middle", weight="bold")
        )
    for line, before in enumerate(befores):
        top, total = _TOP + _HIGH * line, sum(matrix[before].values())
        parts.append(_text(_LEFT - 12, top + _HIGH / 2 + 5, _cut(before, _MAX_WORD), anchor="end", weight="bold"))
        for number, now in enumerate(nows):
            parts.append(_cell(_LEFT + _CELL * number, top, matrix[before].get(now, 0), total, is_same=before == now))
    if not matrix:
        parts.append(_text(20, _TOP + 20, "There was nothing to compare with."))
    parts += [_text(20, high - 16, _cut(totals(replay), room), grey=True), "</svg>"]
    return "\n".join(parts) + "\n"


def _cell(left: float, top: float, count: int, total: int, *, is_same: bool) -> str:
    share = count / total
    colour = _STAYED if is_same else _CHANGED
    red, green, blue = (round(255 - (255 - part) * (0.12 + 0.78 * share)) if count else 247 for part in colour)
    box = f"<rect x='{left + 1}' y='{top + 1}' width='{_CELL - 2}' height='{_HIGH - 2}' rx='3'"
    filled = f"{box} fill='rgb({red},{green},{blue})'/>"
    if not count:
        return filled
    ink = "#ffffff" if 0.299 * red + 0.587 * green + 0.114 * blue < 130 else "#1a1a1a"
    number = _text(left + _CELL / 2, top + 26, f"{count:,}", anchor="middle", weight="bold", size=16, ink=ink)
    return f"{filled}\n{number}\n" + _text(
        left + _CELL / 2, top + 43, f"{share:.0%} of row", anchor="middle", size=11, ink=ink
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 13,
    grey: bool = False, ink: str = "#1a1a1a",
) -> str:  # fmt: skip
    style = f"text-anchor='{anchor}' font-weight='{weight}' font-size='{size}' fill='{'#5a5a5a' if grey else ink}'"
    return f"<text x='{x:g}' y='{y:g}' {style}>{_safe(text)}</text>"


def _safe(text: str) -> str:
    return escape(visible(text))


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "\u2026"
