"""Cells that start a program, in files of all names and formats that Excel or LibreOffice opens as a table."""

from __future__ import annotations

import pytest

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.long_cases import few
from tests.service.service_kit import attached, zipped

QUERY = "=cmd|'/C calc'!A0"
SHEET = (
    '<?xml version="1.0"?><Workbook xmlns:ss="urn:schemas-microsoft-com:office:spreadsheet"><Table><Row>'
    '<Cell ss:Formula="%s"/></Row></Table></Workbook>'
)
PAGE = "<html><table><tr><td>a</td><td>%s</td></tr></table></html>"
DIF = 'TABLE\r\n0,1\r\n"x"\r\nDATA\r\n0,0\r\n""\r\n-1,0\r\nBOT\r\n1,0\r\n"%s"\r\n'


def open_document(body: str) -> bytes:
    start = "<office:document-content xmlns:office='urn:oasis:names:tc:opendocument:xmlns:office:1.0'>"
    return zipped(("content.xml", f"{start}{body}</office:document-content>".encode()))


def tags(content: bytes | str, name: str) -> set[str]:
    data = content.encode() if isinstance(content, str) else content
    found = inspect(attached(data, name), Limits())
    assert not found.limits
    return {tag for tag in found.tags if tag.startswith("office:dde")}


ATTACKS = {
    "text named .xls": (f"a\t{QUERY}\r\n", "a.xls"),
    "UTF-16 named .xls": (f"a\t{QUERY}\r\n".encode("utf-16"), "a.xls"),
    "a page named .xls": (PAGE % QUERY, "a.xls"),
    "a page": (PAGE % QUERY, "a.html"),
    "a page with references": (
        PAGE % QUERY.replace("|", "&#124;").replace("'", "&#39;").replace("!", "&#33;"),
        "a.htm",
    ),
    "a page with tags in the cell": (PAGE % QUERY.replace("cmd", "c<b>m</b>d"), "a.xls"),
    "XML": (SHEET % QUERY, "a.xml"),
    "XML with references": (SHEET % QUERY.replace("'", "&apos;"), "a.xml"),
    "XML named .xls": (SHEET % QUERY, "a.xls"),
    "DIF": (DIF % QUERY, "a.dif"),
    "text": (QUERY, "a.txt"),
    "a function": (
        open_document("<cell table:formula='of:=DDE(&quot;cmd&quot;;&quot;/C calc&quot;;&quot;A0&quot;)'/>"),
        "a.ods",
    ),
    "a source": (
        open_document("<office:dde-source office:dde-application='cmd' office:dde-topic='/C calc'/>"),
        "a.ods",
    ),
    "a field": (
        open_document('<text:dde-connection-decl office:dde-topic="/C calc" office:dde-application="cmd"/>'),
        "a.odt",
    ),
}


@pytest.mark.parametrize("kind", ATTACKS)
def test_a_cell_that_starts_a_program_was_found_only_in_csv_files(kind: str) -> None:
    assert tags(*ATTACKS[kind]) == {"office:dde"}


HARMLESS = {
    "a table in text": ("| Name | Value |\r\n|------|-------|\r\n| -a | yes! |\r\n= b | no! |\r\n", "a.txt"),
    "a script in a page": ("<script>if (a=-b||!c) x='=a|b!c'</script><p>a | b!</p>", "a.html"),
    "an XML file that is no table": (f"<a b='{QUERY}'/>", "a.xml"),
    "market data in a page": (PAGE % "=BLP|M!'IBM US Equity,[PX_LAST]'", "a.xls"),
    "a formula": (open_document("<cell table:formula='of:=SUM([.A1:.A2])'/>"), "a.ods"),
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_other_files_with_bars_have_no_tag(kind: str) -> None:
    assert not tags(*HARMLESS[kind])


def test_a_link_to_another_document_of_libreoffice_is_no_attack() -> None:
    link = "<office:dde-source office:dde-application='soffice' office:dde-topic='/home/jane/a.ods'/>"
    assert tags(open_document(link), "a.ods") == {"office:dde-link"}


def test_addresses_in_formulas_of_opendocument_were_no_links() -> None:
    formula = "<cell table:formula='of:=WEBSERVICE(&quot;https://evil.example/x&quot;)'/>"
    assert inspect(attached(open_document(formula), "a.ods"), Limits()).hosts == {"evil.example"}


@pytest.mark.parametrize("name", few(["a.txt", "a.html", "a.xls"], 1))
def test_large_files_with_bars_are_read_to_their_end(name: str) -> None:
    line = "<tr><td>A word | another &amp; a third!</td></tr>\r\n"
    assert not tags(line * 150_000, name)
