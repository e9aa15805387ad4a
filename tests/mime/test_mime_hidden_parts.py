"""Files that a mail reader extracted and the service called clean, because it saw no reason to doubt its own reading.

Each was hidden where only other delimiters, another idea of an encoding, or another program's format leads to it.
"""

from __future__ import annotations

import base64
import gzip
import io
import struct
import zipfile
import zlib

import pytest

from bridge.api.scanning import Decision
from bridge.mime import encodings
from bridge.service.analysis.content.links import NeedsProcess
from bridge.service.analysis.decision import DecisionTable
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.decision_settings import Decisions
from tests.mime import ours
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import EICAR, zipped

HEAD = (
    b"From: a@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n"
    b"MIME-Version: 1.0\r\n"
)
TEXT = b"Content-Type: text/plain\r\n\r\nHello\r\n"
BINARY = b"=00=01=02=FF=FE=90 binary\r\n" * 20


def archive_without_padding() -> bytes:
    """Base64 of it has no "=", which alone would be odd in quoted-printable."""
    for length in range(3):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("eicar.com", EICAR)
            archive.comment = b"c" * length
        if len(file.getvalue()) % 3 == 0:
            break
    return file.getvalue()


ZIP = archive_without_padding()
LETTERS = base64.b64encode(ZIP)
LINES = b"\r\n".join(LETTERS[at : at + 76] for at in range(0, len(LETTERS), 76)) + b"\r\n"
SHORT_LINES = b"\r\n".join(LETTERS[at : at + 8] + b"!" for at in range(0, len(LETTERS), 8)) + b"\r\n"
PART = b"Content-Type: application/zip\r\nContent-Transfer-Encoding: base64\r\n\r\n" + LINES


def mail(*parts: bytes, boundary: bytes = b"bb", quoted: bytes = b"") -> bytes:
    body = b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in (TEXT, *parts))
    kind = b"Content-Type: multipart/mixed; boundary=%b%b%b\r\n\r\n" % (quoted, boundary, quoted)
    return HEAD + kind + body + b"--" + boundary + b"--\r\n"


def encoded(kind: bytes, content: bytes) -> bytes:
    lines = base64.encodebytes(content).replace(b"\n", b"\r\n")
    return b"Content-Type: %b\r\nContent-Transfer-Encoding: base64\r\n\r\n%b" % (kind, lines)


def tags(content: bytes) -> set[str]:
    return inspect(content, Limits()).tags


QUOTED_LEAF = b"Content-Type: application/octet-stream\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n" + BINARY


@pytest.mark.parametrize(
    ("boundary", "quoted", "seen"),
    [(b"foo:bar", b"", b"foo"), (b"foo/bar", b"", b"foo"), (b"foo=bar", b'"', b"foo"), (b"foobar", b"", b"foo")],
)
def test_a_part_was_hidden_in_a_quoted_printable_file_behind_another_delimiter(
    boundary: bytes, quoted: bytes, seen: bytes
) -> None:
    """For Dovecot, MIME::Parser and Python an unquoted boundary ends at ":"; ripMIME takes any line with dashes."""
    hidden = b"--%b\r\n%b--%b--\r\n" % (seen, PART, seen)
    content = mail(QUOTED_LEAF + hidden, boundary=boundary, quoted=quoted)
    assert any(item.content.startswith(ZIP) for item in ours.read(content) or [])
    assert {"malware:eicar", "mime:ambiguous:undeclared-parts"} <= tags(content)


@pytest.mark.parametrize("boundary", [b"foo:bar", b"foo/bar"])
def test_an_unquoted_boundary_with_a_colon_was_no_doubt(boundary: bytes) -> None:
    """RFC 2045 5.1: a value with such characters must be quoted. With quotes, nobody disagrees."""
    assert "mime:ambiguous:boundary-characters" in tags(mail(boundary=boundary))
    assert not any("ambiguous" in tag for tag in tags(mail(boundary=boundary, quoted=b'"')))


def test_a_soft_line_break_in_html_is_no_hidden_part() -> None:
    """Quoted-printable may divide the line of `<meta http-equiv="Content-Type"` just before that word."""
    for rest in (b'"=\r\nContent-Type" content=3D"text/html">', b"=\r\nContent-Type content=3Dtext/html>"):
        page = b"Content-Type: text/html\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n<meta http-equiv=3D"
        assert not any("ambiguous" in tag for tag in tags(HEAD + page + rest + b"\r\nHello\r\n"))


PARTIAL = b"id=1; number=1; total=2\r\n\r\nSubject: x\r\n\r\nthe first piece\r\n"


