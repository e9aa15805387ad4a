"""Files that have no part of their own: in the pages of a mail, after its subject, and under names that say nothing."""

from __future__ import annotations

import base64
import html
import io
import tarfile

import pytest

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.detection.phishing import Search
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import EICAR, attached, mail, zipped

DATA = "data:application/octet-stream;base64," + base64.b64encode(EICAR).decode()
HTML = "text/html; charset=utf-8"

PAGES = {
    "in Base64": f'<a href="{DATA}">x</a>',
    "in single quotes": f"<a href='{DATA}'>x</a>",
    "without quotes": f"<a href={DATA}>x</a>",
    "upper case": f'<a href="{DATA.replace("data:", "DATA:").replace("base64", "BASE64")}">x</a>',
    "spaces in Base64": f'<a href="{DATA[:60]} {DATA[60:80]} {DATA[80:]}">x</a>',
    "escaped": '<a href="data:,' + "".join(f"%{byte:02x}" for byte in EICAR) + '">x</a>',
    "Base64 escaped": f'<a href="{DATA.replace("=", "%3d").replace("W", "%57")}">x</a>',
    "character references": "<a href='" + "".join(f"&#{ord(letter)};" for letter in DATA) + "'>x</a>",
    "references to tabs": f'<a download href="da&Tab;ta:{DATA[5:]}">x</a>',
    "tabs and line ends": f'<a\ndownload=x href="d\na\tta:a/b;ba\nse64,{DATA[37:]}">x</a>',
    "a zip file": f'<a href="data:;base64,{base64.b64encode(zipped(("a.com", EICAR))).decode()}">x</a>',
    "after others": f'<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw="><a href="{DATA}">x</a>',
    "in a script": f'<script>location = "{DATA}"</script>',
}


@pytest.mark.parametrize("name", PAGES)
def test_the_content_of_data_links_was_not_looked_at(name: str) -> None:
    """A browser saves it as a file."""
    page = PAGES[name].encode()
    assert "malware:eicar" in inspect(mail(page, Content_Type=HTML), Limits()).tags
    assert "malware:eicar" in inspect(attached(page, "a.html"), Limits()).tags
    assert "malware:eicar" in inspect(attached(zipped(("a.html", page)), "a.zip"), Limits()).tags
    assert "malware:eicar" in inspect(mail(page, Content_Type=HTML), Limits(look_at_urls=False)).tags


