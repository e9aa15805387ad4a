"""Workbooks of Excel: macros of Excel 4, which are formulas in special sheets, and cells that query other programs.

Reads the records of old workbooks (MS-XLS, and those of Excel 2 to 95) and binary ones (MS-XLSB), and sheets in XML.
The names of parts are free: sheets are recognised by how they begin. We do not see what a macro assembles from
characters, but we do see that it writes formulas when the workbook is opened.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from bridge.mime.references import unescaped
from bridge.service.analysis.content import office_xml
from bridge.service.analysis.content.office_attacks import LAUNCH, starts_program_in, tag_of_sheet_link
from bridge.service.analysis.content.pdf_files import ENCRYPTED
from bridge.service.analysis.content.unpacking import Budget

AUTO_MACRO, RUNS_PROGRAM, MACRO = "office:auto-macro", "office:macro-runs-program", "mime:macro"
_RECORD_WORK, _PART_RECORD_WORK = 64, 300  # of an old workbook, and of a part of a new one
_BOUND_SHEET, _FILE_PASS, _SUP_BOOK, _LINK, _EXTERN_SHEET = 0x85, 0x2F, 0x1AE, 0x1B8, 0x17
_LINK_WORK = 20  # for each byte
_FORMULAS = (0x06, 0x206, 0x406, 0x21, 0x221, 0x4BC)  # Formula, Array, ShrFmla
_BEGINNINGS = {0x09: 2, 0x209: 3, 0x409: 4, 0x809: 8}  # BOF, and the version of the format; 8 or 5
_NAMES = (0x18, 0x218)
_NAME_AT = {2: 5, 3: 6, 4: 6, 5: 14, 8: 15}  # where a name begins in its record
# A workbook that is in no container: the first record, its length, a version, and the kind of what begins.
_RAW_BOOK = re.compile(rb"\x09[\0\x02\x04\x08][\x04-\x10]\0..(?:[\x05\x06\x10\x20\x40]\0|\0\x01)", re.DOTALL)
_MACRO_SHEET = b"\x40\0"
_HEAD = 64  # bytes of a record that are copied
# Tokens of a formula that call a function with a fixed or a variable number of arguments (MS-XLS 2.5.198.62 and .63):
# EXEC, CHAR (of which obfuscated macros consist), REGISTER, CALL, EXECUTE and REGISTER.ID; FORMULA, SET.VALUE,
# FWRITELN, FWRITE and EVALUATE.
_CALLS = re.compile(rb"(?:[\x22\x42\x62].|[\x21\x41\x61])(?:[\x6e\x6f\x95\x96\xb2]\0|\x0b\x01)", re.DOTALL)
_WRITES = re.compile(rb"(?:[\x22\x42\x62].|[\x21\x41\x61])(?:[\x60\x6c\x89\x8a]\0|\x01\x01)", re.DOTALL)
_OLD_CALLS = re.compile(rb"(?:[\x22\x42\x62].|[\x21\x41\x61])[\x6e\x6f\x95\x96\xb2]", re.DOTALL)  # Excel 2, 3
_PROGRAM_CALLS = frozenset({0x6E, 0x95, 0x96, 0xB2, 0x10B})  # without CHAR
_CALLS_TEXT = re.compile(r"\b(?:EXEC|EXECUTE|REGISTER(?:\.ID)?|CALL)\s*+\(", re.IGNORECASE)
_AUTO_NAME = re.compile(r"\bname\s{0,9}=\s{0,9}[\"'](?:_xlnm\.)?auto_(?:open|close|activate|deactivate)", re.IGNORECASE)
_AUTO_DEFINED = re.compile(r"(?m)^(?:_xlnm\.)?auto_(?:open|close|activate|deactivate)")
_AUTO = re.compile(rb"\0?a\0?u\0?t\0?o\0?_\0?(?:o\0?p\0?e\0?n|c\0?l\0?o\0?s\0?e|a\0?c\0?t\0?i\0?v)", re.IGNORECASE)
_BUILT_IN_AUTO = (b"\x01", b"\x02", b"\x0a", b"\x0b")  # Auto_Open, Auto_Close, Auto_Activate, Auto_Deactivate
_MACRO_PART = re.compile(r"(?:^|[/\\])macrosheets[/\\]", re.IGNORECASE)
_BINARY_PART = re.compile(r"(?:^|[/\\])xl[/\\](?:workbook\.bin$|(?:macro|work)sheets?[/\\])", re.IGNORECASE)
_BINARY_SHEET = re.compile(rb"\x81\x01\x80{0,3}\0")  # BrtBeginSheet; no record says that it is a macro sheet
_BINARY_BOOK = re.compile(rb"\x83\x01\x80{0,3}\0")  # BrtBeginBook
_SHEET_PART = re.compile(r"(?:^|[/\\])xl[/\\]\w{0,40}sheets?[/\\]", re.IGNORECASE)
_MACRO_ROOT = re.compile(r"[<:]macrosheet[\s/>]")
_FORMULA_TEXT = re.compile(r"<(?:[^\s<>:/]++:)?f(?:\s[^<>]*+)?>([^<]++)")
_FORMULA_ELEMENTS, _FORMULA_MARKS = frozenset({"macrosheet", "f"}), ("macrosheet", "<f", ":f")
_ADDRESS_MARKS = ("&", "//", "\\\\")
_TAG_WORK, _FORMULA_WORK = 16, 200  # for each tag, and each formula that is kept
_TEXT = re.compile(r'"([^"]++)"')
_LINK_FUNCTION, _OF_TARGET = "HYPERLINK", re.compile(r"[:.\\/]")
_JOINT = re.compile(r'"\s*+&\s*+"')
# What precedes the formula in a record of MS-XLSB: BrtFmlaNum, BrtFmlaBool, BrtFmlaError, BrtArrFmla and BrtShrFmla
_BEFORE_FORMULA = {9: 18, 10: 11, 11: 11, 426: 17, 427: 16}
_FORMULA_OF_TEXT = 8  # BrtFmlaString
# Bytes that follow the first one of a token (MS-XLSB 2.5.97); of 0x20 and above, there are three classes of each.
_TOKENS = dict.fromkeys(range(0x03, 0x17), 0) | {0x01: 4, 0x1C: 1, 0x1D: 1, 0x1E: 2, 0x1F: 8, 0x20: 14, 0x21: 2}
_TOKENS |= {0x22: 3, 0x23: 4, 0x24: 6, 0x25: 12, 0x26: 6, 0x27: 6, 0x28: 6, 0x29: 2, 0x2A: 6, 0x2B: 12, 0x2C: 6}
_TOKENS |= {0x2D: 12, 0x39: 6, 0x3A: 8, 0x3B: 14, 0x3C: 8, 0x3D: 14}
_CALL, _CALL_MANY = 0x21, 0x22  # PtgFunc, PtgFuncVar
_EXTENDED_TOKENS = {b"\x19": 13, b"\x1d": 5}
_TOKEN_WORK = 60  # for each byte


def is_book(content: bytes) -> bool:
    """Whether it is the records of an old workbook, which Excel opens without an OLE2 file around them."""
    return _RAW_BOOK.match(content) is not None


def is_binary_part(content: bytes, names: Collection[str]) -> bool:
    """A part of an .xlsb file that may contain macros, the name that runs one, or formulas with links."""
    if _BINARY_SHEET.match(content) or _BINARY_BOOK.match(content):
        return True
    return any(name.lower().endswith(".bin") and _BINARY_PART.search(name) for name in names)


def tags_of_binary_part(content: bytes, names: tuple[str, ...], budget: Budget) -> Iterator[str]:
    budget.take_work(10 * len(content))
    is_sheet = _BINARY_SHEET.match(content) or any(map(_SHEET_PART.search, names))
    if not is_sheet or _BINARY_BOOK.match(content):
        if _AUTO.search(content):
            yield AUTO_MACRO
    elif _CALLS.search(content) and (any(map(_MACRO_PART.search, names)) or _calls_in_records(content, budget)):
        yield RUNS_PROGRAM


def _calls_in_records(sheet: bytes, budget: Budget) -> bool:
    """Whether a formula calls what only macros can call. Other sheets contain the same bytes as text and numbers."""
    at = 0
    while at < len(sheet):
        budget.take_work(_PART_RECORD_WORK)
        kind, at = _number(sheet, at, 2)
        size, at = _number(sheet, at, 4)
        before = _BEFORE_FORMULA.get(kind)
        if kind == _FORMULA_OF_TEXT:
            before = 14 + 2 * int.from_bytes(sheet[at + 8 : at + 12], "little")
        if before is not None:
            record = sheet[at : at + size]
            budget.take_work(_TOKEN_WORK * len(record))
            count = int.from_bytes(record[before : before + 4], "little")
            if _CALLS.search(record) and _calls(record[before + 4 : before + 4 + count]):
                return True
        at += size
    return False


def _number(data: bytes, at: int, most: int) -> tuple[int, int]:
    """Seven bits in each byte, the lowest first; and where it ends."""
    value = 0
    for number in range(most):
        byte = data[at + number] if at + number < len(data) else 0
        value |= (byte & 0x7F) << 7 * number
        if byte < 0x80:  # the last one
            return value, at + number + 1
    return value, at + most


def _calls(formula: bytes) -> bool:
    at = 0
    while at < len(formula):
        token, operand = formula[at], formula[at + 1 : at + 4]
        kind = token if token < 0x40 else (token & 0x1F) | 0x20
        size = _size(kind, operand)
        if size is None:  # a token that we do not know
            return _CALLS.search(formula, at) is not None
        if kind in (_CALL, _CALL_MANY):
            number = operand[:2] if kind == _CALL else operand[1:]
            if int.from_bytes(number, "little") in _PROGRAM_CALLS:
                return True
        at += 1 + size
    return False


def _size(kind: int, operand: bytes) -> int | None:
    match kind:
        case 0x17:  # PtgStr
            return 2 + 2 * int.from_bytes(operand[:2], "little")
        case 0x18:  # PtgList, PtgSxName
            return _EXTENDED_TOKENS.get(operand[:1])
        case 0x19:  # PtgAttr, of which PtgAttrChoose has a list
            is_choice = bool(operand) and bool(operand[0] & 0x04)
            return 3 + (2 * int.from_bytes(operand[1:], "little") + 2 if is_choice else 0)
        case _:
            return _TOKENS.get(kind)


class Sheet(NamedTuple):
    """The kind of a part of an .xlsx or .xlsm file, and its formulas."""

    is_macro: bool
    formulas: list[str]  # those with a link or a mark of an address, or with a reference, in which anything may be


def sheet(content: bytes, text: str, names: tuple[str, ...], budget: Budget) -> Sheet:
    """Of a part and its text. Formulas may be within CDATA sections, and have comments in between."""
    is_macro = _MACRO_ROOT.search(text) is not None or any(map(_MACRO_PART.search, names))
    formulas = []
    budget.take_work(_TAG_WORK * text.count("<"))
    for match in _FORMULA_TEXT.finditer(text):
        if any(mark in match[1] for mark in _ADDRESS_MARKS) or _LINK_FUNCTION in match[1].upper():
            budget.take_work(_FORMULA_WORK)
            formulas.append(unescaped(match[1]))
    if is_macro or ("<!" in text and any(mark in text for mark in _FORMULA_MARKS)):
        budget.take_work(office_xml.work_of_elements(text, _FORMULA_MARKS))
        elements, _ = office_xml.elements(content, _FORMULA_ELEMENTS)
        formulas += [element.text for element in elements]
    return Sheet(is_macro, formulas)


def tags_of_text_part(text: str, sheet: Sheet) -> Iterator[str]:
    """A part of an .xlsx or .xlsm file."""
    if _AUTO_NAME.search(text):
        yield AUTO_MACRO
    if sheet.is_macro and any(map(_CALLS_TEXT.search, (text, *sheet.formulas))):
        yield RUNS_PROGRAM


def addresses_in_formulas(sheet: Sheet) -> Iterator[str]:
    """Formulas of an .xlsx or .xlsm file that contain an address, such as `HYPERLINK("https:"&"//a.example")`."""
    for formula in sheet.formulas:
        joined = _JOINT.sub("", formula)
        if "//" in joined or "\\\\" in joined:
            yield joined


def texts_in_formulas(formulas: Iterable[str]) -> Iterator[str]:
    """The strings in those with a link that may be its target. Strings that are joined are one."""
    for formula in formulas:
        if _LINK_FUNCTION in formula.upper():
            yield from filter(_OF_TARGET.search, _TEXT.findall(_JOINT.sub("", formula)))


def tags_of_names(defined: str) -> Iterator[str]:
    """Names that are defined in a workbook, in lower case, each on its own line."""
    if _AUTO_DEFINED.search(defined):
        yield AUTO_MACRO


def tags_of_book(book: bytes, budget: Budget) -> Iterator[str]:
    """Records of an old workbook: sheets of macros, a name that runs one, what they call, links, a password."""
    is_macro = is_auto = writes = False
    version = 8
    at, end = 0, len(book.rstrip(b"\0"))  # zeros fill the last sector; an empty record before them is skipped
    while at + 4 <= len(book) and at < end:
        budget.take_work(_RECORD_WORK)
        kind, size = int.from_bytes(book[at : at + 2], "little"), int.from_bytes(book[at + 2 : at + 4], "little")
        start, at = at + 4, at + 4 + size
        head = book[start : start + min(size, _HEAD)]
        if kind in _BEGINNINGS:
            version = 5 if kind == 0x809 and head[:2] == b"\0\5" else _BEGINNINGS[kind]
            is_macro = head[2:4] == _MACRO_SHEET
            if is_macro:
                yield MACRO
        elif kind == _BOUND_SHEET and head[5:6] == b"\x01":
            yield MACRO
        elif kind in _NAMES and _runs_by_itself(head, version):
            is_auto = True
            yield AUTO_MACRO
        elif is_macro and kind in _FORMULAS:
            budget.take_work(10 * size)
            writes = writes or _WRITES.search(book, start, at) is not None
            if (_CALLS if version > 3 else _OLD_CALLS).search(book, start, at):
                yield RUNS_PROGRAM
        elif kind == _LINK:
            budget.take_work(_LINK_WORK * size)
            if starts_program_in(book[start:at], budget):
                yield LAUNCH
        elif kind == _SUP_BOOK:
            yield from _link(book[start : start + min(size, 1024)])
        elif kind == _EXTERN_SHEET and version < 8:
            text = book[start + 1 : start + min(size, 1024)].decode("latin-1").lstrip("\x01")
            yield from () if text.startswith("\x03") else _link_of_text(text)  # that is a sheet of the same workbook
        elif kind == _FILE_PASS:
            yield ENCRYPTED
            return
    if is_auto and writes:
        yield RUNS_PROGRAM


def _runs_by_itself(record: bytes, version: int) -> bool:
    is_built_in = bool(record[:1]) and bool(record[0] & 0x20)
    name = record[_NAME_AT[version] :]
    return (is_built_in and name[:1] in _BUILT_IN_AUTO) or _AUTO.match(name) is not None


def _link(data: bytes) -> Iterator[str]:
    """SupBook: the program, a byte of 3, and what it is asked about."""
    return _link_of_text(data[5:].decode("utf-16-le" if data[4:5] == b"\x01" else "latin-1", "replace"))


def _link_of_text(text: str) -> Iterator[str]:
    service, mark, topic = text.partition("\x03")
    if mark:
        yield tag_of_sheet_link(service, topic)
