"""A file in lines: programs change the line ends of a mail, so an archive may be whole for one and damaged for another.

We did not find what is in these mails; the comments name programs that open it.
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
import zlib

import pytest

from bridge.mime import line_ends
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.mime import ours
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import EICAR

HEAD = (
    b"From: a@example.org\r\nDate: Mon, 16 Nov 2026 10:00:00 +0000\r\nMessage-ID: <1@example.org>\r\n"
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Type: text/plain\r\n\r\nHello\r\n--b\r\n"
)
OCTETS = b"Content-Type: application/octet-stream; name=a.gz\r\n"
TEXT = b"Content-Type: text/plain\r\n"


def archive(lines: bytes) -> bytes:
    """A gzip file with EICAR, compressed, behind these lines as they are; it has no other line ends."""
    return next(found for found in (_archive(lines, more) for more in range(50)) if _has_only(found, lines))


def _archive(lines: bytes, more: int) -> bytes:
    content = bytes(range(200, 200 + more)) + EICAR
    packer = zlib.compressobj(wbits=-15)
    stored = struct.pack("<BHH", 0, len(lines), len(lines) ^ 0xFFFF) + lines
    end = struct.pack("<II", zlib.crc32(lines + content), len(lines + content))
    return b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + stored + packer.compress(content) + packer.flush() + end


def _has_only(found: bytes, lines: bytes) -> bool:
    return EICAR not in found and all(found.count(end) == lines.count(end) for end in (b"\n", b"\r"))


# Where a length is wrong, "o" begins a block of an unknown type.
WITH_LF, WITH_BOTH, WITH_CRLF = map(
    archive, (b"first\nsecond\nooooooooo", b"first\r\nsecond\nooooooooo", b"first\r\nsecond\r\nooooooooo")
)


def quoted(content: bytes) -> bytes:
    return b"=\r\n".join(
        b"".join(b"=%02X" % byte for byte in content[at : at + 24]) for at in range(0, len(content), 24)
    )


def in_lines(content: bytes, end: bytes = b"\n", before: bytes = b"") -> bytes:
    return (before + b"\r\n").join(map(quoted, content.split(end)))


def mail(fields: bytes, encoding: bytes, body: bytes) -> bytes:
    return HEAD + fields + b"Content-Transfer-Encoding: " + encoding + b"\r\n\r\n" + body + b"\r\n--b--\r\n"


QP = b"quoted-printable"
MAILS = {
    # postal-mime, MIME::Parser, uudeview, mhstore
    "line breaks of the file are those of the mail": mail(OCTETS, QP, in_lines(WITH_LF)),
    "the file has CRLF, too, escaped": mail(OCTETS, QP, b"\r\n".join(map(quoted, re.split(rb"(?<!\r)\n", WITH_BOTH)))),
    # mailparser, Email::MIME, Dovecot, MIME::Parser, mhstore: RFC 2045 says that these spaces are not part of the text
    "spaces before the line breaks": mail(OCTETS, QP, in_lines(WITH_CRLF, b"\r\n", b" \t")),
    "spaces before line breaks that become LF": mail(OCTETS, QP, in_lines(WITH_LF, b"\n", b"  ")),
    # Email::MIME
    "each LF becomes CRLF": mail(OCTETS, QP, quoted(WITH_CRLF.replace(b"\r\n", b"\n"))),
    # munpack
    "each escaped CR is removed": mail(OCTETS, QP, quoted(WITH_LF.replace(b"\n", b"\r\n"))),
    "EICAR with escaped CR": mail(TEXT, QP, quoted(EICAR[:30] + b"\r" + EICAR[30:])),
    # mailparser, jsmime, munpack, mhstore
    "CRLF becomes LF in a text in Base64": mail(TEXT, b"base64", base64.encodebytes(WITH_LF.replace(b"\n", b"\r\n"))),
    "in a text in quoted-printable": mail(TEXT, QP, quoted(WITH_LF.replace(b"\n", b"\r\n"))),
    # postal-mime, emailjs, uudeview
    "without an encoding": mail(OCTETS, b"binary", WITH_LF.replace(b"\n", b"\r\n")),
    # and in a mail that is ambiguous for another reason
    "with an escape that is none": mail(OCTETS, QP, in_lines(WITH_LF) + b"=X"),
    "with a wrong name of the encoding": mail(OCTETS, b"x-" + QP, in_lines(WITH_LF)),
    "with two encodings": mail(OCTETS + b"Content-Transfer-Encoding: base64\r\n", QP, in_lines(WITH_LF)),
    "with two types": mail(TEXT + OCTETS, QP, in_lines(WITH_LF, b"\n", b" ")),
    # and in a mail in the mail
    "in an attached mail": mail(b"Content-Type: message/rfc822\r\n", b"7bit", mail(OCTETS, QP, in_lines(WITH_LF))),
    "in an attached mail in Base64": mail(
        b"Content-Type: application/octet-stream; name=a.eml\r\n",
        b"base64",
        base64.encodebytes(mail(OCTETS, QP, in_lines(WITH_LF))),
    ),
}


@pytest.mark.parametrize("name", MAILS)
def test_a_file_is_found_whatever_its_line_ends_become(name: str) -> None:
    """An archive that a program opens is opened here, with CRLF as over SMTP and with LF as in a file."""
    sent = MAILS[name]
    assert ours.tags(sent) & {"malware:eicar", "held"} == {"malware:eicar"}
    assert ours.tags(sent.replace(b"\r\n", b"\n")) & {"malware:eicar", "held"} == {"malware:eicar"}


def test_crlf_for_a_mail_with_lf() -> None:
    """IMAP servers send CRLF, whatever they store."""
    sent = mail(OCTETS, QP, in_lines(WITH_CRLF, b"\r\n"))
    assert "malware:eicar" in ours.tags(sent)
    assert "malware:eicar" in ours.tags(sent.replace(b"\r\n", b"\n"))


def test_a_whole_file_is_not_called_broken() -> None:
    """Other line ends damage nearly every file: that says nothing about the mail."""
    tags = ours.tags(mail(OCTETS, QP, quoted(WITH_BOTH)))
    assert "malware:eicar" in tags and "mime:broken-archive" not in tags


def test_engines_get_each_form() -> None:
    """What the built-in checks do not open may be known to an engine."""
    found = {item.content for item in ours.read(mail(OCTETS, QP, b"a=01\r\nb=02")) or ()}
    assert {b"a\x01\r\nb\x02", b"a\x01\nb\x02"} <= found


TEXTS = {
    "ASCII": b"Hello,\r\nthis is a text.\r\n",
    "UTF-8": "Grüße,\r\nBZh\r\n".encode(),
    "Latin-1": "Grüße,\r\n".encode("latin-1"),
    "Japanese": "こんにちは\r\n".encode("iso-2022-jp"),
    "one line": b"\0\1\2\3",
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_read_once(name: str) -> None:
    """Text for people is inspected in one form only."""
    content = TEXTS[name]
    assert not list(line_ends.forms(binascii.b2a_qp(content), content, "quoted-printable", is_text=True))


def test_escapes_that_are_none_do_not_count() -> None:
    """`reason=100` in a header field is no control character."""
    text = b"Authentication-Results: x; reason=100; t=1771018820; ip=104.47.126.200\r\n\r\nHello\r\n"
    assert not line_ends.matter_in_mail(text, binascii.a2b_qp(text))
    assert line_ends.matter_in_mail(text, WITH_LF)


def test_spaces_take_linear_time() -> None:
    """A million spaces that no line end follows."""
    body = b"=01" + b" " * 1_000_000 + b"=02\r\n" + b"x \r\n" * 1000
    assert fair_cpu_s(lambda: inspect(mail(OCTETS, QP, body), Limits())) < 3
