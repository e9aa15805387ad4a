"""A table for a terminal of any width: one line for each row.

The long columns share the width that is left, and a narrow terminal shows fewer columns. Widths are counted in
terminal cells, because a Chinese letter takes two and a combining accent none. Knows text only: what it is given must
have been made visible before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

_LEAST = 5  # cells of a shortened column
_GAP = "  "
_MORE = "\u2026"


def lines(
    rows: Sequence[Sequence[str]],
    width: int | None,
    *,
    shared: Sequence[str],
    least_important: Sequence[str],
    natural: Mapping[str, int] | None = None,
) -> Iterable[str]:
    """Aligned columns; if a width is given, no line is longer. The first row has the names of the columns.

    `shared` columns are shortened; those that are `least_important` are left out first. `natural` has the
    widths of the columns if they do not follow from these rows.
    """
    from rich.cells import cell_len

    names = rows[0]
    if natural is None:
        natural = {name: max(map(cell_len, cells)) for name, cells in zip(names, zip(*rows, strict=True), strict=True)}
    chosen = natural if width is None else _fit(natural, width, shared, least_important)
    places = [(names.index(name), size) for name, size in chosen.items()]
    for row in rows:
        line = _GAP.join(_sized(row[place], size) for place, size in places).rstrip()
        yield line if width is None else cut(line, width)


def natural_width(rows: Sequence[Sequence[str]]) -> int:
    """The width of the lines if nothing is cut."""
    from rich.cells import cell_len

    return sum(max(map(cell_len, cells)) + len(_GAP) for cells in zip(*rows, strict=True)) - len(_GAP)


def _fit(natural: Mapping[str, int], width: int, long: Sequence[str], least_important: Sequence[str]) -> dict[str, int]:
    """The columns that there is room for, and their widths."""
    left = dict(natural)
    for name in ("", *least_important):
        left.pop(name, None)
        fixed = sum(size for column, size in left.items() if column not in long) + len(_GAP) * (len(left) - 1)
        shared = {column: size for column, size in left.items() if column in long}
        if fixed + sum(min(size, _LEAST) for size in shared.values()) <= width:
            return left | _share(shared, width - fixed)
    return left


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
    """The text, no wider than this."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= size:
        return text
    return set_cell_size(text, size - 1).rstrip() + _MORE if size > 0 else ""


def aligned(rows: Sequence[Sequence[str]], most: Sequence[int]) -> list[str]:
    """Columns no wider than `most`: the first aligned left, the others, which are numbers, aligned right."""
    from rich.cells import cell_len

    shown = [[cut(cell, size) for cell, size in zip(row, most, strict=True)] for row in rows]
    sizes = [max(cell_len(row[place]) for row in shown) for place in range(len(most))]
    lines = []
    for first, *numbers in shown:
        right = [" " * (size - cell_len(cell)) + cell for cell, size in zip(numbers, sizes[1:], strict=True)]
        lines.append(_GAP.join([_sized(first, sizes[0]), *right]))
    return lines
