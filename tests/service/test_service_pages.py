"""Pages as browsers read them: where an address ends, what references and escapes mean, and which files are pages."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import re
import struct
import zipfile
import zlib

import pytest

from bridge.service.analysis.content import calendar_files, page_files, page_text
from bridge.service.analysis.content.compressed_rtf import _DICTIONARY, decompressed
from bridge.service.analysis.content.links import Links, NeedsProcess
from bridge.service.analysis.inspection import Inspection, inspect
from bridge.service.analysis.limits import Limits
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import EICAR, attached, mail, zipped

HTML = "text/html; charset=utf-8"
ZIP = zipped(("x.com", EICAR))
B64 = base64.b64encode(ZIP).decode()
PERCENT = "".join(f"%{byte:02X}" for byte in ZIP)


def hosts(page: str | bytes, content_type: str = HTML) -> set[str]:
    content = page.encode() if isinstance(page, str) else page
    return inspect(mail(content, Content_Type=content_type), Limits()).hosts


def tags(page: str) -> set[str]:
    return inspect(mail(page.encode(), Content_Type=HTML), Limits()).tags


LINKS = {
    "a reference to the quote around it": '<a href="http://a&quot;b@evil.example/">x</a>',
    "a number for the quote around it": "<a href='http://a&#39;b@evil.example/'>x</a>",
    "the same in hexadecimal": '<a href="http://a&#x00022;b@evil.example/">x</a>',
    "a reference without a semicolon": '<a href="http://a&quotb@evil.example/">x</a>',
    "a bracket": '<a href="http://a&lt;b&gt;c@evil.example/">x</a>',
    "a space that does not break": '<a href="http://a&nbsp;b@evil.example/">x</a>',
    "the same as a character": '<a href="http://a\u00a0b@evil.example/">x</a>',
    "a typographic quote": '<a href="http://a\u201db@evil.example/">x</a>',
    "both quotes and a reference": '<a href="http://a\'b&quot;c@evil.example/">x</a>',
    "the at sign as a reference": '<a href="http://a&quot;b&commat;evil.example/">x</a>',
    "a quote in an unquoted value": "<a href=http://a'b@evil.example/>x</a>",
    "a bracket in an unquoted value": "<a href=http://a)b@evil.example/>x</a>",
    "a file on a server": '<a href="file://evil.example/x">x</a>',
    "a calendar": '<a href="webcal://evil.example/x">x</a>',
    "a share": '<a href="smb://evil.example/x">x</a>',
    "a web socket": '<script>new WebSocket("wss://evil.example")</script>',
    "a scheme of a program": '<a href="x-vendor+app.v2://evil.example/x">x</a>',
    "a slash and a backslash": '<a href="/\\evil.example/">x</a>',
    "a backslash and a slash": '<a href="\\/evil.example/">x</a>',
    "escaped as in JSON": '<script>x = "\\/\\/evil.example\\/"</script>',
    "line ends around the equals sign": '<a href\n=\n"//evil.example">x</a>',
    "a line end after the slashes": '<a href="//\nevil.example">x</a>',
    "a line end after backslashes": '<a href="\\\\\nevil.example">x</a>',
    "a tab after the slashes, as a reference": '<a href="//&Tab;evil.example">x</a>',
    "the second of a list": '<img srcset="a.png 1x, //evil.example/x 2x">',
    "a list without spaces": '<img srcset="a.png,//evil.example/x">',
    "a page that goes on": '<meta http-equiv=refresh content="0;//evil.example/">',
    "a style": "<style>@import '//evil.example/x.css'</style>",
    "an escape of a style": "<style>a{background:url(\\68ttp://evil.example/x)}</style>",
    "an escape with a space": "<style>a{background:url(http:\\2f\\2f evil.example/x)}</style>",
    "an escape without a number": "<style>a{background:url(http:\\/\\/evil.example/x)}</style>",
    "an escape of a script": '<script>location = "\\x68ttp:\\u002f/evil.example"</script>',
    "an escape in brackets": '<script>location = "http:\\u{2f}/evil.example"</script>',
    "grave accents": "<script>location = `//evil.example/`</script>",
    "a page in an attribute": '<iframe srcdoc="&lt;a href=http://evil&amp;#46;example/&gt;x&lt;/a&gt;"></iframe>',
    "a page in a page": '<iframe srcdoc="&lt;iframe srcdoc=&amp;quot;http:/&amp;amp;#47;evil.example&amp;quot;&gt;">',
}


@pytest.mark.parametrize("name", LINKS)
def test_links_were_not_seen_where_browsers_see_them(name: str) -> None:
    assert "evil.example" in hosts(LINKS[name])


@pytest.mark.parametrize(
    "page",
    [
        "<p>and/or, 1//2, see a//b.example for c://</p>",
        "<p>// a comment</p><script>x = 1; // nothing.here</script><!-- //-->",
        '<p style="font-family:\\@font">\\F0B7 50\\% a\\.b</p>',
    ],
)
def test_slashes_in_text_are_no_links_with_tags(page: str) -> None:
    assert not tags(page)


def test_ordinary_text_has_only_its_links() -> None:
    assert hosts("see //evil.example and http://good.example/", "text/plain") == {"good.example"}
    assert hosts('<a href="http://good.example">mail to a@evil.example</a>') == {"good.example"}


ADDRESSES = {
    "a reference to the quote": f'<a download="x.zip" href="data:a/b,&quot;{PERCENT}">x</a>',
    "a number for the quote": f"<a download='x.zip' href='data:a/b,&#39;{PERCENT}'>x</a>",
    "a bracket in an unquoted value": f"<a download=x.zip href=data:a/b,){PERCENT}>x</a>",
    "a quote in an unquoted value": f"<a download=x.zip href=data:a/b,'{PERCENT}>x</a>",
    "a parameter in quotes": f"<a download='x.zip' href='data:a/b;c=\"d\";base64,{B64}'>x</a>",
    "a parameter in single quotes": f'<a download="x.zip" href="data:a/b;c=\'d\';base64,{B64}">x</a>',
    "brackets in a parameter": f'<a download="x.zip" href="data:a/b;c=<d>;base64,{B64}">x</a>',
    "a long type": f'<a download="x.zip" href="data:a/b;c={"d" * 3000};base64,{B64}">x</a>',
    "base64 before another parameter": f'<a download="x.zip" href="data:a/b;base64;c=d,{B64}">x</a>',
    "after another that has no end": f"<i title='\"data:x,'></i><a download=x.zip href='data:a/b;base64,{B64}'>x</a>",
    "after spaces": f'<a download="x.zip" href="  data:a/b;base64,{B64}">x</a>',
    "with a fragment": f'<a download="x.zip" href="data:a/b;base64,{B64}#x">x</a>',
    "in grave accents": f"<script>a.download = `x`; a.href = `data:a/b;base64,{B64}`</script>",
    "in a page in an attribute": f'<iframe srcdoc="&lt;a download=x href=dat&amp;#97;:a/b;base64,{B64}&gt;x"></iframe>',
}


@pytest.mark.parametrize("name", ADDRESSES)
def test_browsers_saved_a_file_that_was_not_seen(name: str) -> None:
    """What ends an address depends on how the attribute is written, and nothing in it ends it by itself."""
    assert "malware:eicar" in tags(ADDRESSES[name])


def test_a_file_has_no_fragment() -> None:
    """Else its digest would not be that of the file which is saved."""
    assert [file.content for file in page_files.files('"data:,abc#def"')] == [b"abc"]


NAMES = {
    "a bracket": 'download="&lt;x.js" href="data:,x"',
    "a quote": 'download="x&quot;y.js" href="data:,x"',
    "a long name": f'download="{"a" * 5000}.js" href="data:,x"',
    "a bracket that is no reference": 'download="a>b.js" href="data:,x"',
    "unquoted, with a bracket": 'download=a)b.js href="data:,x"',
    "unquoted, with a semicolon": 'download=a;b.js href="data:,x"',
    "unquoted, with a quote": 'download=a\'b.js href="data:,x"',
    "no name, but a type": 'download href="data:text/javascript,alert(1)"',
    "a name without extension, and a type": 'download=x href="data:text/JavaScript;charset=utf-8,alert(1)"',
    "an older type": 'download=x href="data:text/ecmascript,alert(1)"',
}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_download_was_missed(name: str) -> None:
    assert "mime:executable" in tags(f"<a {NAMES[name]}>x</a>")
    assert "mime:executable" in tags("<script>a.download=`x.js`</script>")
    assert "mime:executable" in tags('<script>a.download="x.\\x6as"</script>')


def test_a_script_of_a_page_is_no_download() -> None:
    """Pages that were saved contain their scripts and fonts this way."""
    assert not tags(
        '<script src="data:text/javascript,alert(1)"></script><img src="data:image/gif;base64,R0lGODlhAQ==">'
    )


@pytest.mark.parametrize(
    "page",
    [
        "'.download'" + " " * 43_000,
        "a.download" + " " * 43_000,
        "'download' ]" + " " * 43_000,
        "<a href=" + "data:,x" * 6000,
        "data:" * 8000 + ",",
        "/" * 40_000 + "<a>",
        "\\" * 40_000,
        "<!ENTITY a '" * 3000 + "&a;",
        "&" * 40_000,
        "&amp;" * 8000 + "srcdoc",
        "http://a" + " " * 20_000 + "@b" * 10_000,
    ],
    ids=lambda page: page[:20],
)
def test_a_page_stopped_the_service(page: str) -> None:
    """43,000 spaces after `'.download'` took 74 seconds of the event loop."""
    content = mail(base64.encodebytes(page.encode()), Content_Type=HTML, Content_Transfer_Encoding="base64")
    for limits in (Limits(archives=False), Limits()):

        def read(limits: Limits = limits) -> None:
            try:
                inspect(content, limits)
            except NeedsProcess:
                assert not limits.archives

        assert fair_cpu_s(read) < (5 if limits.archives else 0.5)


LINK = b'<a href="http://evil.example/">x</a>'


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b'<meta charset="iso-2022-jp">' + LINK.replace(b"evil", b"ev\x1b(Bil"), "a.html"),
        (b'<meta charset="utf-7"><a href="http:+AC8ALw-evil.example/">', "a.html"),
        (b'<?xml version="1.0" encoding="utf-7"?><a href="http:+AC8ALw-evil.example/"/>', "a.svg"),
        (
            b'<!DOCTYPE svg [<!ENTITY a "http://ev"><!ENTITY b "&a;il.example/">]><svg><a href="&b;">x</a></svg>',
            "a.svg",
        ),
        (b'<!DOCTYPE svg [<!ENTITY a "http://evil"><!ENTITY a "x">]><a href="&a;.example/">x</a>', "a.xhtml"),
        *((b" " * 3000 + LINK, name) for name in ("a.html.", "a.html?", "a.shtm", "a.xhtm", "a.HTML ", "a.svg;1")),
        (gzip.compress(LINK * 40), "a.html.gz"),
        (rb"{\rtf1 http:\'2f\'2fevil.example/}", "a.txt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_links_in_attached_pages_were_missed(content: bytes, name: str) -> None:
    """A browser reads the charset in the page, the entities of XML, and files by the end of their names."""
    assert "evil.example" in inspect(attached(content, name), Limits()).hosts


def test_entities_cannot_grow_without_end() -> None:
    laughs = "".join(f'<!ENTITY a{i + 1} "&a{i};&a{i};&a{i};&a{i};">' for i in range(30))
    page = f'<!DOCTYPE svg [<!ENTITY a0 "lol">{laughs}]><svg>&a30;</svg>'
    assert inspect(attached(page.encode(), "a.svg"), Limits()).limits == {"entities"}
    itself = b'<!DOCTYPE svg [<!ENTITY a "&a;">]><svg>&a;</svg>'
    assert inspect(attached(itself, "a.svg"), Limits()).limits == {"entities"}


def test_links_of_a_page_in_an_archive_were_missed() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.html", LINK * 40)
    assert "evil.example" in inspect(attached(archive.getvalue(), "a.zip"), Limits()).hosts


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("<BII", 1, kind, len(data)) + data + struct.pack("<H", sum(data) & 0xFFFF)


def compressed(text: bytes) -> bytes:
    """Compressed RTF, with references wherever two bytes or more are repeated."""
    out, tokens, at = bytearray(_DICTIONARY), [], 0
    while at < len(text):
        length = max((n for n in range(2, 18) if at + n <= len(text) and text[at : at + n] in out), default=0)
        if length:
            tokens.append((1, struct.pack(">H", out.find(text[at : at + length]) << 4 | (length - 2))))
        else:
            length = 1
            tokens.append((0, text[at : at + 1]))
        out += text[at : at + length]
        at += length
    tokens.append((1, struct.pack(">H", len(out) % 4096 << 4)))
    data = b""
    for first in range(0, len(tokens), 8):
        group = tokens[first : first + 8]
        data += bytes([sum(bit << n for n, (bit, _) in enumerate(group))]) + b"".join(token for _, token in group)
    return struct.pack("<IIII", len(data) + 12, len(text), 0x75465A4C, zlib.crc32(data)) + data


@pytest.mark.parametrize("kind", ["text", "RTF", "stored RTF"])
def test_links_in_the_body_of_a_winmail_dat_were_missed(kind: str) -> None:
    """Outlook shows it as the text of the mail."""
    rtf = b"{\\rtf1\\ansi see http://evil.example/x now, and http://evil.example/x again}"
    packed = (
        compressed(rtf) if kind == "RTF" else struct.pack("<III", len(rtf) + 12, len(rtf), 0x414C454D) + bytes(4) + rtf
    )
    if kind == "text":
        body = attribute(0x0002800C, b"see http://evil.example/x\0")
    else:
        assert decompressed(packed) == rtf
        value = struct.pack("<III", 0x10090102, 1, len(packed)) + packed + bytes(-len(packed) % 4)
        body = attribute(0x00069003, struct.pack("<I", 1) + value)
    assert "evil.example" in inspect(attached(b"\x78\x9f\x3e\x22\x01\x00" + body, "winmail.dat"), Limits()).hosts


@pytest.mark.parametrize("size", range(0, 40, 3))
def test_damaged_rtf_does_not_raise(size: int) -> None:
    assert isinstance(decompressed(compressed(b"abcabcabc" * 9)[:size]), bytes)
    assert isinstance(decompressed(bytes(16) + bytes([255]) * size), bytes)


def test_files_in_a_calendar_in_another_charset_were_missed() -> None:
    line = f"BEGIN:VEVENT\r\nATTACH;ENCODING=BASE64;X-FILENAME=a.zip:{B64}\r\nEND:VEVENT\r\n"
    for charset in ("utf-7", "cp037", "utf-16-be"):
        content = line.encode(charset)
        found = inspect(
            mail(
                base64.encodebytes(content),
                Content_Type=f"text/calendar; charset={charset}",
                Content_Transfer_Encoding="base64",
            ),
            Limits(),
        )
        assert "malware:eicar" in found.tags, charset


def test_a_file_in_the_page_of_an_invitation_was_missed() -> None:
    """The semicolon and the comma in its address are escaped there."""
    page = f'X-ALT-DESC;FMTTYPE=text/html:<a download="a.zip" href="data:application/zip\\;base64\\,{B64}">'
    line = f"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n{page}\r\nEND:VEVENT\r\n"
    assert "malware:eicar" in inspect(mail(line.encode(), Content_Type="text/calendar"), Limits()).tags


@pytest.mark.parametrize("link", [r"https:&#47\;&#47\;nasty.example", r"https&#58\;\\\\nasty.example"])
def test_a_link_in_the_page_of_an_invitation_led_to_another_host(link: str) -> None:
    """Its references end with escaped semicolons, and slashes may be escaped backslashes."""
    page = f'X-ALT-DESC;FMTTYPE=text/html:<a href="{link}/x">x</a>'
    found = hosts(f"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n{page}\r\nEND:VEVENT\r\n", "text/calendar")
    assert "nasty.example" in found and "asty.example" not in found


def test_an_n_behind_an_escaped_backslash_in_an_invitation_was_taken_for_the_end_of_a_line() -> None:
    r"""A host in `https\\:\\\\news.example` lost its first letter. In all texts of a few characters."""
    for text in map("".join, itertools.product(r"\nN;x", repeat=6)):
        expected = re.sub(r"\\([nN;\\])", lambda escape: "\n" if escape[1] in "nN" else escape[1], text)
        assert list(calendar_files.values(text))[-1] == expected


def test_one_small_mail_held_up_the_event_loop() -> None:
    """Nested S/MIME data, a long calendar, long encoded names: all are left to a process."""
    nested = b"\x30\x80\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02\xa0\x80" + b"\x30\x80" * 20_000
    calendar = base64.encodebytes(b"ATTACH;ENCODING=BASE64:QUJD\n" * 1600)
    for content in (
        attached(nested, "smime.p7m"),
        mail(calendar, Content_Type="text/calendar", Content_Transfer_Encoding="base64"),
        mail(b"x", Content_Type='application/x; name="' + "%3d%3f" * 1300 + '.x"'),
        mail(b"x", Content_Type='application/x; name="' + "=?u?q?a?= " * 780 + '.x"'),
    ):
        with pytest.raises(NeedsProcess):
            inspect(content, Limits(archives=False))


def test_paths_of_a_pax_header_are_charged() -> None:
    """A mail of 500 bytes took half a minute: each `path=` was read to the end of its line."""
    data = b"99 " + b"path=" * 70_000 + b"\n"
    header = bytearray(512)
    header[:1], header[124:135], header[156:157], header[257:262] = b"a", b"%011o" % len(data), b"x", b"ustar"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    content = attached(gzip.compress(bytes(header) + data + bytes(-len(data) % 512)), "a.tar.gz")
    found: list[Inspection] = []
    assert fair_cpu_s(lambda: found.append(inspect(content, Limits()))) < 5
    assert "archive-work" in found[0].limits


def test_a_hidden_page_is_read_to_a_bound() -> None:
    links = Links()
    with pytest.raises(page_text.TooMuch):
        links.scan("srcdoc " + "&" + "amp;" * 30 + "quot;", is_html=True)
