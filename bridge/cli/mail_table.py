"""Lists with one line per mail: for a terminal of any width, a pipe, or a spreadsheet.

On a terminal, the list is laid out by `bridge.cli.table`. A pipe gets every column in full, separated by tabs,
whatever the terminal's width. Knows nothing of mail: a `MailTable` says what its columns are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from bridge.cli import table
from bridge.cli.terminal import say, say_cells, say_csv, width
from bridge.runtime.visible_text import visible

T = TypeVar("T")
_TIME = "TIME"


@dataclass(frozen=True)
class MailTable(Generic[T]):
    cells: Mapping[str, Callable[[T], str]]  # by the name of the column
    brief: tuple[str, ...]
    wide: tuple[str, ...]
    shared: tuple[str, ...]  # columns that are shortened
    least_important: tuple[str, ...]  # columns in the order in which a narrow terminal loses them
    in_full: Mapping[str, Callable[[T], str]] = field(default_factory=dict)  # cells of the wide form that differ
    usual: Mapping[str, str] = field(default_factory=dict)  # columns that say nothing if all mails have this value

    def rows(self, items: Iterable[T], columns: tuple[str, ...]) -> list[list[str]]:
        """The header, then the cells of each item."""
        cells = {**self.cells, **self.in_full} if columns == self.wide else self.cells
        made = [[visible(cells[column](item)).strip() for column in columns] for item in items]
        return [list(columns), *made]

    def lines(self, items: Iterable[T], columns: tuple[str, ...], width: int | None) -> Iterable[str]:
        """Aligned columns; if a width is given, no line is longer."""
        rows = self.rows(items, columns)
        if width is not None:
            _shorten_times(rows, columns.index(_TIME))
            if table.natural_width(rows) > width:
                rows = self._saving_space(rows)
        return table.lines(rows, width, shared=self.shared, least_important=self.least_important)

    def _saving_space(self, rows: list[list[str]]) -> list[list[str]]:
        """Leaves out what all mails have in common, so that the columns that tell them apart are cut less."""
        _leave_out_today(rows, rows[0].index(_TIME))
        dull = {
            place
            for place, name in enumerate(rows[0])
            if name in self.usual and all(row[place] == self.usual[name] for row in rows[1:])
        }
        return [[cell for place, cell in enumerate(row) if place not in dull] for row in rows]

    def lines_of_widths(self, items: Iterable[T], natural: Mapping[str, int], width: int) -> Iterable[str]:
        """The same with columns of these widths, so that later lines are aligned, too."""
        rows = self.rows(items, tuple(natural))
        return table.lines(rows, width, shared=self.shared, least_important=self.least_important, natural=natural)

    def show(self, items: Iterable[T]) -> None:
        """On a terminal, aligned and cut to its width; in a pipe, complete and separated by tabs."""
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


def first_of(addresses: tuple[str, ...]) -> str:
    """The first recipient, and how many more there are."""
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return "".join(addresses[:1]) + more


def _shorten_times(rows: list[list[str]], place: int) -> None:
    """Without the year, if it is this one for all mails."""
    _leave_out(rows, place, f"{datetime.now().year}-")


def _leave_out_today(rows: list[list[str]], place: int) -> None:
    _leave_out(rows, place, f"{datetime.now():%m-%d} ")


def _leave_out(rows: list[list[str]], place: int, beginning: str) -> None:
    if all(row[place].startswith(beginning) for row in rows[1:]):
        for row in rows[1:]:
            row[place] = row[place].removeprefix(beginning)