@pytest.mark.parametrize(
    "start",
    [
        b"Content-Type: message/partial (c); ",
        b"Content-Type: (c) message/partial; ",
        b"Content-Type: message / partial; ",
        b"Content-Type: message/\r\n partial; ",
        b"Content-Type: message/(c)partial; ",
        b'Content-Type: "message/partial"; ',
        b"Content-Type: message/partial\0; ",
        b"Content-Type: message/partial ",
        b"X: y\rContent-Type: message/partial; ",
        b"no field\r\n\r\nContent-Type: message/partial; ",
    ],
)
def test_a_piece_of_a_mail_was_delivered_because_its_type_was_written_oddly(start: bytes) -> None:
    """munpack, mhstore and others put the pieces together; no piece alone can be judged."""
    for content in (HEAD + start + PARTIAL, mail(start + PARTIAL)):
        found = tags(content)
        assert "mime:partial" in found
        assert DecisionTable(Decisions()).decide(found).decision is not Decision.DELIVER


def test_content_on_a_server_was_not_noticed_because_of_a_comment() -> None:
    start = b'Content-Type: message/external-body (c); access-type=URL; URL="http://x.example/a"\r\n\r\n'
    assert "mime:external-body" in tags(HEAD + start + b"Content-Type: application/zip\r\n\r\n")


@pytest.mark.parametrize(
    "encoding", [b"base6\r\n 4", b"bse46", b"b", b"", b"none", b"unknown", b"base32"], ids=lambda value: repr(value)
)
def test_an_unknown_encoding_was_not_tried_as_base64(encoding: bytes) -> None:
    """ClamAV takes the most similar encoding, or tries; with short lines and other characters nothing else shows it."""
    part = b"Content-Type: application/zip\r\nContent-Transfer-Encoding: %b\r\n\r\n" % encoding
    assert "malware:eicar" in tags(mail(part + SHORT_LINES))


@pytest.mark.parametrize("encoding", [b"qp", b"x-qp"])
def test_a_short_name_of_quoted_printable_was_not_known(encoding: bytes) -> None:
    """Email::MIME decodes `qp`."""
    body = b"=\r\n".join(b"".join(b"=%02X" % byte for byte in ZIP[at : at + 24]) for at in range(0, len(ZIP), 24))
    part = b"Content-Type: application/zip\r\nContent-Transfer-Encoding: %b\r\n\r\n" % encoding
    assert "malware:eicar" in tags(mail(part + body + b"\r\n"))


def test_base64_with_the_eighth_bit_set_was_skipped() -> None:
    """mailparser ignores the eighth bit of each letter; others skip such letters."""
    part = b"Content-Type: application/zip\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    assert "malware:eicar" in tags(mail(part + bytes(byte | 0x80 for byte in LETTERS)))
    some = bytes(byte | 0x80 if at % 3 == 0 else byte for at, byte in enumerate(LETTERS))
    assert "malware:eicar" in tags(mail(part + some))


def binhex(content: bytes, name: bytes) -> bytes:
    fork = bytes([len(name)]) + name + b"\0????????\0\0" + struct.pack(">II", len(content), 0) + b"\0\0" + content
    packed = base64.b64encode(fork.replace(b"\x90", b"\x90\0")).rstrip(b"=")
    return packed.translate(bytes.maketrans(encodings._ALPHABET, encodings._HQX))


def binhex_lines(width: int) -> bytes:
    text = b":" + binhex(ZIP, b"a.zip") + b":"
    return b"\r\n".join(text[at : at + width] for at in range(0, len(text), width)) + b"\r\n"


@pytest.mark.parametrize("first", [b"", b"(this file must be converted with BinHex 4.0)\r\n\r\n"])
@pytest.mark.parametrize("kind", [b"text/plain", b"application/octet-stream; name=a.dat"])
def test_binhex_was_not_found_without_the_line_that_announces_it(kind: bytes, first: bytes) -> None:
    """uudeview needs no such line, nor its usual spelling."""
    assert "malware:eicar" in tags(mail(b"Content-Type: %b\r\n\r\n%b%b" % (kind, first, binhex_lines(64))))


@pytest.mark.parametrize("kind", [b"application/mac-binhex40", b"application/octet-stream; name=a.hqx"])
def test_a_declared_binhex_file_with_short_lines_was_not_opened(kind: bytes) -> None:
    for part in (b"Content-Type: %b\r\n\r\n%b" % (kind, binhex_lines(10)), encoded(kind, binhex_lines(10))):
        assert "malware:eicar" in tags(mail(part))
    assert "malware:eicar" in tags(mail(encoded(b"application/zip", zipped(("a.hqx", binhex_lines(10))))))


