"""Damaged archives: a mail is held if an attachment is one, and not for what looks like one in another reading."""

from __future__ import annotations

import base64
import codecs
import gzip
import io
import random
import tarfile
import zlib

import pytest

from bridge.service.analysis.decision import DecisionTable
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.decision_settings import Decisions
from tests.service.container_kit import decision, entry, local, tags, with_directory
from tests.service.service_kit import zipped
from tests.service.test_service_forgiving_programs import FORGIVEN, TEXT

HEAD = (
    b"From: Anna <a@example.org>\r\nSubject: x\r\nMessage-ID: <1@example.org>\r\n"
    b"Date: Thu, 19 Nov 2026 03:00:00 +0000\r\n"
)
FOOTER = b"_______________________________________________\r\nList mailing list\r\nhttps://lists.example.org/list\r\n"
NOISE = random.Random(4).randbytes(20_000)
WHOLE = {
    "report.zip": zipped(("report.txt", b"Hello, this is a report\r\n" * 50), ("noise", NOISE[:900])),
    "report.gz": gzip.compress(NOISE[:3000]),
}
DATA = FORGIVEN["288 symbols"][0]
FACTS = {"method": 8, "crc": zlib.crc32(TEXT), "size": len(TEXT)}
DAMAGED = {
    "a.zip": with_directory(local(b"a.txt", DATA, **FACTS), entry(b"a.txt", packed=len(DATA), **FACTS)),
    "a.gz": b"\x1f\x8b\x08" + bytes(7) + DATA + bytes(8),
}


def encoded(content: bytes, end: bytes = b"\r\n") -> bytes:
    return base64.encodebytes(content).replace(b"\n", end)


def in_lines(content: bytes, length: int) -> bytes:
    text = base64.b64encode(content)
    return b"".join(text[at : at + length] + b"\r\n" for at in range(0, len(text), length))


def attached(
    content: bytes,
    name: str,
    *,
    body: bytes = b"",
    text: bytes = b"Hello\r\n",
    before: bytes = b"",
    after: bytes = b"\r\n--abc--\r\n",
    disposition: bytes = b"",
    encoding: bytes = b"Content-Transfer-Encoding: base64\r\n",
) -> bytes:
    file_name = name.encode()
    disposition = disposition or b'attachment; filename="%b"' % file_name
    return (
        HEAD
        + b"Content-Type: multipart/mixed; boundary=abc\r\n\r\n%b--abc\r\n\r\n%b\r\n" % (before, text)
        + b'--abc\r\nContent-Type: application/octet-stream; name="%b"\r\n' % file_name
        + b"%bContent-Disposition: %b\r\n\r\n" % (encoding, disposition)
        + (body or encoded(content))
        + after
    )


def uuencoded(content: bytes, name: str) -> bytes:
    return codecs.encode(content, "uu").replace(b"<data>", name.encode())


AMBIGUITIES = {
    "no end": lambda content, name: attached(content, name, after=b""),
    "footer": lambda content, name: attached(content, name, after=b"\r\n--abc--\r\n\n-- \nscanned by example\n"),
    "footer of a list": lambda content, name: attached(
        content, name, after=b"\r\n--abc--\r\n\r\n--\r\nList\r\n" + FOOTER
    ),
    "unquoted name": lambda content, name: attached(
        content, name, disposition=b"attachment; filename=the " + name.encode()
    ),
    "quoted mail": lambda content, name: attached(
        content, name, text=b"Hi,\r\n\r\nContent-Type: text/plain\r\n\r\nWhere?\r\n"
    ),
    "footer behind Base64": lambda content, name: (
        HEAD
        + b'Content-Type: application/octet-stream; name="%b"\r\n' % name.encode()
        + b"Content-Transfer-Encoding: base64\r\n\r\n"
        + encoded(content)
        + FOOTER
    ),
    "line ends": lambda content, name: attached(content, name, body=encoded(content, b"\n")),
    "NUL": lambda content, name: attached(content, name, text=b"a\0b\r\n"),
    "spaces": lambda content, name: attached(content, name, body=encoded(content, b" \r\n")),
    "lines of 75 characters": lambda content, name: attached(content, name, body=in_lines(content, 75)),
    "preamble": lambda content, name: attached(content, name, before=b"--\r\nold\r\n"),
    "forwarded": lambda content, name: attached(attached(content, name, after=b""), "mail.eml"),
    "mailbox": lambda content, name: attached(b"From a Thu Nov 19 03:00:00 2026\n" + attached(content, name), "a.mbox"),
    "uuencode": lambda content, name: HEAD + b"\r\nHello\r\n\r\n" + uuencoded(content, name) + b"\r\nBye\r\n",
}


