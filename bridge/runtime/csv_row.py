"""One row for a spreadsheet (RFC 4180). No cell is a formula: spreadsheets execute those."""

from __future__ import annotations

import csv
import io
import re

from bridge.runtime.visible_text import visible

# At the start, or after a semicolon, which separates cells in some countries, where quotes are then removed.
# The last four are full-width forms.
_FORMULA = re.compile('(^|;)([ "]*[=+@\uff1d\uff0b\uff0d\uff20-])')


def csv_row(*cells: str) -> str:
    """With its line end."""
    row = io.StringIO()
    csv.writer(row).writerow([_FORMULA.sub(r"\1'\2", visible(cell)) for cell in cells])
    return row.getvalue()