@pytest.mark.parametrize("start", [b"X-", b">", b'"', b"\x0b"])
def test_an_encoding_in_the_middle_of_a_line_of_text_was_not_noticed(start: bytes) -> None:
    """For ripMIME, a part begins after any line with dashes, and a field wherever its name stands."""
    hidden = b"--foo\r\nSubject: x\r\n%bContent-Transfer-Encoding: base64\r\n\r\n" % start
    lines = b"\r\n".join(LETTERS[at : at + 24] for at in range(0, len(LETTERS), 24))
    assert "malware:eicar" in tags(mail(b"Content-Type: text/plain\r\n\r\nHello\r\n" + hidden + lines + b"\r\n"))


def test_an_encoding_within_another_field_was_not_noticed() -> None:
    """ClamAV decodes such a part."""
    head = b"Content-Type: application/zip\r\nX: Content-Transfer-Encoding: base64\r\n\r\n"
    assert "malware:eicar" in tags(mail(head + SHORT_LINES))


def test_a_signature_that_lists_the_encoding_is_no_doubt() -> None:
    signature = b"DKIM-Signature: v=1; h=From:Content-Type:\r\n\tContent-Transfer-Encoding:\r\n\tDate; b=x\r\n"
    part = b"Content-Type: text/plain\r\nContent-Transfer-Encoding: 7bit\r\n\r\nHello\r\n"
    assert not any("ambiguous" in tag for tag in tags(signature + HEAD + part))


def test_announced_binhex_with_short_lines_was_not_opened() -> None:
    text = b"(This file must be converted with BinHex 4.0)\r\n" + binhex_lines(12)
    assert "malware:eicar" in tags(mail(b"Content-Type: text/plain\r\n\r\n" + text))


def apple_single(content: bytes, name: bytes, magic: int = 0x00051600) -> bytes:
    entries = [(3, name), (1, content)]
    start = 26 + 12 * len(entries)
    head = struct.pack(">II16xH", magic, 0x00020000, len(entries))
    head += struct.pack(">III", 3, start, len(name)) + struct.pack(">III", 1, start + len(name), len(content))
    return head + name + content


def mac_binary(content: bytes, name: bytes) -> bytes:
    head = bytearray(128)
    head[1 : 2 + len(name)] = bytes([len(name)]) + name
    head[65:73] = b"????????"
    head[83:87] = struct.pack(">I", len(content))
    return bytes(head) + content + b"\0" * (-len(content) % 128)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda content, name: apple_single(content, name),
        lambda content, name: apple_single(content, name, 0x00051607),
        lambda content, name: mac_binary(content, name),
    ],
    ids=["AppleSingle", "AppleDouble", "MacBinary"],
)
def test_a_file_in_apples_containers_was_not_opened(wrapped) -> None:  # type: ignore[no-untyped-def]
    """Mail programs on a Mac take them apart; the name within decides how the file is opened."""
    assert "malware:eicar" in tags(mail(encoded(b"application/applefile", wrapped(gzip.compress(EICAR), b"a.gz"))))
    assert "mime:executable" in tags(mail(encoded(b"application/applefile", wrapped(b"WScript.Echo(1)", b"a.js"))))


def test_resources_beside_files_in_an_archive_are_no_container() -> None:
    """Archives made on a Mac have a file of AppleDouble for each file, without its content."""
    resources = struct.pack(">II16xH", 0x00051607, 0x00020000, 1) + struct.pack(">III", 2, 38, 4) + b"\0\0\0\0"
    assert tags(mail(encoded(b"application/zip", zipped(("__MACOSX/._a.txt", resources), ("a.txt", b"x"))))) == set()


def test_entries_of_an_apple_file_that_repeat_its_content_are_charged() -> None:
    """65,535 entries, each of them the whole file, would take gigabytes."""
    entries = b"".join(struct.pack(">III", 1, number, 1 << 20) for number in range(20_000))
    content = struct.pack(">II16xH", 0x00051600, 0x00020000, 20_000) + entries + bytes(1 << 20)
    assert inspect(mail(encoded(b"application/applefile", content)), Limits()).limits


def test_a_long_name_of_many_contents_took_seconds() -> None:
    """Each content has the name of the file, which may be as long as the file."""
    name_at = 26 + 12 * 1001
    entries = struct.pack(">III", 3, name_at, 100_000)
    entries += b"".join(struct.pack(">III", 1, name_at + number, 1) for number in range(1000))
    content = struct.pack(">II16xH", 0x00051600, 0x00020000, 1001) + entries + b"a" * 100_000
    hostile, found = mail(encoded(b"application/applefile", content)), []
    assert fair_cpu_s(lambda: found.append(inspect(hostile, Limits()).limits)) < 4
    assert found[0]


def calendar(line: bytes, fold: bytes = b"\r\n ") -> bytes:
    folded = fold.join(line[at : at + 70] for at in range(0, len(line), 70))
    return b"BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n" + folded + b"\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"


