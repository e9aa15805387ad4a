"""Bar charts as SVG, without a plotting library: one text file that browsers, reports and wikis show.

Labels may come from mail, so they are escaped and shortened; a chart contains no script, no link and no remote font.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bridge.runtime import output_file
from bridge.runtime.visible_text import visible

_FONT = 'font-family="system-ui, sans-serif" font-size="13"'
_BAR, _TEXT, _LINE = "#3b6ea5", "#222222", "#d5d9de"
_MAX_LABEL = 42  # characters
_LETTER = 8.0  # pixels, about
_ROW, _PLOT, _EDGE, _TOP = 26, 460, 24, 64
_COLUMNS, _HEIGHT, _MAX_MARKS = 860, 300, 12


def bars(title: str, rows: Sequence[tuple[str, int]], subtitle: str = "") -> str:
    """Horizontal bars, one for each label, in the given order."""
    shown = [(_label(label), count) for label, count in rows]
    left = _EDGE + max([len(label) for label, _ in shown], default=0) * _LETTER + 10
    most = max([count for _, count in shown], default=0) or 1
    width, height = left + _PLOT + 90, _TOP + _ROW * len(shown) + _EDGE
    parts = []
    for number, (label, count) in enumerate(shown):
        y = _TOP + number * _ROW
        length = _PLOT * count / most
        parts.append(_text(left - 10, y + 14, label, anchor="end"))
        parts.append(f'<rect x="{left:.1f}" y="{y + 2}" width="{length:.1f}" height="{_ROW - 9}" fill="{_BAR}"/>')
        parts.append(_text(left + length + 8, y + 14, f"{count:,}"))
    return _document(width, height, title, subtitle, parts)


def columns(title: str, rows: Sequence[tuple[str, int]], subtitle: str = "") -> str:
    """Vertical bars, for times: some of the labels are written, so that they do not overlap."""
    most = _round_up(max([count for _, count in rows], default=0))
    longest = max([len(_label(label)) for label, _ in rows], default=0) * _LETTER
    left = _EDGE + max(len(f"{most:,}") * _LETTER + 10, longest * 0.75)
    bottom = _TOP + _HEIGHT
    step = _COLUMNS / max(len(rows), 1)
    parts = []
    for part in range(5):
        y = bottom - _HEIGHT * part / 4
        parts.append(f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{left + _COLUMNS:.1f}" y2="{y:.1f}" stroke="{_LINE}"/>')
        parts.append(_text(left - 8, y + 4, f"{most * part / 4:,.0f}" if most >= 4 else "", anchor="end"))
    every = -(-len(rows) // _MAX_MARKS) or 1
    for number, (label, count) in enumerate(rows):
        height = _HEIGHT * count / most
        x = left + number * step
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{bottom - height:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}" '
            f'fill="{_BAR}"><title>{_safe(label)}: {count:,}</title></rect>'
        )
        if number % every == 0:
            place = f"{x + step / 2:.1f} {bottom + 16}"
            parts.append(_text(x + step / 2, bottom + 16, _label(label), anchor="end", turn=place))
    return _document(left + _COLUMNS + _EDGE, bottom + 40 + longest * 0.6, title, subtitle, parts)


def _round_up(number: int) -> int:
    """A number that four grid lines divide into round steps."""
    scale = 1
    while True:
        for factor in (4, 8, 12, 20, 28):
            if scale * factor >= number:
                return scale * factor
        scale *= 10


def _text(x: float, y: float, text: str, *, anchor: str = "start", turn: str = "", more: str = "") -> str:
    turned = f' transform="rotate(-35 {turn})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{_TEXT}"{turned}{more}>{_safe(text)}</text>'


def _document(width: float, height: float, title: str, subtitle: str, parts: Sequence[str]) -> str:
    head = _text(_EDGE, 28, title, more=' font-size="17" font-weight="600"')
    below = _text(_EDGE, 48, subtitle) if subtitle else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{_safe(title)}" {_FONT}>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join([head, below, *parts]) + "\n</svg>\n"
    )


def _label(text: str) -> str:
    clean = visible(text)
    return clean if len(clean) <= _MAX_LABEL else f"{clean[: _MAX_LABEL - 1]}\u2026"


def _safe(text: str) -> str:
    return escape(visible(text), quote=True)


def write(path: Path, picture: str) -> None:
    """A picture is not a secret, but nobody else may change it. Raises OSError."""
    output_file.write(path, picture, 0o644)
