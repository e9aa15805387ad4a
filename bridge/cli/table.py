"""Lists with one line per mail, for a terminal of any width, a pipe, or a spreadsheet.

On a terminal, the long columns share the width that is left, and a narrow one shows fewer columns. A pipe gets every
column in full, separated by tabs, whatever the terminal's width. Widths are counted in terminal cells, because a
Chinese letter takes two and a combining accent none. Knows nothing of mail: a `Table` says what its columns are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from bridge.cli.terminal import say, say_cells, say_csv, width
from bridge.runtime.visible_text import visible

T = TypeVar("T")
_LEAST = 5  # cells of a shortened column
_GAP = "  "
_MORE = "\u2026"


@dataclass(frozen=True)
class Table(Generic[T]):
    cells: Mapping[str, Callable[[T], str]]  # by the name of the column
    brief: tuple[str, ...]
    wide: tuple[str, ...]
    shared: tuple[str, ...]  # columns that are shortened
    least_important: tuple[str, ...]  # columns in the order in which a narrow terminal loses them
    in_full: Mapping[str, Callable[[T], str]] = field(
        default_factory=dict
    )  # columns that the wide form shows otherwise
    time: str = "TIME"

    def rows(self, items: Iterable[T], columns: tuple[str, ...]) -> Iterable[list[str]]:
        """The header, then the cells of each item."""
        cells = {**self.cells, **self.in_full} if columns == self.wide else self.cells
        yield list(columns)
        for item in items:
            yield [visible(cells[column](item)).strip() for column in columns]

    def lines(self, items: Iterable[T], columns: tuple[str, ...], width: int | None) -> Iterable[str]:
        """Aligned columns; with a width, no line is longer."""
        from rich.cells import cell_len

        table = list(self.rows(items, columns))
        if width is not None:
            _shorten_times(table, columns.index(self.time))
        natural = {
            name: max(map(cell_len, cells)) for name, cells in zip(columns, zip(*table, strict=True), strict=True)
        }
        chosen = self._fit(natural, width) if width is not None else natural
        return _aligned(table, columns, chosen, width)

    def lines_of_widths(self, items: Iterable[T], natural: Mapping[str, int], width: int) -> Iterable[str]:
        """The same with the header, for columns of these widths: so lines that come later are aligned, too."""
        columns = tuple(natural)
        return _aligned(list(self.rows(items, columns)), columns, self._fit(dict(natural), width), width)

    def show(self, items: Iterable[T]) -> None:
        """On a terminal aligned and cut to its width; in a pipe complete, separated by tabs."""
        columns = width()
        if columns is None:
            for row in self.rows(items, self.brief):
                say_cells(*row)
        else:
            for line in self.lines(items, self.brief, columns):
                say(line)

    def show_wide(self, items: Iterable[T]) -> None:
        """All columns in full, however long the line gets."""
        if sys.stdout.isatty():
            for line in self.lines(items, self.wide, None):
                say(line)
        else:
            for row in self.rows(items, self.wide):
                say_cells(*row)

    def show_csv(self, items: Iterable[T], *, header: bool = True) -> None:
        names, *others = self.rows(items, self.wide)
        if header:
            say_csv(*map(str.lower, names))
        for row in others:
            say_csv(*row)

    def _fit(self, natural: dict[str, int], width: int) -> dict[str, int]:
        """The columns that there is room for, and their widths."""
        left = dict(natural)
        for name in ("", *self.least_important):
            left.pop(name, None)
            fixed = sum(size for column, size in left.items() if column not in self.shared)
            fixed += len(_GAP) * (len(left) - 1)
            shared = {column: size for column, size in left.items() if column in self.shared}
            if fixed + sum(min(size, _LEAST) for size in shared.values()) <= width:
                return left | _share(shared, width - fixed)
        return left


def first_of(addresses: tuple[str, ...]) -> str:
    """The first recipient, and how many more there are."""
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return "".join(addresses[:1]) + more


def _aligned(
    table: list[list[str]], columns: tuple[str, ...], chosen: dict[str, int], width: int | None
) -> Iterable[str]:
    places = [(columns.index(name), size) for name, size in chosen.items()]
    for row in table:
        line = _GAP.join(_sized(row[place], size) for place, size in places).rstrip()
        yield line if width is None else cut(line, width)


def _shorten_times(table: list[list[str]], place: int) -> None:
    """Without the year, if it is this one for all mails."""
    year = f"{datetime.now().year}-"
    if all(row[place].startswith(year) for row in table[1:]):
        for row in table[1:]:
            row[place] = row[place].removeprefix(year)


def _share(natural: dict[str, int], room: int) -> dict[str, int]:
    """Divide the room evenly; what a short column does not need goes to the others."""
    sizes: dict[str, int] = {}
    for name in sorted(natural, key=lambda name: natural[name]):
        sizes[name] = min(natural[name], room // (len(natural) - len(sizes)))
        room -= sizes[name]
    return sizes


def _sized(text: str, size: int) -> str:
    """Exactly this wide: filled with spaces, or cut."""
    from rich.cells import cell_len

    text = cut(text, size)
    return text + " " * (size - cell_len(text))


def cut(text: str, size: int) -> str:
    """No wider than this."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= size:
        return text
    return set_cell_size(text, size - 1).rstrip() + _MORE if size > 0 else ""


def aligned(rows: Sequence[Sequence[str]], most: Sequence[int]) -> list[str]:
    """Columns no wider than `most`: the first to the left, the others, which are numbers, to the right."""
    from rich.cells import cell_len

    shown = [[cut(visible(cell), size) for cell, size in zip(row, most, strict=True)] for row in rows]
    sizes = [max(cell_len(row[place]) for row in shown) for place in range(len(most))]
    lines = []
    for first, *numbers in shown:
        right = [" " * (size - cell_len(cell)) + cell for cell, size in zip(numbers, sizes[1:], strict=True)]
        lines.append(_GAP.join([_sized(first, sizes[0]), *right]))
    return lines
