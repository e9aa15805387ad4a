"""SYLK: a workbook as text, which Excel and LibreOffice recognise by its beginning, whatever its name is.

Each line is a record, whose fields begin with a letter: `C;X1;Y1;K0;EEXEC("calc.exe")` is a cell with a formula. Such
a workbook may be a sheet of macros. Linear; raises only TooMuch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.service.analysis.content import table_files
from bridge.service.analysis.content.excel_files import AUTO_MACRO, MACRO, RUNS_PROGRAM
from bridge.service.analysis.content.unpacking import Budget

_BEGINNING = re.compile(rb"(?:\xef\xbb\xbf)?\s{0,99}+ID;", re.IGNORECASE)
_LINE_WORK, _BYTE_WORK = 1000, 20
_ESCAPED = "\uffff"  # in the place of `;;`, which is no separator
# What starts a program, and what puts such a formula together.
_CALLS = re.compile(
    r"\b(?:EXEC|EXECUTE|REGISTER|REGISTER\.ID|CALL|RUN|FORMULA|FORMULA\.FILL|SET\.VALUE|EVALUATE|CHAR)\s*+\(",
    re.IGNORECASE,
)


def is_sylk(content: bytes) -> bool:
    return _BEGINNING.match(content) is not None


def tags_of_sylk(content: bytes, budget: Budget) -> Iterator[str]:
    text = content.decode("latin-1").replace(";;", _ESCAPED)
    budget.take_work(_BYTE_WORK * len(text))
    formulas: list[str] = []
    is_macro = False
    for line in text.splitlines():
        budget.take_work(_LINE_WORK)
        kind, *fields = (field.strip() for field in line.split(";"))
        match kind.upper():
            case "O":  # options
                is_macro = is_macro or "E" in map(str.upper, fields)
            case "NN" if any(field.upper().startswith("NAUTO_") for field in fields):
                yield AUTO_MACRO
            case "C" | "F":
                formulas += (field[1:].replace(_ESCAPED, ";") for field in fields if field[:1] in ("E", "e"))
    if is_macro:
        yield MACRO
        if any(map(_CALLS.search, formulas)):
            yield RUNS_PROGRAM
    yield from table_files.tags_of_table("\n".join(f"={formula}" for formula in formulas).encode("latin-1"), budget)
