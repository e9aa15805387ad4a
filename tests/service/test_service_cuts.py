"""Nothing of a mail is cut silently: a value beyond a limit is read on, or the mail is reported as incomplete.

Each case was delivered as clean, although mail programs showed the file, the sender or the link.
"""

from __future__ import annotations

import base64
import codecs
import quopri
from binascii import b2a_uu

import pytest

from bridge.mime.structure import Bounds
from bridge.service.analysis import headers
from bridge.service.analysis.content import file_types
from bridge.service.analysis.content.links import Links, host_of
from bridge.service.analysis.content.text_windows import WINDOW
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import MAX_SENDERS, NeedsProcess, inspect
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.pipeline import INLINE_NAMING
from tests.service.service_kit import EICAR, mail

PADDING = "".join(f' x-parameter-number-{i:03}="yyyyyyyyyyyyyyy";\r\n' for i in range(60))


def part(*fields: str, kind: str = "application/octet-stream", content: bytes = b"WScript.Echo(1)") -> bytes:
    head = "".join(f"{field}\r\n" for field in (f"Content-Type: {kind}", *fields))
    return mail(
        b"--b\r\n\r\nhello\r\n--b\r\n" + head.encode() + b"Content-Transfer-Encoding: base64\r\n\r\n"
        + base64.encodebytes(content).replace(b"\n", b"\r\n") + b"--b--\r\n",
        Content_Type="multipart/mixed; boundary=b",
    )  # fmt: skip


def tags(content: bytes) -> set[str]:
    found = inspect(content, Limits())
    return found.tags | {f"limit:{name}" for name in found.limits}


NAMED = "Content-Disposition: attachment; "


@pytest.mark.parametrize(
    "field",
    [
        NAMED + 'filename="evil.js"',
        NAMED + 'filename="a.txt"; ' * 31 + 'filename="evil.js"',
        NAMED + "\r\n" + PADDING + ' filename="evil.js"',
        NAMED + f'x-name="a"; x-pad="{"y" * 2100}"; filename="evil.js"',
        NAMED + f'x-pad="{"y" * 9500}"; filename="evil.js"',
        NAMED + f'x-pad="{"y" * 100_000}"; filename="evil.js"',
        NAMED + "".join(f'filename*{i}="a"; ' for i in range(40)) + 'filename*40=".js"',
        NAMED + 'filename*0="evil."; filename*1="js"; filename*1000=".txt"',
        NAMED + 'filename*100000="evil."; filename*100001="js"',
        NAMED + "filename" + " " * 60 + "=evil.js",
        NAMED + f"filename=evil.({'c' * 300})js",
        NAMED + "filename=evil.(a(b)c)js",
        NAMED + f'filename="=?utf-8?q?{"a" * 2100}=2Ejs?="',
        NAMED + "filename evil.js",
        "Content-Disposition: attachment filename=evil.js",
        "Content-Location: evil.js",
        "Content-Location: http://x/evil.js",
        "Content-Location: http://x/evil.js?a=b#c",
        'Content-Location: "evil%2Ejs"',
        "Content-Location: http://evil.com",
    ],
    ids=lambda field: f"{field[:60]}... ({len(field)})",
)
def test_a_name_that_only_some_programs_see_was_missed(field: str) -> None:
    """Python, ripmime, munpack, postal-mime or mailparser show each of these under the name of a program."""
    assert "mime:executable" in tags(part(field))


@pytest.mark.parametrize("kind", ["text/html", "image/gif", "multipart/related; boundary=c"])
def test_the_address_of_a_page_is_no_program(kind: str) -> None:
    """Newsletters have `Content-Location: http://www.example.com` in their HTML."""
    assert "mime:executable" not in tags(part("Content-Location: http://www.example.com", kind=kind))


