"""Tables as text (CSV): cells that a spreadsheet program takes for formulas, and that start a program.

`=cmd|'/C calc'!A0` asks the program `cmd` for data (DDE). Such a cell begins with a sign, and the query may be
anywhere in its formula. Only these queries are found: other formulas are harmless until someone opens a link.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Iterator

from bridge.service.analysis.content import file_types
from bridge.service.analysis.content.office_attacks import tag_of_sheet_link
from bridge.service.analysis.content.unpacking import Budget

_TABLES = frozenset({"csv", "tsv", "tab"})
_BYTE_WORK = 10
_QUERY_WORK = 4000
_TOPIC = re.compile(r"\|\s{0,9}(?:'([^'\r\n]{1,500})'|\"\"([^\"\r\n]{1,500})\"\"|([^\s!'\"|]{1,500}))!")
_OF_SERVICE = string.ascii_letters + string.digits + "_.\\:"
_FORMULA = re.compile(r"(?:^|[,;\t\"'\r\n])\s{0,9}[=+@-]")
_BEFORE = 500  # characters of a line before the query, in which its cell begins


def is_table(content: bytes, names: Collection[str]) -> bool:
    """Whether it is a table that may have such a query: most have none, which is found out at once."""
    return b"|" in content and b"!" in content and file_types.has_extension(names, _TABLES)


def tags_of_table(content: bytes, budget: Budget) -> Iterator[str]:
    budget.take_work(_BYTE_WORK * len(content))
    text = content.replace(b"\0", b"").decode("latin-1")  # UTF-16 as well
    asked: set[tuple[str, str]] = set()
    for query in _TOPIC.finditer(text):
        budget.take_work(_QUERY_WORK)
        line = text[max(0, query.start() - _BEFORE) : query.start()].rpartition("\n")[2].rpartition("\r")[2]
        before = line.rstrip(" '")
        service = before[len(before.rstrip(_OF_SERVICE)) :]
        if service and _FORMULA.search(line):
            asked.add((service, query[1] or query[2] or query[3]))
    yield from {tag_of_sheet_link(*query) for query in asked}