ATTACHED = b"ATTACH;ENCODING=BASE64;VALUE=BINARY;X-FILENAME=a.zip:" + LETTERS


@pytest.mark.parametrize(
    "content",
    [
        calendar(ATTACHED, b"\r "),
        calendar(ATTACHED.replace(LETTERS[:40], LETTERS[:20] + b"\x0b" + LETTERS[20:40])),
        calendar(ATTACHED.replace(LETTERS[:40], LETTERS[:20] + "\u2028".encode() + LETTERS[20:40])),
        calendar(b"ATTACH;VALUE=BINARY:" + LETTERS),
        calendar(b"ATTACH:data:application/zip," + b"".join(b"%%%02x" % byte for byte in ZIP)),
        calendar(b"ATTACH:data:application/zip;base64," + LETTERS[:20] + b"%0A" + LETTERS[20:]),
    ],
    ids=["lines end with CR", "vertical tab", "line separator", "type only", "percent", "line end in percent"],
)
def test_a_file_in_an_appointment_was_not_read_to_its_end(content: bytes) -> None:
    assert "malware:eicar" in tags(mail(encoded(b"text/calendar; charset=utf-8", content)))
    assert "malware:eicar" in tags(mail(encoded(b"application/zip", zipped(("a.ics", content)))))


PAGE = b'<a href="da\tta:application/zip;base64,' + LETTERS + b'">x</a>'


@pytest.mark.parametrize(
    "part",
    [
        encoded(b"text/calendar", calendar(ATTACHED)),
        b"Content-Type: text/calendar\r\n\r\n" + calendar(ATTACHED),
        b"Content-Type: text/html\r\n\r\n" + PAGE,
        encoded(b"application/mac-binhex40", binhex_lines(10)),
        encoded(b"application/applefile", apple_single(ZIP, b"a.zip")),
    ],
    ids=["encoded calendar", "calendar", "page", "BinHex", "AppleSingle"],
)
def test_engines_did_not_get_a_file_that_only_we_find(part: bytes) -> None:
    """ClamAV does not open calendars, for one: it found nothing in a mail that Outlook shows with an attachment."""
    seen: list[tuple[bytes, bool]] = []
    inspect(mail(part), Limits(), lambda content, _names, is_opaque, _type: seen.append((content, is_opaque)))
    assert any(is_opaque and content.startswith(ZIP) for content, is_opaque in seen)
    with pytest.raises(NeedsProcess):  # what is inspected in the event loop is not kept for engines
        inspect(mail(part), Limits(archives=False))


@pytest.mark.parametrize("scheme", [b"data:", b"da\tta:", b"d\r\nata:", b"DA\r\nTA\t:"])
def test_a_tab_or_line_end_in_the_word_data_hid_a_file_from_us(scheme: bytes) -> None:
    """Browsers remove them from addresses; a page without a `download` was not searched further."""
    page = PAGE.replace(b"da\tta:", scheme)
    assert "malware:eicar" in tags(mail(b"Content-Type: text/html\r\n\r\n" + page))
    assert "malware:eicar" in tags(mail(encoded(b"application/zip", zipped(("a.html", page)))))


def test_pictures_in_a_page_are_still_inspected_at_once() -> None:
    """Engines find these themselves, and newsletters have them."""
    picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII5B", 13, b"IHDR", 1, 1, 8, 0, 0, 0, 0)
    picture += struct.pack(">I", zlib.crc32(picture[12:])) + b"\0\0\0\0IEND\xaeB`\x82"
    page = b'<img src="data:image/png;base64,' + base64.b64encode(picture) + b'">'
    assert inspect(HEAD + b"Content-Type: text/html\r\n\r\n" + page, Limits(archives=False)).tags == set()


@pytest.mark.parametrize("name", ["1.emlx", "message", "a.email", "a.msg", "a.mail"])
def test_a_mail_in_an_archive_was_not_read_because_of_its_name(name: str) -> None:
    """Desktops open a file with an unknown name by its first line, and a Mac opens `.emlx`."""
    enclosed = mail(PART)
    if name.endswith("x"):
        enclosed = b"%d\n" % len(enclosed) + enclosed + b'<?xml version="1.0"?><plist></plist>'
    assert "malware:eicar" in tags(mail(encoded(b"application/zip", zipped((name, enclosed)))))


def test_a_link_that_thunderbird_opens_as_an_attachment_was_not_seen() -> None:
    part = b"Content-Type: a/b; name=a.pdf\r\nX-Mozilla-External-Attachment-URL: http://192.0.2.1/a\r\n\r\nx\r\n"
    assert "url:ip-host" in tags(mail(part))
