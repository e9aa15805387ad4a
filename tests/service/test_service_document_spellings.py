"""One attack in all the spellings that programs read alike: spaces, capitals, prefixes, other names of the same."""

from __future__ import annotations

import pytest

from bridge.service.analysis.content.office_attacks import DDE, DDE_LINK, tag_of_field
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import zipped
from tests.service.test_service_document_attacks import score
from tests.service.test_service_documents import ole, tags

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


COSTLY = {
    "the name of a field": ("word/document.xml", b"<x>" + b"instrText" * 3_000_000),
    "the beginning of a field": ("word/document.xml", b"<x>" + b"<w:instrText " * 2_000_000),
    "the marks of a field": ("word/document.xml", b"<x><w:instrText/>" + b"<w:fldChar " * 2_500_000),
    "brackets": ("word/document.xml", b"<instrText ddeLink Relationship" + b"<" * 28_000_000),
    "spaces in a field": ("word/document.xml", b"<x><w:instrText>" + b" " * 28_000_000),
    "the beginning of a relation": ("a.rels", b"<x>" + b"<Relationship " * 2_000_000),
    "queries of a table": ("a.csv", b"=" + b"a|b!" * 6_000_000),
    "lines of a table": ("a.csv", b"=!" + b"|'" * 12_000_000),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_a_small_document_kept_a_process_busy(kind: str) -> None:
    """900 bytes took eight seconds: each name of a field was followed by 500 characters that were looked at."""
    content = zipped(("a.zip", zipped(COSTLY[kind])))
    assert fair_cpu_s(lambda: tags(content, "a.zip")) < 4, "one second on a quiet machine"


@pytest.mark.parametrize("piece", [b"\x13", b"\x13 ", b"\x13DD", b"\x13 \x14\x15", b"\x13 DDE \x14\x15"])
def test_an_old_document_of_fields_takes_little_time(piece: bytes) -> None:
    content = zipped(("a.doc", old_document(piece * (28_000_000 // len(piece)))))
    assert fair_cpu_s(lambda: tags(content, "a.zip")) < 4, "one second on a quiet machine"
