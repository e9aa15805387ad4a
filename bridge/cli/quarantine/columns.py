"""The list of quarantined mails: one line per mail, for a terminal of any width, a pipe, or a spreadsheet.

On a terminal, the list is laid out by `bridge.cli.table`. A pipe gets every column in full, separated by tabs, whatever
the terminal's width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from bridge.cli import table
from bridge.cli.quarantine.severity import why
from bridge.quarantine.record import MailRecord
from bridge.runtime.visible_text import visible

BRIEF = ("ID", "TIME", "FROM", "TO", "SUBJECT", "WHY", "STATE")
WIDE = (*BRIEF, "DECISION", "VERDICT", "SIZE", "CLIENT", "HELO", "LISTENER", "TENANT")
_SHARED = ("FROM", "TO", "SUBJECT", "WHY")  # columns that are shortened
_LEAST_IMPORTANT = ("TO", "FROM", "STATE", "WHY", "TIME", "SUBJECT")

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
    found = list(rows(mails, columns))
    if width is not None:
        _shorten_times(found, columns.index("TIME"))
    return table.lines(found, width, shared=_SHARED, least_important=_LEAST_IMPORTANT)


def _shorten_times(found: list[list[str]], place: int) -> None:
    """Without the year, if it is this one for all mails."""
    year = f"{datetime.now().year}-"
    if all(row[place].startswith(year) for row in found[1:]):
        for row in found[1:]:
            row[place] = row[place].removeprefix(year)


def _first_recipient(addresses: tuple[str, ...]) -> str:
    more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
    return "".join(addresses[:1]) + more
