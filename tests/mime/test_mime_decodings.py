"""Parts that programs decode in different ways: whatever any of them finds is inspected."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Callable

import pytest

from bridge.mime import encodings, readings
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.inspection_state import EICAR
from bridge.service.analysis.limits import Limits
from tests.mime import ours
from tests.mime.encodings import lines_of

TAG = "mime:ambiguous:content-encoding"
HEAD = b'From: a@example.org\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n--b\r\n\r\nHello.\r\n--b\r\n'
END = b"\r\n--b--\r\n"
FILE = b"x" * 30 + EICAR + b"y" * 30  # not at the beginning, where less would do to find it


def encoded(content: bytes) -> bytes:
    return b"\r\n".join(lines_of(base64.b64encode(content), 60))


def mail(raw: bytes, encoding: bytes = b"base64", kind: bytes = b"application/octet-stream") -> bytes:
    return HEAD + b"Content-Type: %b\r\nContent-Transfer-Encoding: %b\r\n\r\n" % (kind, encoding) + raw + END


WAYS: dict[str, Callable[[], bytes]] = {
    "others are skipped": lambda: encoded(FILE).replace(b"\r\n", b"@\r\n@@"),
    "it starts again after padding": lambda: base64.b64encode(b"abcd") + b"\r\n" + encoded(FILE),
    "it ends at the first padding": lambda: encoded(FILE + b"zz") + b"\r\nAAA",
    "lines with others do not count": lambda: encoded(FILE).replace(b"\r\n", b"\r\nwords!\r\n", 1),
    "what follows the first other character does not count": lambda: encoded(FILE).replace(b"\r\n", b"#abc\r\n"),
    "each line on its own": lambda: b"\r\n".join(base64.b64encode(piece) for piece in lines_of(FILE, 35)),
    "the letters of links": lambda: (
        encoded(b"\xfb\xef\xbe" + FILE + b"\xff\xff").replace(b"+", b"-").replace(b"/", b"_")
    ),
}


@pytest.mark.parametrize("kind", [b"application/octet-stream", b"text/plain", b"text/html; charset=utf-8"])
@pytest.mark.parametrize("way", WAYS)
def test_odd_base64_is_decoded_in_every_way(way: str, kind: bytes) -> None:
    """Whichever way a program has, what it finds is inspected."""
    found = inspect(mail(WAYS[way](), kind=kind), Limits())
    assert {TAG, "malware:eicar"} <= found.tags
    assert not found.limits


@pytest.mark.parametrize(
    "raw",
    [b"ABC\rDEFG\nABCDEFGH", b"ABC\rEFGH\r\nABCDEFGH", b"ABCDEFGH\r\nABCDEFGHA\nABCDEFGH", b"ABCD\r\nA\rBCD\nABCD"],
)
def test_base64_with_line_ends_of_two_kinds_is_not_plain(raw: bytes) -> None:
    """Lines of one length, with their line ends, were taken for whole groups: the inspection failed."""
    assert not encodings.decode(raw, "base64")[1]
    assert TAG in inspect(mail(raw), Limits()).tags


@pytest.mark.parametrize("raw", [encoded(FILE), FILE.replace(b"S", b"=53"), FILE], ids=["base64", "quoted", "plain"])
def test_an_unknown_encoding_may_be_any(raw: bytes) -> None:
    """Some programs take the most similar one, some try, some do not decode it."""
    assert {"mime:ambiguous:encoding", "malware:eicar"} <= inspect(mail(raw, b"8bit+"), Limits()).tags


@pytest.mark.parametrize("escape", [b"=4c", b"=4C=\r\n", b"=4C= \r\n"])
def test_odd_quoted_printable_is_decoded_in_every_way(escape: bytes) -> None:
    """Escapes in lower case, and soft line breaks with spaces."""
    raw = FILE.replace(b"L", escape) + b" 100=%"
    assert {TAG, "malware:eicar"} <= inspect(mail(raw, b"quoted-printable"), Limits()).tags


def test_a_mail_in_such_a_part_is_read() -> None:
    """The file of a mail that is encoded in the odd part is found."""
    inner = b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: base64\r\n\r\n" + encoded(FILE)
    found = inspect(mail(encoded(inner).replace(b"\r\n", b"\r\n@@", 2)), Limits())
    assert {TAG, "malware:eicar"} <= found.tags


def test_lines_like_fields_are_a_reason_to_read_the_whole_mail() -> None:
    """Between lines of Base64, some programs find another part there."""
    part = b"\r\n--x\r\nContent-Type: text/plain\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"
    raw = encoded(b"abc" * 30) + part + FILE.replace(b"S", b"=53")
    assert "malware:eicar" in inspect(mail(raw), Limits()).tags


def test_each_content_is_an_object_for_the_engines() -> None:
    """Those that get single objects see what each program would save."""
    seen = ours.read(mail(WAYS["it starts again after padding"]()))
    assert seen is not None
    assert any(found.content.endswith(FILE) for found in seen)


@pytest.mark.parametrize(
    ("content", "may_be"),
    [
        (b'<meta http-equiv="Content-Type" content="text/html">', False),
        (b'<div class="content-type main-content-block">', False),
        (b"Content-Type: text/plain\n\n", True),
        (b"x\r\n \tcontent-disposition", True),
        (b"a Content-Transfer-Encoding b", True),
        (b"X-Content-Location : x", True),
        (b"x content-type", False),
    ],
)
def test_which_content_may_be_a_mail(content: bytes, may_be: bool) -> None:
    """Nearly every page has the word, and was read as a mail."""
    assert readings.may_be_mail(content) is may_be


@pytest.mark.parametrize(
    ("head", "may_be"),
    [
        (b"DKIM-Signature: v=1; h=From:Subject:Content-Type:\r\n Content-Transfer-Encoding:Date; b=x\r\n", False),
        (b"DKIM-Signature: v=1; h=From:Content-Type:Content-Transfer-Encoding:quoted-printable; b=x\r\n", True),
        (b"X: h=a:b:Content-Transfer-Encoding:x-uuencode\r\n", True),
        (b"Content-Transfer-Encoding: 8bit+\r\n", True),
        (b"Content-Transfer-Encoding: 8bit\r\nSubject: =?utf-8?B?eA==?=\r\n", False),
    ],
)
def test_the_fields_that_a_signature_covers_are_no_encoding(head: bytes, may_be: bool) -> None:
    """Nearly every signed mail that was ambiguous was decoded for them, at each place where a part may begin."""
    assert readings.may_be_quoted(head + b"\r\na=b") is may_be


@pytest.mark.parametrize("kind", [b"text/html", b"text/plain"])
def test_a_link_that_some_programs_do_not_decode_was_not_seen(kind: bytes) -> None:
    """The page in a part that claims to be Base64 is shown by programs that fail to decode it."""
    page = b'<html><a href="http://evil.example/x">More</a></html>'
    assert "evil.example" in inspect(mail(page, kind=kind), Limits()).hosts


@pytest.mark.parametrize("kind", [b"application/octet-stream", b"text/plain"])
def test_an_unopened_archive_in_another_decoding_was_not_told(kind: bytes) -> None:
    """Its bytes say what it is, and not the name of the whole part."""
    raw = base64.b64encode(b"abcd") + b"\r\n" + encoded(b"\x60\xea\x2a\x00\x22\x0b\x01\x0b\x10\x00\x02" + b"x" * 300)
    assert "mime:unopened-archive" in inspect(mail(raw, kind=kind), Limits()).tags


def test_a_page_that_builds_a_file_was_not_seen_in_another_decoding() -> None:
    """A text without a name was only searched for links."""
    page = b'<html><script>var l=document.createElement("a");l.href=URL.createObjectURL(new Blob([atob("%b")]));'
    page = page % base64.b64encode(b"MZ" + bytes(200)) + b'l.download="x.exe";l.click()</script></html>'
    raw = base64.b64encode(b"abcd") + b"\r\n" + encoded(page)
    assert {"attachment:builds-file", "mime:executable"} <= inspect(mail(raw, kind=b"text/plain"), Limits()).tags


def test_the_name_of_a_file_in_odd_base64_was_not_seen() -> None:
    """Of a format that marks its own beginning, and names the file."""
    script = bytes((byte + 42) & 0xFF for byte in b"WScript.Echo('hello')")
    raw = b"=ybegin line=128 size=21 name=x.js\r\n" + script + b"\r\n=yend size=21"
    assert "mime:executable" in inspect(mail(raw), Limits()).tags


@pytest.mark.parametrize("encoding", [b"quoted-printable", b"x-quoted"])
def test_a_program_behind_empty_lines_was_not_seen(encoding: bytes) -> None:
    """Some programs skip them, so that the file begins with its first bytes."""
    program = b"MZ\x90\0" + bytes(56) + b"\x80\0\0\0" + bytes(64) + b"PE\0\0L\x01" + b"x" * 60
    raw = b"\r\n\r\n" + b"=\r\n".join(lines_of(b"".join(b"=%02x" % byte for byte in program), 60))
    assert "mime:executable" in inspect(mail(raw, encoding), Limits()).tags


def test_a_misspelled_encoding_after_a_list_of_fields_was_not_seen() -> None:
    """It is a field of its own, although the line before ends like the list of a signature. ClamAV decodes it."""
    head = b"X-List: h=a:\r\nContent-Transfer-Encoding: qotd-prntable\r\n"
    assert readings.may_be_quoted(head + b"\r\na=b")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("eicar.com", EICAR)
    raw = b"=\r\n".join(lines_of(b"".join(b"=%02X" % byte for byte in file.getvalue()), 60))
    ambiguous = HEAD.replace(b'boundary="b"', b'boundary="b"; boundary="c"')
    whole = ambiguous + b"Content-Type: application/octet-stream\r\n" + head + b"\r\n" + raw + END
    assert "malware:eicar" in inspect(whole, Limits()).tags
