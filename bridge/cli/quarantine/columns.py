"""The list of quarantined mails: one line per mail, for a terminal of any width, a pipe, or a spreadsheet.

On a terminal, the long columns share the width that is left, and a narrow one shows fewer columns. A pipe gets every
column in full, separated by tabs, whatever the terminal's width. Widths are counted in terminal cells, because a
Chinese letter takes two and a combining accent none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from bridge.cli.quarantine.severity import why
from bridge.quarantine.record import MailRecord
from bridge.runtime.visible_text import visible

BRIEF = ("ID", "TIME", "FROM", "TO", "SUBJECT", "WHY", "STATE")
WIDE = (*BRIEF, "DECISION", "VERDICT", "SIZE", "CLIENT", "HELO", "LISTENER", "TENANT")
_SHARED = ("FROM", "TO", "SUBJECT", "WHY")  # columns that are shortened
_LEAST = 5  # cells of a shortened column
_LEAST_IMPORTANT = ("TO", "FROM", "STATE", "WHY", "TIME", "SUBJECT")
_GAP = "  "
_MORE = "\u2026"

_CELLS: dict[str, Callable[[MailRecord], str]] = {
    "ID": lambda mail: mail.id,
    "TIME": lambda mail: mail.time.astimezone().strftime("%Y-%m-%d %H:%M"),
    "FROM": lambda mail: mail.envelope.sender or "<>",
    "TO": lambda mail: _first_recipient(mail.envelope.addresses),
    "SUBJECT": lambda mail: mail.subject,
    "WHY": why,
    "STATE": lambda mail: mail.state,
    "DECISION": lambda mail: mail.decision,
    "VERDICT": lambda mail: str(mail.facts.get("verdict") or ""),
    "SIZE": lambda mail: str(mail.size),
    "CLIENT": lambda mail: mail.client.address or "",
    "HELO": lambda mail: mail.client.helo or "",
    "LISTENER": lambda mail: mail.listener,
    "TENANT": lambda mail: mail.tenant,
}
_IN_FULL: dict[str, Callable[[MailRecord], str]] = {
    "TO": lambda mail: ", ".join(mail.envelope.addresses),
    "TIME": lambda mail: mail.time.astimezone().isoformat(timespec="seconds"),
}


def rows(mails: Iterable[MailRecord], columns: tuple[str, ...]) -> Iterable[list[str]]:
    """The header, then the cells of each mail; in the wide form with all recipients, seconds and time zone."""
    cells = _CELLS | _IN_FULL if columns == WIDE else _CELLS
    yield list(columns)
    for mail in mails:
        yield [visible(cells[column](mail)).strip() for column in columns]


def lines(mails: Iterable[MailRecord], columns: tuple[str, ...], width: int | None) -> Iterable[str]:
    """Aligned columns; with a width, no line is longer."""
    from rich.cells import cell_len

    table = list(rows(mails, columns))
    if width is not None:
        _shorten_times(table, columns.index("TIME"))
    natural = {name: max(map(cell_len, cells)) for name, cells in zip(columns, zip(*table, strict=True), strict=True)}
    chosen = _fit(natural, width) if width is not None else natural
    places = [(columns.index(name), size) for name, size in chosen.items()]
    for row in table:
        line = _GAP.join(_sized(row[place], size) for place, size in places).rstrip()
        yield line if width is None else _cut(line, width)


def _shorten_times(table: list[list[str]], place: int) -> None:
    """Without the year, if it is this one for all mails."""
    year = f"{datetime.now().year}-"
    if all(row[place].startswith(year) for row in table[1:]):
        for row in table[1:]:
            row[place] = row[place].removeprefix(year)


def _fit(natural: dict[str, int], width: int) -> dict[str, int]:
    """The columns that there is room for, and their widths."""
    left = dict(natural)
    for name in ("", *_LEAST_IMPORTANT):
        left.pop(name, None)
        fixed = sum(size for column, size in left.items() if column not in _SHARED) + len(_GAP) * (len(left) - 1)
        shared = {column: size for column, size in left.items() if column in _SHARED}
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

    text = _cut(text, size)
    return text + " " * (size - cell_len(text))


def _cut(text: str, size: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= size:
        return text
    return set_cell_size(text, size - 1).rstrip() + _MORE if size > 0 else ""


def _first_recipient(addresses: tuple[str, ...]) -> str:
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return "".join(addresses[:1]) + more