NAMES = {
    "an attribute": '<a download="x.js" href="data:,x">x</a>',
    "without quotes": "<a download=x.js href=data:,x>x</a>",
    "after a line end": '<a\r\ndownload = "x.js" href="blob:x">x</a>',
    "escaped": f'<a download="{html.escape("x")}&#46;js" href="data:,x">x</a>',
    "a property": '<script>a.download = "x.js"; a.click()</script>',
    "an attribute set by a script": "<script>a.setAttribute('download', 'x.js')</script>",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_download_was_not_looked_at(name: str) -> None:
    """The page says under which name a browser saves a file."""
    assert "mime:executable" in inspect(mail(NAMES[name].encode(), Content_Type=HTML), Limits()).tags


@pytest.mark.parametrize(
    "page",
    [
        '<p>Download example.com now, or download: setup.exe</p><a href="https://example.org/?download=x.exe">x</a>',
        '<img src="data:image/png;base64,iVBORw0KGgo="><p>Our data: a, b</p>',
        '<a download="report.pdf" href="https://example.org/report.pdf">download</a>',
    ],
)
def test_ordinary_pages_have_no_such_files(page: str) -> None:
    """Words and addresses are no names of files."""
    assert not inspect(mail(page.encode(), Content_Type=HTML), Limits()).tags


def test_a_page_without_an_end_is_linear() -> None:
    """Thousands of addresses, none of which ends."""
    found = inspect(mail(b"<a href='data:,x" * 20_000, Content_Type=HTML), Limits())
    assert not found.tags & {"mime:executable"}


@pytest.mark.parametrize("address", few([b"data:,%00%00%00%00%00", b"data:;base64," + b"!" * 27, b"data:,#"], 2))
def test_addresses_in_each_other_kept_a_process_busy(address: bytes) -> None:
    """Only what they decoded to was charged: 80 KB of them took 15 seconds, and 300 KB all the time there is."""
    assert inspect(mail(address * (80_000 // len(address)), Content_Type=HTML), Limits()).limits == {"readings"}


def test_a_page_with_large_pictures_is_read_to_its_end() -> None:
    """A newsletter that contains its own pictures."""
    picture = b'<img src="data:image/png;base64,' + base64.encodebytes(b"\x89PNG\r\n\x1a\n" + bytes(250_000)) + b'">\n'
    assert not inspect(mail(picture * 20, Content_Type=HTML), Limits()).limits


SCRIPT = b"var a = 1;\n" * 10


def titled(subject: str, content_type: str, content: bytes = SCRIPT) -> bytes:
    head = f"From: a@example.org\r\nSubject: {subject}\r\nContent-Type: {content_type}\r\n"
    return head.encode() + b"Content-Transfer-Encoding: base64\r\n\r\n" + base64.encodebytes(content)


@pytest.mark.parametrize("subject", ["x.js", "Re: x.js (1/3)", '"x.js"', "=?utf-8?Q?x=2Ejs?=", "a file: [x.js]"])
@pytest.mark.parametrize("content_type", ["application/octet-stream", "image/png", "application/x"])
def test_a_program_was_named_after_the_subject(subject: str, content_type: str) -> None:
    """uudeview saves a mail that is a file under the name in its subject."""
    assert "mime:executable" in inspect(titled(subject, content_type), Limits()).tags


def test_a_subject_about_a_file_is_no_name_of_one() -> None:
    """In the subject of a text, or of a document."""
    assert "mime:executable" not in inspect(titled("Fix x.js", "text/plain"), Limits()).tags
    assert "mime:executable" not in inspect(titled("example.com", "application/pdf", b"%PDF-1.4\n"), Limits()).tags
    assert "mime:executable" not in inspect(titled("Report 3.11", "application/octet-stream"), Limits()).tags


@pytest.mark.parametrize("name", ["a.dat", "a", "a.bak", "a.txt"])
def test_a_tar_archive_under_a_meaningless_name_was_not_opened(name: str) -> None:
    """tar skips a damaged beginning; its oldest format has no magic number."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        member = tarfile.TarInfo("x.com")
        member.size = len(EICAR)
        archive.addfile(member, io.BytesIO(EICAR))
    block = bytearray(stream.getvalue())
    block[257:265] = bytes(8)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block[:512])
    found = inspect(attached(b"\1" * 512 + bytes(block), name), Limits())
    assert {"malware:eicar", "mime:executable"} <= found.tags


@pytest.mark.parametrize("begin", [b"begin 644 x.com\n", b"BEGIN 644 x.com\n", b"Begin 644 x.com\n"])
def test_upper_case_begin_in_a_binary_file_was_not_found(begin: bytes) -> None:
    """ripmime does not distinguish upper and lower case."""
    import binascii

    lines = b"".join(binascii.b2a_uu(EICAR[at : at + 45]) for at in range(0, len(EICAR), 45))
    content = bytes(range(256)) * 8 + b"\n" + begin + lines + b"`\nend\n"
    assert "malware:eicar" in inspect(attached(content, "a.bin"), Limits()).tags
    assert "malware:eicar" in inspect(attached(zipped(("a.bin", content)), "a.zip"), Limits()).tags


# Scripts that are not between tags

SAVED = f'a.href=URL.createObjectURL(new Blob([atob("{base64.b64encode(zipped(("a.com", EICAR))).decode()}")]))'
SCRIPT = "data:text/javascript;base64," + base64.b64encode(SAVED.encode()).decode()
FRAME = html.escape(f'<script src="{SCRIPT}"></script>')
SCRIPTS = {
    "the address of a script": f'<script src="{SCRIPT}"></script>',
    "without quotes": f"<script src={SCRIPT}></script>",
    "of any type": '<script src="{}"></script>'.format(SCRIPT.replace("text/javascript", "application/x")),
    "without a type": '<script src="{}"></script>'.format(SCRIPT.replace("text/javascript", "")),
    "in a drawing": f'<svg xmlns="http://www.w3.org/2000/svg"><script href="{SCRIPT}"/></svg>',
    "a module": f'<script type=module>import "{SCRIPT}"</script>',
    "loaded by another one": f'<script src="data:,s.src%3d%27{SCRIPT}%27"></script>',
    "an attribute": f'<img src=x onerror="{html.escape(SAVED)}">',
    "an attribute with numbers": "<img src=x onerror='" + SAVED.replace('"', "&#34;") + "'>",
    "a frame": '<iframe srcdoc="' + html.escape(f"<script>{SAVED}</script>") + '"></iframe>',
    "a script of a frame": f'<iframe srcdoc="{FRAME}"></iframe>',
    "an address": "<a href='javascript:" + SAVED.replace('"', "%27") + "'>x</a>",
    "a hidden address": "<a href='&#106;avascript:" + SAVED.replace('"', "%27") + "'>x</a>",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_files_that_such_a_script_saves_were_missed(name: str) -> None:
    page = SCRIPTS[name].encode()
    assert {"malware:eicar", "attachment:builds-file"} <= inspect(attached(page, "a.html"), Limits()).tags
    assert "malware:eicar" in inspect(attached(zipped(("a.html", page)), "a.zip"), Limits()).tags


def test_where_a_script_leads_was_missed() -> None:
    script = base64.b64encode(b'location="https://nasty.example/"').decode()
    page = f'<script src="data:text/javascript;base64,{script}"></script>'.encode()
    assert "nasty.example" in inspect(attached(page, "a.html"), Limits()).hosts


def test_a_script_that_makes_a_field_for_passwords_was_missed() -> None:
    page = b'<form><input id=a></form><script>a.setAttribute("type", "password")</script>'
    assert "attachment:credential-form" in inspect(attached(page, "a.html"), Limits()).tags


@pytest.mark.parametrize(
    "page", ['<p onload="' + "&#39;" * 100_000, " onaaa" * 100_000 + "&", '<i srcdoc="&amp;' * 20_000]
)
def test_scripts_in_attributes_take_little_time(page: str) -> None:
    assert fair_cpu_s(lambda: inspect(attached(page.encode() + b"<script>", "a.html"), Limits())) < 2


_XHTML = 'xmlns="http://www.w3.org/1999/xhtml" xmlns:h="http://www.w3.org/1999/xhtml"'


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (f'<html {_XHTML}><h:form action="/x"><h:input type="password"/></h:form></html>', True),
        (f'<!DOCTYPE html [<!ENTITY p "word">]><html {_XHTML}><form><input type="pass&p;"/></form></html>', True),
        (f'<!DOCTYPE html [<!ATTLIST input type CDATA "password">]><html {_XHTML}><form><input/></form></html>', True),
        ('<html><input type=password><p onclick="send()">Sign in</p></html>', True),
        (f'<!DOCTYPE html [<!ENTITY p "x">]><html {_XHTML}><form><input type="text"/>&p;</form></html>', False),
        ("<html><form><input name=password></form></html>", False),
    ],
)
def test_a_field_for_passwords_without_a_usual_form_was_missed(page: str, expected: bool) -> None:
    found = inspect(attached(page.encode(), "a.xhtml"), Limits(phishing=Search())).tags
    assert ("attachment:credential-form" in found) == expected