def test_too_many_names_are_reported() -> None:
    """What takes too long is a limit, never a clean mail; in the event loop, little is enough."""
    field = NAMED + "filename=a; " * 20_000
    content = mail(f"--b\r\n{field}\r\n\r\n".encode() * 8, Content_Type="multipart/mixed; boundary=b")
    assert inspect(content, Limits()).limits == {"names"}
    inline = Limits(archives=False, bounds=Bounds(naming_work=INLINE_NAMING))
    parts = f"--b\r\n{NAMED}filename=a; x={'y' * 300}\r\n\r\nx\r\n" * 10
    few = mail(parts.encode() + b"--b--\r\n", Content_Type="multipart/mixed; boundary=b")
    many = few.replace(b"--b--", few[few.index(b"--b\r\n") :])
    assert inspect(few, inline).limits == set()
    with pytest.raises(NeedsProcess):
        inspect(many, inline)


def test_short_names_in_many_encodings_stopped_the_event_loop() -> None:
    """Forty bytes of a name took milliseconds, and counted as forty: 90 ms for a mail of 2 KB."""
    inline = Limits(archives=False, bounds=Bounds(naming_work=INLINE_NAMING))
    parts = "".join(f'--b\r\n{NAMED}filename="{i}%2525\'5=?q?%41(%28).x"\r\n\r\nx\r\n' for i in range(30))
    with pytest.raises(NeedsProcess):
        inspect(mail(f"{parts}--b--\r\n".encode(), Content_Type="multipart/mixed; boundary=b"), inline)


EXTENSIONS = (
    "vb ws wsc sct msc url vhdx wim jnlp application appref-ms settingcontent-ms library-ms search-ms diagcab "
    "msixbundle appinstaller py pyw ps1xml slk iqy rdp hlp theme website xbap mst msu gadget shb shs pl rb php deb rpm"
)


@pytest.mark.parametrize("extension", EXTENSIONS.split())
def test_a_program_was_missing_from_the_list(extension: str) -> None:
    assert "mime:executable" in file_types.tags_of(f"invoice.{extension}", "", b"hello")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "x.exe::$DATA",
            "x.exe:zone",
            "x.exe/",
            "x.exe\\",
            "x.exe/.",
            "x.exe?",
            "x.exe*",
            "x.exe|",
            "x.exe;1",
            "x.exe%20",
        ),
        *(
            "x.exe#",
            "x.exe&",
            "x.exe.. .",
            "x.\uff45\uff58\uff45",
            "x\uff0eexe",
            "x\u2024exe",
            "x.exe\u3000",
            "x.exe\xa0",
        ),
        *("x.e\u200bxe", "x.exe\u2028", "x.EXE\t", "x.{3050f4d8-98b5-11cf-bb82-00aa00bdce0b}", "C:\\x\\y.exe"),
    ],
)
def test_a_program_was_hidden_by_the_end_of_its_name(name: str) -> None:
    assert "mime:executable" in file_types.tags_of(name, "", b"hello")


@pytest.mark.parametrize("name", ["Re: foo.com: x.pdf", "foo.com & bar.pdf", "100%.pdf", "a (1).docx", "x.com/y.pdf"])
def test_a_document_is_no_program(name: str) -> None:
    assert file_types.tags_of(name, "", b"") == set()


@pytest.mark.parametrize(
    "kind",
    [
        *("application/hta", "application/x-msdownload", "application/x-evil.js", "application/x-mswinurl"),
        *("application/x-iso9660-image", "application/vnd.ms-htmlhelp", "application/x-desktop", "text/scriptlet"),
    ],
)
def test_a_part_without_a_name_gets_one_by_its_type(kind: str) -> None:
    assert "mime:executable" in tags(part(kind=kind))


# Senders

