"""One row for a spreadsheet (RFC 4180). No cell is a formula: spreadsheets execute those."""

from __future__ import annotations

import csv
import io
import re

from bridge.runtime.visible_text import visible

# At the start, or after a semicolon, which separates cells in some countries, where quotes are then removed.
# The last four are full-width forms.
_START = r"""'*[\s"]*[=+@\uff1d\uff0b\uff0d\uff20-]"""
_FORMULA, _MARKED = re.compile(f"(^|;)({_START})"), re.compile(f"(^|;)'({_START})")


def csv_row(*cells: str) -> str:
    """The row, with its line end."""
    row = io.StringIO()
    csv.writer(row).writerow([no_formula(visible(cell)) for cell in cells])
    return row.getvalue()


def no_formula(text: str) -> str:
    """Put an apostrophe before each formula: in a spreadsheet, that makes it text."""
    return _FORMULA.sub(r"\1'\2", text)


def original(text: str) -> str:
    """Undo `no_formula`."""
    return _MARKED.sub(r"\1\2", text)