def decided(raw: bytes) -> tuple[str, set[str]]:
    found = inspect(raw, Limits())
    assert not found.limits
    return DecisionTable(Decisions()).decide(found.tags).decision.value, found.tags


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("ambiguity", AMBIGUITIES)
def test_a_whole_archive_in_an_ambiguous_mail_counted_as_damaged(ambiguity: str, name: str) -> None:
    """Some of the programs that read such a mail find only pieces of it."""
    done, found = decided(AMBIGUITIES[ambiguity](WHOLE[name], name))
    assert done == "deliver" and not {"mime:broken-archive", "mime:unopened-archive"} & found


ODD_LINES = {
    f"{line.decode()} {at}": lambda content, name, line=line, at=at: attached(
        content, name, body=b"\r\n".join([*(lines := encoded(content).split(b"\r\n"))[:at], line, *lines[at:]])
    )
    for line in (b"=", b"A", b"AB", b"ABC", b"!!!!", b"AAA=", b"--x")
    for at in (0, 1, 2)
}
DISPUTED = {
    "space before the colon": lambda content, name: attached(
        content, name, encoding=b"Content-Transfer-Encoding : base64\r\n"
    ),
    "comment": lambda content, name: attached(content, name, encoding=b"Content-Transfer-Encoding: (x) base64\r\n"),
    "in the preamble": lambda content, name: attached(
        WHOLE["report.zip"],
        "report.zip",
        before=b"--x\r\nContent-Type: application/zip; name=%b\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        % name.encode()
        + encoded(content),
    ),
    "encoded text": lambda content, name: attached(encoded(content), f"{name}.b64"),
}
HIDDEN = AMBIGUITIES | ODD_LINES | DISPUTED


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("ambiguity", HIDDEN)
def test_a_damaged_archive_in_an_ambiguous_mail_is_held(ambiguity: str, name: str) -> None:
    assert decided(HIDDEN[ambiguity](DAMAGED[name], name))[0] == "quarantine"