SENDERS = {
    "long": f'"{"x" * 2100}" <bad@spam.example>',
    "21st": ", ".join(f"a{i}@ok.example" for i in range(20)) + ", bad@spam.example",
    "brackets in a comment": "bad@spam.example (<a@ok.example>)",
    "brackets in quotes": '"<a@ok.example>" bad@spam.example',
    "brackets in quotes, and others": '"<a@ok.example>" <bad@spam.example>',
    "nested comments": "(a (b) <a@ok.example>) bad@spam.example",
    "not all in brackets": "bad@spam.example, <a@ok.example>",
    "open quote": '"x <bad@spam.example>',
    "open comment": "(x <bad@spam.example>",
    "bracket in bracket": "<bad@spam.example <a@ok.example>>",
    "group": "g: bad@spam.example;",
    "white space": "bad @ spam . example",
    "comment in the address": "<bad@(x)spam.example>",
    "encoded": "=?utf-8?q?bad=40spam=2Eexample?=",
    "encoded with a null": "=?utf-8?b?YmFkQHNwYW0uZXhhbXBsZQA=?=@ok.example",
    "long quoted local part": f'"{"a" * 70}"@spam.example, bad@spam.example',
}


@pytest.mark.parametrize("name", SENDERS)
def test_a_blocked_sender_was_not_seen(name: str) -> None:
    content = f"From: {SENDERS[name]}\r\nDate: Mon, 16 Nov 2026 06:00:00 +0000\r\n\r\nx\r\n".encode()
    assert "bad@spam.example" in inspect(content, Limits()).senders


def test_an_address_in_a_display_name_is_no_sender() -> None:
    value = '"boss@example.org" <a@b.example>'
    assert headers.addresses(value) == headers.authors(value) == ["a@b.example"]


def test_an_address_in_a_display_name_without_quotes_may_be_shown_as_the_author() -> None:
    """It is no author, but block entries see it."""
    value = "boss@example.org <a@b.example>"
    assert headers.authors(value) == ["a@b.example"] and headers.addresses(value) == ["a@b.example", "boss@example.org"]


def test_a_quoted_address_in_place_of_an_author_may_be_shown_as_one() -> None:
    """It is no author, but block entries see it."""
    value = '"x@y.example", <a@b.example>'
    assert headers.authors(value) == ["a@b.example"] and headers.addresses(value) == ["a@b.example", "x@y.example"]


def test_too_many_senders_are_reported() -> None:
    content = b"From: " + b", ".join(b"a%d@b.example" % i for i in range(MAX_SENDERS + 1)) + b"\r\n\r\nx"
    assert inspect(content, Limits()).limits == {"senders"}


@pytest.mark.parametrize("unit", ["<", "a:b;", "a@b.c, ", "(a) ", "@", "=?x?b?/////w==?= "])
def test_a_long_from_field_blocked_the_event_loop(unit: str) -> None:
    """60 KB of brackets take 70 ms; a field that no program writes is read in a process."""
    content = b"From: " + unit.encode() * (60_000 // len(unit)) + b"\r\n\r\nx"
    with pytest.raises(NeedsProcess):
        inspect(content, Limits(archives=False))


# Links

PAGE = '<html><body><a href="https://evil.example/x">here</a></body></html>\r\n'
TEXT = "see https://evil.example/x now\r\n"


def found(body: bytes, kind: str, *fields: str) -> Inspection:
    encoded = base64.encodebytes(body).replace(b"\n", b"\r\n")
    head = "".join(f"{field}\r\n" for field in (f"Content-Type: {kind}", "Content-Transfer-Encoding: base64", *fields))
    return inspect(b"From: a@b\r\n" + head.encode() + b"\r\n" + encoded, Limits())


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ('text/plain; name="a.txt"', TEXT),
        ('application/octet-stream; name="a.html"', PAGE),
        ("application/octet-stream", PAGE),
        ("application/xhtml+xml", PAGE),
        ("text/enriched", TEXT),
        ("text/markdown", TEXT),
        ("text/calendar", "BEGIN:VCALENDAR\r\nURL:https://evil.example/\r\n"),
        ("text/calendar", "BEGIN:VCALENDAR\r\nURL:https://ev\r\n il.example/\r\n"),
        ('image/svg+xml; name="a.svg"', PAGE),
        ("text/plain; format=flowed; delsp=yes", "see https://ev \r\nil.example/x now\r\n"),
        ("text/plain; format=flowed; delsp=yes/x", "see https://ev \r\nil.example/x now\r\n"),
        ("text/plain; format=flowed; delsp=(x)yes", "see https://ev \r\nil.example/x now\r\n"),
    ],
)
def test_links_were_not_searched_in_this_part(kind: str, body: str) -> None:
    assert "evil.example" in found(body.encode(), kind).hosts


