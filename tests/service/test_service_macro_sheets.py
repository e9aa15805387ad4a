"""Macros of Excel 4 were seen only in sheets with the usual names, which Excel does not need: it follows relations."""

from __future__ import annotations

import struct

import pytest

from tests.service.service_kit import zipped
from tests.service.test_service_document_attacks import AUTO_NAME, score
from tests.service.test_service_documents import ole, tags

ALL = {"mime:macro", "office:auto-macro", "office:macro-runs-program"}
KIND = "http://schemas.microsoft.com/office/2006/relationships/xlMacrosheet"
SHEET = b'<xm:macrosheet xmlns:xm="http://schemas.microsoft.com/office/excel/2006/main"><sheetData><c><f>%b</f></c>'
END = b"</sheetData></xm:macrosheet>"
EXEC = SHEET % b"EXEC(&quot;cmd.exe /c calc&quot;)" + END


def workbook(name: str, sheet: bytes, book: str = "xl/workbook.xml", names: bytes = AUTO_NAME) -> bytes:
    directory, _, file = book.rpartition("/")
    relation = f'<Relationships><Relationship Id="r1" Type="{KIND}" Target="/{name}"/></Relationships>'.encode()
    return zipped(
        ("[Content_Types].xml", b"<Types/>"),
        (book, names),
        (f"{directory}/_rels/{file}.rels", relation),
        (name, sheet),
    )


PLACES = (
    "xl/macrosheets/sheet1.xml",
    "xl/worksheets/sheet1.xml",
    "xl/m/sheet1.xml",
    "m/sheet1.xml",
    "sheet",
    "m/a.dat",
)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("book", ["xl/workbook.xml", "b/book.xml"])
def test_a_macro_sheet_was_known_by_its_directory(name: str, book: str) -> None:
    document = workbook(name, EXEC, book)
    assert tags(document, "a.xlsm") >= ALL
    assert score(document, "a.xlsm") >= 8


WRITTEN = {
    "a comment within the name": SHEET % b"EX<!-- -->EC(1)" + END,
    "CDATA": SHEET % b"<![CDATA[EXEC(1)]]>" + END,
    "CDATA within the name": SHEET % b"RE<![CDATA[GIST]]>ER(1)" + END,
    "a reference": SHEET % b"&#69;XEC(1)" + END,
    "many spaces": SHEET % (b"EXEC" + b" " * 50 + b"(1)") + END,
    "a prefix with a hyphen": (SHEET % b"EXEC(1)" + END).replace(b"xm:", b"x-m:"),
    "no prefix": (SHEET % b"EXEC(1)" + END).replace(b"xm:", b""),
    "another cell before it": SHEET % b"x</f><f>EXEC(1)" + END,
    "an entity": b'<!DOCTYPE a [<!ENTITY e "EXEC">]>' + SHEET % b"&e;(1)" + END,
    "UTF-16": EXEC.decode().encode("utf-16"),
    "Shift_JIS": b"<?xml version='1.0' encoding='shift_jis'?>" + SHEET % b"EX<!-- -->EC(1)" + END,
}


@pytest.mark.parametrize("kind", WRITTEN)
@pytest.mark.parametrize("name", ["xl/macrosheets/sheet1.xml", "m/sheet1"])
def test_a_macro_was_hidden_by_how_its_xml_is_written(kind: str, name: str) -> None:
    assert tags(workbook(name, WRITTEN[kind]), "a.xlsm") >= ALL


def test_sheets_without_macros_have_no_tags() -> None:
    """The same words as text; and a macro sheet that starts nothing has no more tags than before."""
    text = b"<worksheet><sheetData><c><f>&quot;EXEC(1)&quot;</f><v>call (1)</v></c></sheetData></worksheet>"
    for name in PLACES[1:]:
        assert tags(zipped(("[Content_Types].xml", b"<Types/>"), (name, text)), "a.xlsx") == set()
        assert tags(workbook(name, SHEET % b"BEEP()" + END, names=b"<a/>"), "a.xlsm") == {"mime:macro"}


LINKS = {
    "a sheet elsewhere": ("m/s.xml", b'<f>HYPERLINK("https:"&amp;"//evil.example/x")</f>'),
    "a prefix with a hyphen": ("xl/worksheets/s.xml", b'<a-b:f>HYPERLINK("https:"&amp;"//evil.example/x")</a-b:f>'),
    "a comment": ("xl/worksheets/s.xml", b'<f>HYPERLINK("https:"&amp;"//ev<!---->il.example/x")</f>'),
    "CDATA": ("xl/worksheets/s.xml", b'<f><![CDATA[HYPERLINK("https:"&"//evil.example/x")]]></f>'),
    "many spaces": ("xl/worksheets/s.xml", b'<f>HYPERLINK("https:"' + b" " * 50 + b'&amp; "//evil.example/x")</f>'),
    "a long attribute": ("xl/worksheets/s.xml", b'<f a=\'%b\'>A("https:"&amp;"//evil.example/")</f>' % (b"x" * 3000)),
}


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_in_a_formula_was_hidden(kind: str) -> None:
    name, formula = LINKS[kind]
    sheet = b"<worksheet><sheetData><c>" + formula + b"</c></sheetData></worksheet>"
    assert "host:evil.example" in tags(zipped(("[Content_Types].xml", b"<Types/>"), (name, sheet)), "a.xlsx")


def record(kind: int, data: bytes) -> bytes:
    head = bytes((kind,)) if kind < 0x80 else bytes((kind & 0x7F | 0x80, kind >> 7))
    size = len(data)
    return head + (bytes((size,)) if size < 0x80 else bytes((size & 0x7F | 0x80, size >> 7))) + data


