"""Tables as text (CSV): cells that a spreadsheet program takes for formulas, and that start a program.

`=cmd|'/C calc'!A0` asks the program `cmd` for data (DDE). Such a cell begins with a sign, and the query may be
anywhere in its formula. Only these queries are found: other formulas are harmless until someone opens a link.

Programs do not agree on what separates cells. So a query counts if any cell of its line may begin with a sign, or if
the quotes around it begin with one: within them, a cell has several lines.
"""

from __future__ import annotations

import re
import string
from bisect import bisect
from collections.abc import Collection, Iterator

from bridge.mime.references import unescaped
from bridge.service.analysis.content import file_types
from bridge.service.analysis.content.office_attacks import tag_of_sheet_link
from bridge.service.analysis.content.unpacking import Budget

_TABLES = frozenset({"csv", "tsv", "tab"})
_SHEETS = frozenset({"xls", "xlt", "xlm", "xla", "xlw", "dif", "slk"})  # Excel opens text and pages of these names, too
_SHEET_XML = b"urn:schemas-microsoft-com:office:spreadsheet"
_START = 4096  # bytes in which a document declares what it is
_BYTE_WORK = 20
_MARK_WORK = 200  # for each line, quote and sign
_QUERY_WORK = 4000
_TOPIC = re.compile(r"\|\s*+(?:'((?:[^']|'')*+)'|\"\"([^\"]*+)\"\"|([^\s!'\"|]++))\s*+!")
_OF_SERVICE = string.ascii_letters + string.digits + "_.\\:"
_BESIDE_SERVICE = string.whitespace + "'\xa0"
_FORMULA = re.compile(r"(?:^|[,;\t\"'\r\n])[^!-~\t\r\n]*+[=+@-]")  # a byte order mark may precede it, or any space
_QUOTES = re.compile(r"(\"++)([^!-~]*+[=+@-])?")
_SEPARATOR = re.compile(r"[^!-~]*+\"?sep=([^\w\s|!'\"=])", re.IGNORECASE)  # the first line may name one


def is_table(content: bytes, names: Collection[str]) -> bool:
    """Whether it is a table that may have such a query: most have none, which is found out at once."""
    if b"|" not in content or b"!" not in content:
        return False
    return file_types.has_extension(names, _TABLES) or _is_sheet(content, names)


def _is_sheet(content: bytes, names: Collection[str]) -> bool:
    """A table with the name of a workbook, as text or as a page; or one in XML."""
    start = content[:_START]
    is_text = b"\0\0" not in start and not start.startswith(b"PK")
    return is_text and (file_types.has_extension(names, _SHEETS) or _SHEET_XML in start)


def tags_of_table(content: bytes, budget: Budget) -> Iterator[str]:
    budget.take_work(_BYTE_WORK * len(content) + _MARK_WORK * content.count(b"|"))
    text = content.replace(b"\0", b"").decode("latin-1")  # UTF-16 as well
    if "<" in text[:_START]:
        text = unescaped(text.replace(">", "\n").replace("<", "\n<"))
    if separator := _SEPARATOR.match(text):
        text = text.replace(separator[1], "\t")
    queries = []
    for query in _TOPIC.finditer(text):
        budget.take_work(_QUERY_WORK)
        queries.append(query)
    asked: set[tuple[str, str]] = set()
    end = 0
    for query, is_formula in zip(
        queries, _are_formulas(text, [query.start() for query in queries], budget), strict=True
    ):
        before = text[end : query.start()].rstrip(_BESIDE_SERVICE)
        end = query.end()
        service = before[len(before.rstrip(_OF_SERVICE)) :]
        if service and is_formula:
            asked.add((service, query[1] or query[2] or query[3] or ""))
    yield from {tag_of_sheet_link(*query) for query in asked}


def _are_formulas(text: str, places: list[int], budget: Budget) -> Iterator[bool]:
    """Whether each of these places may be in a formula; they are in order."""
    if not places:
        return
    budget.take_work(_MARK_WORK * sum(map(text.count, '"=+@-')))
    starts = [0, *(match.end() for match in _FORMULA.finditer(text))]
    quotes = [match for match in _QUOTES.finditer(text) if len(match[1]) % 2]  # doubled ones are in a cell
    opened = [match.start() for match in quotes]
    line = seen = 0
    for at in places:
        line = max(line, text.rfind("\n", seen, at) + 1, text.rfind("\r", seen, at) + 1)
        seen = at
        quote = bisect(opened, at)
        yield starts[bisect(starts, at) - 1] > line or (quote > 0 and quotes[quote - 1][2] is not None)
