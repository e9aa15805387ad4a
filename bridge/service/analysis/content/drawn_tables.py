"""QR codes that a page draws with the cells of a table, each of which has a colour.

Such a table has a cell for each module, or for a run of them, which is as wide as its number of columns or of pixels
says. A code may also consist of a table for each row. Colours count if the cell itself has them, its row or its table.
Linear; raises only TooMuch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator

from bridge.service.analysis.content.page_text import ascii_lower
from bridge.service.analysis.content.unpacking import Budget

MIN_MODULES, MAX_MODULES = 21, 256  # of a side of a code, and of one with its margin
_MIN_CELLS, _MIN_COLOURS = 120, 60  # of the smallest code if each run of modules is a cell, and only dark ones a colour
_MIN_RUNS = 3  # of a row: those with fewer cells are the layout of the page
_TAG_WORK = 200  # for each tag of a table
_MAX_ATTRIBUTES = 1000  # characters
_WHITE = 255
_TAG = re.compile(r"<(table|tr|td|th)\b([^<>]*)")
_STYLE = re.compile(  # the colour may be behind the words for a picture: `none repeat scroll 0 0 #000`
    r"\bbackground(?:-color)?\s{0,9}:(?:[^;\"'<>#()]{0,99}?(#[0-9a-f]{3,8}\b|rgba?\([^()\"'<>]{5,60}\))"
    r"|\s{0,9}([a-z]{3,24})\b)"
)
_ATTRIBUTE = re.compile(r"\bbgcolor\s{0,9}=\s{0,9}[\"']?\s{0,9}(#[0-9a-f]{3,6}\b|([a-z0-9]{3,24}))")
_SPAN = re.compile(r"\bcolspan\s{0,9}=\s{0,9}[\"']?(\d{1,3})")
_WIDTH = re.compile(r"(?<![\w-])width\s{0,9}[=:]\s{0,9}[\"']?(\d{1,4})")
_HEX = re.compile(r"[0-9a-f]{6}|[0-9a-f]{3}")

_Run = tuple[int | None, int]  # the shade of grey, and how many modules have it
_Cell = tuple[int | None, int, int]  # the shade of grey, and how many columns and pixels it is wide: 0 is not known


def has_cells(page: str) -> bool:
    """A quick test: whether there are as many rows, cells and colours as in a code."""
    if page.count("<td") + page.count("<TD") < _MIN_CELLS:
        return False
    lower = ascii_lower(page)
    if lower.count("bgcolor") + lower.count("background") < _MIN_COLOURS:
        return False
    rows = lower.split("<tr")
    return len(rows) > MIN_MODULES and sum(row.count("<td") >= _MIN_RUNS for row in rows) >= MIN_MODULES


def tables(page: str, budget: Budget) -> Iterator[list[bytes]]:
    """In shades of grey: a byte for each module. The references in the page are replaced already."""
    rows = list(_rows(ascii_lower(page), budget))
    yield from _grids([[(grey, columns) for grey, columns, _ in row] for row in rows])
    yield from _grids(_in_modules([[(grey, width) for grey, _, width in row] for row in rows]))


def _rows(page: str, budget: Budget) -> Iterator[list[_Cell]]:
    """In lower case. The tags are enough: browsers do not need those that end a cell or a row."""
    greys: dict[str, int | None] = {}
    around: dict[str, int | None] = {"table": None, "tr": None}
    cells: list[_Cell] = []
    for match in _TAG.finditer(page):
        budget.take_work(_TAG_WORK)
        name, attributes = match[1], match[2][:_MAX_ATTRIBUTES]
        found = _STYLE.search(attributes) or _ATTRIBUTE.search(attributes)
        colour = (found[1] or found[2]) if found else ""
        if colour not in greys:
            greys[colour] = grey_of(colour)
        grey = greys[colour]
        if name in around:
            around |= {"tr": None, name: grey}
            if len(cells) >= _MIN_RUNS:
                yield cells
            cells = []
        else:
            span, width = _SPAN.search(attributes), _WIDTH.search(attributes)
            shown = next((shade for shade in (grey, around["tr"], around["table"]) if shade is not None), None)
            cells.append((shown, max(1, int(span[1])) if span else 1, int(width[1]) if width else 0))
    if len(cells) >= _MIN_RUNS:
        yield cells


def grey_of(colour: str) -> int | None:
    """None if it is not a colour."""
    from PIL import ImageColor

    try:
        grey = ImageColor.getcolor("#" + colour if _HEX.fullmatch(colour) else colour, "L")
    except ValueError:  # "transparent", for example
        return None
    return grey if isinstance(grey, int) else grey[0]


def _in_modules(rows: Iterable[list[_Run]]) -> Iterator[list[_Run]]:
    """With the smallest width as the unit, in each table of rows that are equally wide."""
    group: list[list[_Run]] = []
    for row in (*rows, []):
        if group and sum(width for _, width in group[-1]) != sum(width for _, width in row):
            unit = math.gcd(*(width for cells in group for _, width in cells)) or 1
            yield from ([(grey, width // unit) for grey, width in cells] for cells in group)
            group = []
        group.append(row)


def _grids(rows: Iterable[list[_Run]]) -> Iterator[list[bytes]]:
    """Consecutive rows that are equally wide."""
    group: list[list[_Run]] = []
    width = 0
    for row in (*rows, []):
        modules = sum(count for _, count in row)
        if group and (modules != width or len(group) == 2 * MAX_MODULES):
            if len(group) >= MIN_MODULES and MIN_MODULES <= width <= MAX_MODULES:
                yield _grid(group)
            group = []
        width = modules
        group.append(row)


def _grid(rows: Iterable[list[_Run]]) -> list[bytes]:
    """A cell without a colour is white, unless the others are."""
    known = [grey for row in rows for grey, _ in row if grey is not None]
    page = 0 if known and min(known) > _WHITE // 2 else _WHITE
    return [b"".join(bytes((page if grey is None else grey,)) * count for grey, count in row) for row in rows]