def tarred(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


KEY = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(NOISE[:800]) + b"-----END CERTIFICATE-----\n"
NOTE = b"See the page.\nContent-Type: text/plain is what the server sends.\n"


@pytest.mark.parametrize("files", [{"a.pem": KEY}, {"a.txt": NOTE}, {"a.eml": attached(b"a" * 600, "a.bin"), "b": KEY}])
def test_a_tar_file_with_a_certificate_or_a_mail_counted_as_damaged(files: dict[str, bytes]) -> None:
    """What looks like an encoded file or a part in it does not end at the end of a file."""
    content = tarred(**files)
    for name, form in (("a.tar", content), ("a.tgz", gzip.compress(content)), ("a.zip", zipped(("a.tar", content)))):
        assert not {"mime:broken-archive", "mime:broken-container"} & tags(form, name)


@pytest.mark.parametrize("beginning", [b"AC1015\0\0\0\0", b"AutoCAD Binary DXF\r\n\x1a\0", b"SQLite format 3\0"])
def test_pieces_of_an_archive_in_a_drawing_or_a_database_counted_as_a_damaged_one(beginning: bytes) -> None:
    """AutoCAD keeps materials in a zip file, in chunks of 127 bytes, each with its number and length."""
    archive = zipped(*((f"fbx/material-{number:08}/core.xml", b"<core/>") for number in range(40)))
    chunks = (archive[at : at + 127] for at in range(0, len(archive), 127))
    content = beginning + bytes(500) + b"".join(b"6\x01" + bytes([len(chunk)]) + chunk for chunk in chunks) + bytes(99)
    assert not {"mime:broken-archive", "mime:deceptive-name"} & tags(content, "plan.dwg")
    assert "mime:broken-archive" in tags(content, "plan.zip")


FAILED = b"\r\nI was not able to deliver your message.\r\n\r\n--- Below this line is a copy of the message.\r\n\r\n"
REPORT = (
    b"Content-Type: multipart/report; report-type=delivery-status; boundary=xyz\r\n\r\n--xyz\r\n\r\nundeliverable\r\n"
)
BOUNCES = {
    "whole": lambda mail: HEAD + FAILED + mail,
    "cut off": lambda mail: HEAD + FAILED + mail[:9001] + b"\r\n\r\n--- Rest of message truncated.\r\n",
    "attached": lambda mail: (
        HEAD + REPORT + b"--xyz\r\nContent-Type: message/rfc822\r\n\r\n" + mail + b"\r\n--xyz--\r\n"
    ),
    "attached and cut off": lambda mail: (
        HEAD + REPORT + b"--xyz\r\nContent-Type: message/rfc822\r\n\r\n" + mail[:9001] + b"\r\n--xyz--\r\n"
    ),
    "quoted": lambda mail: HEAD + b"\r\nI got only this:\r\n\r\n" + mail[:9001].replace(b"\r\n", b"\r\n> "),
}
ORIGINALS = {
    "a.zip": zipped(("a.bin", NOISE)),
    "a.gz": gzip.compress(NOISE),
    "a.tar": tarred(a=NOISE),
    "a.tar.gz": gzip.compress(tarred(a=NOISE)),
}


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("bounce", BOUNCES)
def test_bounces_with_a_part_of_an_archive_were_held(bounce: str, name: str) -> None:
    assert decided(BOUNCES[bounce](attached(ORIGINALS[name], name)))[0] == "deliver"


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_archive_in_an_attached_mail_is_held(name: str) -> None:
    assert decided(BOUNCES["attached"](attached(DAMAGED[name], name)))[0] == "quarantine"


def test_a_document_with_pieces_of_an_archive_in_it_counted_as_damaged() -> None:
    """The sectors of a file in an OLE file need not be adjacent."""
    archive = zipped(("a.bin", NOISE))
    content = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504) + archive[:4096] + b"\xff" * 512 + archive[4096:]
    assert "mime:broken-archive" not in tags(content, "a.msg")
    assert decision(content, "a.zip") != "deliver"


@pytest.mark.parametrize("line_end", ["&#xA;", "&#10;", "&#13;&#10;"])
def test_word_documents_with_drawings_in_base64_were_held(line_end: str) -> None:
    """Each drawing is an archive in an attribute. Its first line was read as another one, which is cut off."""
    drawing = zipped(("[Content_Types].xml", b"<Types/>"), ("drs/shapexml.xml", NOISE[:2000]))
    lines = base64.encodebytes(drawing).decode().rstrip("\n").replace("\n", line_end)
    text = f'<?xml version="1.0"?><w:document><w:t>location</w:t><v:shape o:gfxdata="{lines}"/></w:document>'
    document = zipped(("[Content_Types].xml", b"<Types/>"), ("word/document.xml", text.encode()))
    assert tags(document, "a.docx") == set()
    evil = zipped(("[Content_Types].xml", b"<Types/>"), ("evil.txt", TEXT))
    text = text.replace(lines, base64.encodebytes(evil).decode().rstrip("\n").replace("\n", line_end))
    assert "malware:eicar" in tags(zipped(("word/document.xml", text.encode())), "a.docx")
