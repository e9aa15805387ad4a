"""Workbooks of Excel: macros of Excel 4, which are formulas in special sheets, and cells that query other programs.

Reads the records of old workbooks (MS-XLS), and macro sheets of new ones, by their bytes. What a macro assembles from
characters is not seen; that it writes formulas when the workbook is opened, is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bridge.mime.references import unescaped
from bridge.service.analysis.content.office_attacks import tag_of_sheet_link
from bridge.service.analysis.content.pdf_files import ENCRYPTED
from bridge.service.analysis.content.unpacking import Budget

AUTO_MACRO, RUNS_PROGRAM, MACRO = "office:auto-macro", "office:macro-runs-program", "mime:macro"
_RECORD_WORK = 64
_BOF, _BOUND_SHEET, _NAME, _FILE_PASS, _SUP_BOOK = 0x809, 0x85, 0x18, 0x2F, 0x1AE
_FORMULAS = (0x06, 0x221, 0x4BC)  # Formula, Array, ShrFmla
_MACRO_SHEET = b"\x40\0"
_HEAD = 64  # bytes of a record that are copied
# Tokens of a formula that call a function with a fixed or a variable number of arguments (MS-XLS 2.5.198.62 and .63):
# EXEC, EXECUTE, REGISTER, CALL and REGISTER.ID; FORMULA, SET.VALUE, FWRITELN, FWRITE and EVALUATE.
_CALLS = re.compile(rb"(?:[\x22\x42\x62].|[\x21\x41\x61])(?:[\x6e\x6f\x95\x96]\0|\x0b\x01)", re.DOTALL)
_WRITES = re.compile(rb"(?:[\x22\x42\x62].|[\x21\x41\x61])(?:[\x60\x6c\x89\x8a]\0|\x01\x01)", re.DOTALL)
_CALLS_TEXT = re.compile(r"\b(?:EXEC|EXECUTE|REGISTER(?:\.ID)?|CALL)\s{0,9}\(", re.IGNORECASE)
_AUTO_NAME = re.compile(r"\bname\s{0,9}=\s{0,9}[\"'](?:_xlnm\.)?auto_(?:open|close|activate|deactivate)", re.IGNORECASE)
_AUTO_DEFINED = re.compile(r"(?m)^(?:_xlnm\.)?auto_(?:open|close|activate|deactivate)")
_AUTO = re.compile(rb"\0?a\0?u\0?t\0?o\0?_\0?(?:o\0?p\0?e\0?n|c\0?l\0?o\0?s\0?e|a\0?c\0?t\0?i\0?v)", re.IGNORECASE)
_BUILT_IN_AUTO = (b"\x01", b"\x02", b"\x0a", b"\x0b")  # Auto_Open, Auto_Close, Auto_Activate, Auto_Deactivate
_MACRO_PART = re.compile(r"(?:^|[/\\])macrosheets[/\\]", re.IGNORECASE)
_BINARY_PART = re.compile(r"(?:^|[/\\])xl[/\\](?:workbook\.bin$|(?:macro|work)sheets?[/\\])", re.IGNORECASE)
_SHEET_PART = re.compile(r"(?:^|[/\\])xl[/\\]\w{0,40}sheets?[/\\]", re.IGNORECASE)
_FORMULA_TEXT = re.compile(r"<(?:\w{1,20}:)?f(?:\s[^<>]{0,2000})?>([^<]+)")
_JOINT = re.compile(r'"\s{0,9}&\s{0,9}"')


def is_binary_part(name: str) -> bool:
    """A part of an .xlsb file that may contain macros, the name that runs one, or formulas with links."""
    return name.lower().endswith(".bin") and _BINARY_PART.search(name) is not None


def tags_of_binary_part(content: bytes, names: tuple[str, ...], budget: Budget) -> Iterator[str]:
    budget.take_work(10 * len(content))
    if not any(map(_MACRO_PART.search, names)):
        if _AUTO.search(content) and not any(map(_SHEET_PART.search, names)):
            yield AUTO_MACRO
    elif _CALLS.search(content):
        yield RUNS_PROGRAM


def tags_of_text_part(text: str, names: tuple[str, ...]) -> Iterator[str]:
    """A part of an .xlsx or .xlsm file."""
    if _AUTO_NAME.search(text):
        yield AUTO_MACRO
    if any(map(_MACRO_PART.search, names)) and _CALLS_TEXT.search(text):
        yield RUNS_PROGRAM


def addresses_in_formulas(text: str, names: tuple[str, ...]) -> Iterator[str]:
    """Formulas of an .xlsx or .xlsm file that contain an address, such as `HYPERLINK("https:"&"//a.example")`."""
    if not any(map(_SHEET_PART.search, names)):
        return
    for formula in _FORMULA_TEXT.findall(text):
        if "//" in formula or "&" in formula:
            joined = _JOINT.sub("", unescaped(formula))
            if "//" in joined or "\\\\" in joined:
                yield joined


def tags_of_names(defined: str) -> Iterator[str]:
    """Names that are defined in a workbook, in lower case, each on its own line."""
    if _AUTO_DEFINED.search(defined):
        yield AUTO_MACRO


def tags_of_book(book: bytes, budget: Budget) -> Iterator[str]:
    """Records of an old workbook: sheets of macros, a name that runs one, what they call, links, a password."""
    is_macro = is_auto = writes = False
    at = 0
    while at + 4 <= len(book):
        budget.take_work(_RECORD_WORK)
        kind, size = int.from_bytes(book[at : at + 2], "little"), int.from_bytes(book[at + 2 : at + 4], "little")
        start, at = at + 4, at + 4 + size
        head = book[start : start + min(size, _HEAD)]
        if kind == _BOF:
            is_macro = head[2:4] == _MACRO_SHEET
        elif kind == _BOUND_SHEET and head[5:6] == b"\x01":
            yield MACRO
        elif kind == _NAME and _runs_by_itself(head):
            is_auto = True
            yield AUTO_MACRO
        elif is_macro and kind in _FORMULAS:
            budget.take_work(10 * size)
            writes = writes or _WRITES.search(book, start, at) is not None
            if _CALLS.search(book, start, at):
                yield RUNS_PROGRAM
        elif kind == _SUP_BOOK:
            yield from _link(book[start : start + min(size, 1024)])
        elif kind == _FILE_PASS:
            yield ENCRYPTED
            return
        elif kind == 0 and size == 0:
            break
    if is_auto and writes:
        yield RUNS_PROGRAM


def _runs_by_itself(name: bytes) -> bool:
    is_built_in = bool(name[:1]) and bool(name[0] & 0x20)
    return (is_built_in and name[15:16] in _BUILT_IN_AUTO) or _AUTO.match(name[15:]) is not None


def _link(data: bytes) -> Iterator[str]:
    """SupBook: the program, a byte of 3, and what it is asked about."""
    text = data[5:].decode("utf-16-le" if data[4:5] == b"\x01" else "latin-1", "replace")
    service, mark, topic = text.partition("\x03")
    if mark:
        yield tag_of_sheet_link(service, topic)
