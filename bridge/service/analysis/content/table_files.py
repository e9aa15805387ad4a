"""Tables as text (CSV, HTML, XML): cells that a spreadsheet program takes for formulas, and that start a program.

`=cmd|'/C calc'!A0` asks the program `cmd` for data (DDE). Such a cell begins with a sign, and the query may be
anywhere in its formula. The same holds for functions that call a library or start a program, and for those that load
an address or ask a program for data. Other formulas are harmless until someone opens a link.

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
from bridge.service.analysis.content.excel_files import RUNS_PROGRAM
from bridge.service.analysis.content.office_attacks import DDE, DDE_LINK, REMOTE, tag_of_sheet_link
from bridge.service.analysis.content.unpacking import Budget

_TABLES = frozenset({"csv", "tsv", "tab"})
# Names of other files that Excel opens as a table if they are text. Most are not tables: only what starts a program
# counts.
_MARKUP = frozenset({"xls", "xlt", "xla", "xlsx", "htm", "html", "mht", "mhtml", "xml"})
_XML, _SPREADSHEET = frozenset({"xml"}), b"office:spreadsheet"  # the namespace of a table in XML
_OTHERS = _MARKUP | {"txt", "prn", "dif", "slk"}
_CELLS = _TABLES | {"xls", "xlt", "xla", "prn", "dif"}  # those in which functions count
_BINARY = (b"\xd0\xcf\x11\xe0", b"PK\x03\x04", b"%PDF", b"{\\rtf")
_BAR = re.compile(rb"\||&(?:#0*+124|#x0*+7c|vert|verbar)", re.IGNORECASE)  # also as a reference
_CELL = re.compile(r"</?(?:[^\s<>:/]++:)?(?:td|th|tr|table|p|div|br|cell|data|row)\b[^<>]*+>", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]*+>")
_CALL = re.compile(r"\bDDE\s*+\(\s*+\"{1,2}+([^\"]++)\"{1,2}+\s*+[;,]\s*+\"{1,2}+([^\"]*+)", re.IGNORECASE)
# A function, within a formula and with a text as its first argument: most of these names are ordinary words.
_ARGUMENT = re.compile(r"\(\s*+(?:\"|CHAR\s*+\(|CONCAT)", re.IGNORECASE)
_FUNCTION = re.compile(r"[=+@(,;&*/^<>{-]\s{0,9}(?:_xl(?:fn|ws|udf)\.)?([a-z.]{3,12})\s{0,9}\Z")
_LONGEST_NAME = 40  # with a prefix and spaces
_TAGS = {
    **dict.fromkeys(("call", "register", "register.id", "exec", "execute"), RUNS_PROGRAM),
    **dict.fromkeys(("webservice", "importxml", "importhtml", "importdata", "importfeed", "importrange"), REMOTE),
    "rtd": DDE_LINK,
}
_QUERY = "dde"  # a function of LibreOffice
_FUNCTION_MARKS = (b"call", b"exec", b"register", b"webservice", b"import", b"rtd", b"dde")
_OWN_PROGRAM = "soffice"  # LibreOffice asks itself for cells of another document
_TAG_WORK, _REFERENCE_WORK = 16, 64
_SEARCH_WORK, _BYTE_WORK, _BAR_WORK = 4, 20, 40
_MARK_WORK = 200  # for each line, quote and sign
_QUERY_WORK = 4000
_TOPIC = re.compile(r"\|\s*+(?:'((?:[^']|'')*+)'|\"\"([^\"]*+)\"\"|([^\s!'\"|]++))\s*+!")
_OF_SERVICE = string.ascii_letters + string.digits + "_.\\:"
_BESIDE_SERVICE = string.whitespace + "'\xa0"
_FORMULA = re.compile(r"(?:^|[,;\t\"'\r\n])[^!-~\t\r\n]*+[=+@-]")  # a byte order mark may precede it, or any space
_QUOTES = re.compile(r"(\"++)([^!-~\r\n]*+[=+@-])?")
_SEPARATOR = re.compile(r"[^!-~]*+\"?sep=([^\w\s|!'\"=])", re.IGNORECASE)  # the first line may name one


def is_table(content: bytes, names: Collection[str]) -> bool:
    """Whether it is a table that may have such a query. A quick test: most have none."""
    if b"|" in content and b"!" in content and file_types.has_extension(names, _TABLES):
        return True
    return _is_other(content, names) or _may_call(content, names)


def _may_call(content: bytes, names: Collection[str]) -> bool:
    if not file_types.has_extension(names, _CELLS) or content.startswith(_BINARY):
        return False
    lower = content.replace(b"\0", b"").lower()
    return b"(" in lower and any(mark in lower for mark in _FUNCTION_MARKS)


def _is_other(content: bytes, names: Collection[str]) -> bool:
    if not file_types.has_extension(names, _OTHERS) or content.startswith(_BINARY):
        return False
    if file_types.has_extension(names, _MARKUP):
        text = content.replace(b"\0", b"") if b"\0" in content else content
        if file_types.has_extension(names, _XML) and _SPREADSHEET not in text:
            return False
        if b"&" in text:
            return _BAR.search(text) is not None
    return b"|" in content and b"!" in content


def tags_of_file(content: bytes, names: Collection[str], budget: Budget) -> Iterator[str]:
    """The tags of a file for which `is_table` is true."""
    if file_types.has_extension(names, _TABLES):
        yield from tags_of_table(content, budget)
    elif _may_call(content, names):
        yield from _tags_of_functions(content.replace(b"\0", b"").decode("latin-1"), budget)
    if not _is_other(content, names):
        return
    budget.take_work(3 * len(content) + _TAG_WORK * content.count(b"<") + _REFERENCE_WORK * content.count(b"&"))
    text = content.replace(b"\0", b"").decode("latin-1")
    forms = {text}
    if "<" in text:  # in attributes, and in text
        forms |= {unescaped(text), unescaped(_TAG.sub("", _CELL.sub("\n", text)))}
    yield from {tag for form in forms for tag in _tags_of_text(form, budget)} & {DDE}


def tags_of_calls(formulas: str, budget: Budget) -> Iterator[str]:
    """`DDE("program";"topic";"item")`, the function of LibreOffice."""
    for call in _CALL.finditer(formulas):
        budget.take_work(_QUERY_WORK)
        yield tag_of_query(call[1], call[2])


def tag_of_query(service: str, topic: str) -> str:
    """The tag for a cell or a field of LibreOffice that asks a program."""
    return DDE_LINK if service.strip().lower() == _OWN_PROGRAM else tag_of_sheet_link(service, topic)


def tags_of_table(content: bytes, budget: Budget) -> Iterator[str]:
    text = content.replace(b"\0", b"").decode("latin-1")  # UTF-16 as well
    yield from _tags_of_text(text, budget)
    yield from _tags_of_functions(text, budget)


def _tags_of_text(text: str, budget: Budget) -> Iterator[str]:
    budget.take_work(_SEARCH_WORK * len(text) + _BAR_WORK * text.count("|"))
    if separator := _SEPARATOR.match(text):
        text = text.replace(separator[1], "\t")
    queries = []
    for query in _TOPIC.finditer(text):
        budget.take_work(_QUERY_WORK)
        queries.append(query)
    if queries:  # nearly never
        budget.take_work(_BYTE_WORK * len(text))
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


def _tags_of_functions(text: str, budget: Budget) -> Iterator[str]:
    budget.take_work(_SEARCH_WORK * len(text) + _BAR_WORK * text.count("("))
    found: list[tuple[int, str]] = []
    for argument in _ARGUMENT.finditer(text):
        budget.take_work(_MARK_WORK)
        name = _FUNCTION.search(text[max(0, argument.start() - _LONGEST_NAME) : argument.start()].lower())
        if name and (name[1] in _TAGS or name[1] == _QUERY):
            found.append((argument.start(), name[1]))
    for (_, called), is_formula in zip(found, _are_formulas(text, [at for at, _ in found], budget), strict=True):
        if is_formula and called in _TAGS:
            yield _TAGS[called]
    if any(called == _QUERY for _, called in found):
        yield from tags_of_calls(text, budget)


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