@pytest.mark.parametrize(
    "address",
    [
        *(
            "ht&#9;tps://evil.example/",
            "ht\r\ntps://evil.example/",
            "https://ev&#9;il.example/",
            "https://ev\r\nil.example/",
        ),
        *("https://ev&Tab;il.example/", "https://ev&NewLine;il.example/", "h\tt\tt\tp\ts\t:\t/\t/evil.example/"),
        *(" https://evil.example/", "/\t/evil.example/", "https:" + "/" * 30 + "evil.example", "\n//evil.example/"),
        *("https://" + "a" * 500 + "@evil.example/", "https://good.example '(x) <y>@evil.example/"),
        *("https://a!b.evil.example/", "https://a'b.evil.example/", "https://evil.example,x", "https:_a@evil.example/"),
    ],
)
def test_a_link_that_browsers_open_was_missed(address: str) -> None:
    links = Links()
    links.scan(f'<a href="{address}">x</a>', is_html=True)
    assert any(host == "evil.example" or host.endswith(".evil.example") for host in links.hosts), links.hosts


@pytest.mark.parametrize("after", [",", ".", "!", ")", "\u201d", "\u3001", ";", "*"])
def test_punctuation_after_a_link_hid_it(after: str) -> None:
    links = Links()
    links.scan(f"see https://evil.example{after} now", is_html=False)
    assert links.hosts == {"evil.example"}


@pytest.mark.parametrize("address", ["0000000000000300.0.2.235", "0x00000000c00002eb", "192.0.000000000000000002.235"])
def test_an_address_with_many_zeros_was_no_address(address: str) -> None:
    links = Links()
    links.scan(f"http://{address}/", is_html=False)
    assert links.hosts == {"192.0.2.235"}


LABELS = {
    "utf_16_le": [
        "utf-16",
        "utf-16le",
        "utf16",
        "ucs-2",
        "unicode",
        "iso-10646-ucs-2",
        "csUnicode",
        "UTF_16LE",
        "us-ascii",
    ],
    "utf_16_be": ["utf-16", "utf-16be", "unicodeFFFE"],
    "utf_32_le": ["utf-32", "utf32", "ucs-4"],
    "cp037": [
        "ibm037",
        "cp037",
        "IBM1047",
        "cp1047",
        "x-IBM1148",
        "csIBM1140",
        "EBCDIC-US",
        "IBM01141",
        "x-EBCDIC-Italy",
    ],
}


@pytest.mark.parametrize(("codec", "label"), [(codec, label) for codec, labels in LABELS.items() for label in labels])
def test_links_in_another_charset_were_missed(codec: str, label: str) -> None:
    assert "evil.example" in found(PAGE.encode(codec), f"text/html; charset={label}").hosts


MARKS = {"utf_16_le": codecs.BOM_UTF16_LE, "utf_16_be": codecs.BOM_UTF16_BE, "utf_32_le": codecs.BOM_UTF32_LE}


@pytest.mark.parametrize("mark", MARKS)
def test_links_behind_a_byte_order_mark_were_missed(mark: str) -> None:
    page = PAGE.replace("evil", "ev\u00efl")
    assert host_of("ev\u00efl.example") in found(MARKS[mark] + page.encode(mark), "text/html").hosts


@pytest.mark.parametrize("label", ["utf-7", "unicode-1-1-utf-7"])
def test_links_in_utf_7_were_missed(label: str) -> None:
    assert "evil.example" in found(PAGE.replace("//", "+AC8ALw-").encode(), f"text/html; charset={label}").hosts