def parsed(tokens: bytes) -> bytes:
    return struct.pack("<I", len(tokens)) + tokens + bytes(4)


def text_token(text: str) -> bytes:
    return b"\x17" + struct.pack("<H", len(text)) + text.encode("utf-16-le")


def binary(*records: bytes, start: int = 129) -> bytes:
    return record(start, b"") + record(147, bytes(15)) + b"".join(records) + record(start + 1, b"")


CELL, AREA = bytes(8), bytes(16)
CALL = text_token("calc") + b"\x42\x01\x6e\x00"
FORMULAS = {
    "a number": record(9, CELL + bytes(10) + parsed(CALL)),
    "a truth value": record(10, CELL + bytes(3) + parsed(CALL)),
    "an error": record(11, CELL + bytes(3) + parsed(CALL)),
    "text": record(8, CELL + struct.pack("<I", 2) + "ab".encode("utf-16-le") + bytes(2) + parsed(CALL)),
    "an array": record(426, AREA + b"\0" + parsed(CALL)),
    "a shared one": record(427, AREA + parsed(CALL)),
    "behind other tokens": record(
        9, CELL + bytes(10) + parsed(b"\x44" + bytes(6) + b"\x1e\x01\0\x03\x19\x04\x01\0" + bytes(4) + CALL)
    ),
    "behind an unknown token": record(9, CELL + bytes(10) + parsed(b"\x02" + CALL)),
    "EXECUTE": record(9, CELL + bytes(10) + parsed(b"\x42\x01\xb2\x00")),
    "REGISTER.ID": record(9, CELL + bytes(10) + parsed(b"\x42\x01\x0b\x01")),
}
AUTO = binary(record(39, bytes(9) + struct.pack("<I", 15) + "_xlnm.Auto_Open".encode("utf-16-le")), start=131)


@pytest.mark.parametrize("kind", FORMULAS)
@pytest.mark.parametrize("name", ["xl/macrosheets/s.bin", "xl/worksheets/s.bin", "m/s.bin", "m/s"])
def test_a_binary_macro_sheet_was_known_by_its_directory(kind: str, name: str) -> None:
    """An .xlsb file whose parts have other names was not looked at."""
    assert tags(workbook(name, binary(FORMULAS[kind]), "b/book", AUTO), "a.xlsb") >= ALL


def test_binary_sheets_without_macros_have_no_tags() -> None:
    """The same bytes as text within formulas, as numbers, and as text of a cell; and CHAR, which any sheet may call."""
    words = "".join(f"{first}{second}" for first in '!Aa"Bb' for second in "no\x95\x96\u010b")
    cells = (
        record(9, CELL + b"\x42\x01\x6e\x00" * 2 + bytes(2) + parsed(text_token(words) + b"\x41\x6f\0")),
        record(8, CELL + struct.pack("<I", len(words)) + words.encode("utf-16-le") + bytes(2) + parsed(b"\x1e\1\0")),
        record(6, CELL + struct.pack("<I", len(words)) + words.encode("utf-16-le")),
        record(5, CELL + b"\x42\x01\x6e\x00" * 2),
    )
    for name in ("xl/worksheets/s.bin", "m/s.bin"):
        parts = (("[Content_Types].xml", b"<Types/>"), ("xl/workbook.bin", binary(start=131)), (name, binary(*cells)))
        assert tags(zipped(*parts), "a.xlsb") == set()


@pytest.mark.parametrize("name", ["xl/worksheets/s.bin", "m/s.bin"])
@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_damaged_binary_sheets_do_not_raise(name: str, cut: int) -> None:
    """What comes before the damage is found."""
    sheet, found = binary(*FORMULAS.values()), {"office:macro-runs-program"}
    assert tags(zipped((name, sheet[:-cut])), "a.xlsb") == found
    for damaged in (sheet[:cut], sheet[:30] + b"\xff" * cut + CALL, sheet[:3] + CALL * cut):
        assert tags(zipped((name, damaged)), "a.xlsb") <= found


def old_book(version: int, kind: int, *records: tuple[int, bytes]) -> bytes:
    """The records of a workbook of Excel 2, 3, 4 or 5, without a container."""
    beginning = {2: 0x09, 3: 0x209, 4: 0x409, 5: 0x809}[version]
    facts = struct.pack("<HHHH", 0x500 if version == 5 else version, kind, 0, 0)
    every = ((beginning, facts), *records, (0x0A, b""))
    return b"".join(struct.pack("<HH", number, len(data)) + data for number, data in every)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_a_macro_of_an_older_excel_was_not_seen(version: int) -> None:
    auto = b"Auto_Open"
    heads = {2: struct.pack("<BBBBB", 0, 0, 0, 9, 0), 3: struct.pack("<HBBH", 0, 0, 9, 0)}
    name = heads.get(version, heads[3]) + (bytes(8) if version == 5 else b"") + auto
    call = b"\x17\x04calc\x42\x01\x6e" + (b"\0" if version > 3 else b"\x19")  # =EXEC("calc")
    formula = {2: 0x06, 3: 0x206, 4: 0x406, 5: 0x06}[version]
    book = old_book(version, 0x40, (0x218 if version in (3, 4) else 0x18, name), (formula, bytes(18) + call))
    assert tags(book, "a.xls") == ALL
    assert tags(ole({"Book": book}), "a.xls") == ALL


def test_an_older_workbook_that_asks_another_program_was_not_seen() -> None:
    for target, expected in ((b"cmd\x03 /C calc", {"office:dde"}), (b"\x03Sheet1", set()), (b"\x01a.xls", set())):
        book = old_book(5, 5, (0x16, b"\1\0"), (0x17, bytes([len(target)]) + target))
        assert tags(book, "a.xls") == tags(ole({"Book": book}), "a.xls") == expected