@pytest.mark.parametrize("before", [WINDOW - 3000, WINDOW - 5, WINDOW])
@pytest.mark.parametrize("kind", ["text/plain", "text/html; charset=utf-8", "text/plain; charset=utf-16le"])
def test_a_link_at_the_end_of_a_window_was_cut(before: int, kind: str) -> None:
    """A long text is read in pieces; no link is divided between them, however long it is."""
    codec = "utf_16_le" if "16" in kind else "utf_8"
    text = "x " * (before // 2) + f'<a href="https://{"a" * 9000}@evil.example/">y</a>'
    assert "evil.example" in found(text.encode(codec), kind).hosts


# Files in texts

CHINESE = "你好世界这是一封普通的邮件。\r\n".encode("gb2312") * 60
UUENCODED = b"\r\nbegin 644 eicar.com\r\n" + b2a_uu(EICAR[:45]) + b2a_uu(EICAR[45:]) + b"`\r\nend\r\n"


@pytest.mark.parametrize("kind", ["text/plain; charset=gb2312", "application/octet-stream", "text/plain"])
@pytest.mark.parametrize("start", [CHINESE, bytes(range(1, 32)) * 40, b"%PDF-1.4 " + b"x" * 2000])
@pytest.mark.parametrize("encoding", ["quoted-printable", "base64"])
def test_a_file_in_a_text_of_another_charset_was_missed(kind: str, start: bytes, encoding: str) -> None:
    """Only texts whose first KiB was ASCII or UTF-8 were searched for uuencoded files."""
    content = start + UUENCODED
    body = base64.encodebytes(content) if encoding == "base64" else quopri.encodestring(content)
    raw = mail(body.replace(b"\n", b"\r\n"), Content_Type=kind, Content_Transfer_Encoding=encoding)
    assert "malware:eicar" in tags(raw)


def test_a_file_in_an_appointment_was_missed() -> None:
    encoded = base64.b64encode(EICAR).decode()
    lines = f'BEGIN:VCALENDAR\r\nATTACH;ENCODING=BASE64;X-FILENAME="x.com":\r\n {encoded[:40]}\r\n {encoded[40:]}\r\n'
    assert {"malware:eicar", "mime:executable"} <= tags(mail(lines.encode(), Content_Type="text/calendar"))


# Files that are something else as well

SMUGGLING = b'\r\n<a href="ht&#116;p&#58;//evil.example/">x</a><a download="x.js" href="data:text/plain,x">y</a>\r\n'


@pytest.mark.parametrize("kind", ["x-unknown", "http", "news", "global", "rfc822", "delivery-status"])
@pytest.mark.parametrize("start", [b"", b"X-Comment: <html>\r\n"])
def test_a_file_called_a_message_was_missed(kind: str, start: bytes) -> None:
    """Programs save a message of a type that they do not know under its name; only the mail in it was inspected."""
    raw = mail(start + SMUGGLING, Content_Type=f"message/{kind}; name=page.html")
    seen = inspect(raw, Limits())
    assert "mime:executable" in seen.tags and "evil.example" in seen.hosts and seen.digests


@pytest.mark.parametrize("name", ["invoice", "invoice.", "invoice 2026", ""])
@pytest.mark.parametrize("kind", ["application/javascript", "application/hta", "text/vbscript"])
def test_a_name_without_an_extension_hid_a_program(name: str, kind: str) -> None:
    """Some programs add the extension of the type to such a name."""
    assert "mime:executable" in tags(part(f'{NAMED}filename="{name}"' if name else NAMED, kind=kind))
    assert "mime:executable" not in tags(part(f'{NAMED}filename="invoice.txt"', kind=kind))


@pytest.mark.parametrize(
    "field", ["Content-Base: http://evil.example/", "Content-Location: http://evil\r\n .example/a/b"]
)
def test_links_that_a_field_completes_were_missed(field: str) -> None:
    """Some programs complete the links of a page with the address in these fields of its part."""
    assert "evil.example" in inspect(part(field, kind="text/html", content=b'<a href="/x">y</a>'), Limits()).hosts


def test_a_damaged_mail_in_the_format_of_outlook_had_no_tag() -> None:
    """Outlook may still open it, and show its attachments."""
    outlook = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504) + "__properties_version1.0".encode("utf-16-le")
    assert "mime:unopened-archive" in tags(part(f"{NAMED}filename=x.msg", content=outlook))
