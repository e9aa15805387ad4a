"""S/MIME within a mail, and other files in which a file is encoded."""

from __future__ import annotations

import base64
import binascii
import random
import shutil
import struct
import subprocess
import time
import zlib
from pathlib import Path

import pytest

from bridge.service.analysis.content import smime
from bridge.service.analysis.content.archives import Budget
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.service.container_kit import (
    DATA,
    MESSAGE,
    OCTETS,
    SCRIPT,
    SIGNED,
    SMIME,
    cms,
    element,
    signed_mail,
    tags,
    tarred,
    unending,
)
from tests.service.service_kit import EICAR, attached, zipped


def smime_tags(der: bytes, *kind: str) -> set[str]:
    found = inspect(signed_mail(der, *kind), Limits())
    return found.tags | {f"limit:{limit}" for limit in found.limits}


@pytest.mark.parametrize("name", SMIME)
def test_the_message_in_signed_data_was_searched_for_instead_of_read(name: str) -> None:
    """The first bytes that looked like a content counted, wherever they were."""
    assert "malware:eicar" in smime_tags(SMIME[name])


def test_signed_data_counts_whatever_it_is_called() -> None:
    """Some programs open it by its content, or as application/octet-stream with a name of its own."""
    assert "malware:eicar" in smime_tags(cms(OCTETS), "application/octet-stream; name=a.p7s")


def test_a_million_pieces_of_signed_data_were_cut_silently() -> None:
    """Only the first 100,000 were read, without a word."""
    pieces = b"\4\1 " * 300_000
    assert "malware:eicar" in smime_tags(cms(unending(0x24, pieces[:330_000] + OCTETS), put=unending))
    assert "limit:archive-work" in smime_tags(cms(unending(0x24, pieces * 4 + OCTETS), put=unending))


def test_encrypted_mail_is_not_taken_for_a_message() -> None:
    """Its content has the same form, in another place."""
    secret = element(0x30, DATA + element(0x30, DATA) + unending(0xA0, element(4, b"X" * 500)))
    enveloped = element(2, b"\0") + element(0x31, b"") + secret
    der = element(0x30, SIGNED + element(0xA0, element(0x30, enveloped)))
    assert list(smime.contents(der, Budget())) == []


def test_deeply_nested_signed_data_is_a_limit() -> None:
    der = OCTETS
    for _ in range(60):
        der = element(0x30, SIGNED + element(0xA0, der))
    assert "limit:smime-depth" in smime_tags(der)


PROGRAM = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + bytes(99)


def within_signed_data(content: bytes, times: int) -> bytes:
    for _ in range(times):
        content = cms(element(4, content))
    return content


@pytest.mark.parametrize("name", ["a.pdf.p7m.p7m", "a.pdf.p7m.tsd", "a.p7m", "smime.p7m", "a.bin"])
def test_a_program_that_was_signed_twice_was_not_seen(name: str) -> None:
    """Under a name that says so, the inner signed data was taken for a file of another kind."""
    assert "mime:executable" in tags(within_signed_data(PROGRAM, 2), name)


@pytest.mark.parametrize("name", ["a.pdf.p7m.p7m", "smime.p7m"])
def test_data_that_is_signed_hundreds_of_times_is_a_limit(name: str) -> None:
    assert "limit:smime-depth" in tags(within_signed_data(PROGRAM, 500), name)


@pytest.mark.parametrize("content", [PROGRAM, within_signed_data(PROGRAM, 1)])
def test_a_file_with_a_time_stamp_was_not_read(content: bytes) -> None:
    """RFC 5544: a version, the file, and the evidence."""
    stamp = element(0xA0, element(0x30, element(0x30, b"")))
    facts = element(0x30, element(2, b"\1") + element(4, content) + stamp)
    der = element(0x30, bytes.fromhex("060b2a864886f70d010910011f") + element(0xA0, facts))
    assert "mime:executable" in tags(der, "a.pdf.tsd")


def test_a_mail_with_a_signed_file_and_its_time_stamp_was_not_read() -> None:
    """As Italian signature programs save them."""
    head = b"Mime-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=q\r\n\r\n--q\r\n"
    part = b"Content-Type: application/pkcs7-mime\r\nContent-Transfer-Encoding: binary\r\n\r\n%b\r\n--q--\r\n"
    content = head + part % within_signed_data(PROGRAM, 1)
    assert "mime:executable" in tags(content, "a.pdf.m7m")


@pytest.mark.parametrize(
    "junk", [b"", b"\x30", b"\x30\x80", b"\x30\x84\xff\xff\xff\xff\x06", b"\x30\x80\x04\x80", b"\xff" * 9]
)
def test_signed_data_that_is_no_such_thing_does_no_harm(junk: bytes) -> None:
    assert smime_tags(junk) <= {"mime:broken-container"}


def test_openssl_shows_what_we_read(tmp_path: Path) -> None:
    """A message that openssl signed, in its own encodings."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    run = lambda *command: subprocess.run(["openssl", *command], cwd=tmp_path, check=True, capture_output=True)  # noqa: E731
    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "k", "-out", "c", "-days", "2", "-subj", "/CN=a")
    (tmp_path / "in").write_bytes(MESSAGE)
    for option in ("-nosmimecap", "-stream", "-noattr"):
        run("cms", "-sign", "-in", "in", "-signer", "c", "-inkey", "k", "-nodetach", "-binary", "-outform", "DER",
            "-out", "out", option)  # fmt: skip
        der = (tmp_path / "out").read_bytes()
        assert b"".join(smime.contents(der, Budget())) == MESSAGE
        assert "malware:eicar" in smime_tags(der)
    run("cms", "-encrypt", "-in", "in", "-outform", "DER", "-out", "out", "-stream", "c")
    assert list(smime.contents((tmp_path / "out").read_bytes(), Budget())) == []


ENCODED = b"begin 644 a.txt\n" + b"".join(
    binascii.b2a_uu(EICAR[at : at + 45]) for at in range(0, len(EICAR), 45)
) + b"`\nend\n"  # fmt: skip
PEM = b"-----BEGIN PKCS7-----\n" + base64.encodebytes(cms(OCTETS)) + b"-----END PKCS7-----\n"
CALENDAR = b"BEGIN:VCALENDAR\r\nATTACH;ENCODING=BASE64:" + base64.b64encode(EICAR) + b"\r\nEND:VCALENDAR\r\n"
IN_ARCHIVES = {
    "smime.p7m": cms(OCTETS),
    "unnamed": cms(OCTETS),
    "pem.p7m": PEM,
    "a.pem": PEM,
    "a.uue": ENCODED,
    "a.txt": ENCODED,
    "a.ics": CALENDAR,
}


@pytest.mark.parametrize("name", IN_ARCHIVES)
def test_a_file_in_an_archive_was_only_opened_if_it_was_an_archive(name: str) -> None:
    """The same file as an attachment was read."""
    assert "malware:eicar" in tags(IN_ARCHIVES[name], name)
    assert "malware:eicar" in tags(zipped((name, IN_ARCHIVES[name])), "a.zip")
    assert "malware:eicar" in tags(tarred((name, b"0", IN_ARCHIVES[name])), "a.tar")


@pytest.mark.parametrize(
    "key",
    [
        b"ATTACH;X-FILENAME=evil.js:data:application/octet-stream;base64,",
        b'ATTACH;VALUE=BINARY;ENCODING="BASE64";X-FILENAME=evil.js:',
        b"PHOTO;BASE64:",
        b"KEY:data:application/octet-stream;base64,",
    ],
)
def test_a_file_in_a_calendar_or_card_was_not_decoded(key: bytes) -> None:
    """There are more ways to say that it is encoded."""
    found = tags(b"BEGIN:VCALENDAR\r\n" + key + base64.b64encode(EICAR) + b"\r\nEND:VCALENDAR\r\n", "a.ics")
    assert "malware:eicar" in found
    assert ("mime:executable" in found) == (b"evil.js" in key)


def test_encoded_text_in_archives_is_bounded() -> None:
    """To read it in every way takes a second for each megabyte."""
    text = b"This is a text.\r\n" * 30_000 + ENCODED
    found = tags(zipped(*((f"{number}.txt", text) for number in range(9))), "a.zip")
    assert found & {"limit:archive-work", "limit:readings"}
    assert "malware:eicar" in tags(zipped(("a.txt", text * 3)), "a.zip")


def test_the_name_of_a_signed_file_was_not_checked() -> None:
    """Programs that verify it write it without the suffix."""
    content = cms(element(4, SCRIPT))
    assert "mime:executable" in tags(content, "invoice.js.p7m")
    assert "mime:executable" in tags(content, "invoice.js.p7m."), "Windows removes the dot at the end"
    assert "mime:executable" in tags(zipped(("invoice.js.P7M", content)), "a.zip")
    assert "mime:executable" not in tags(content, "invoice.txt.p7m")


def noise(size: int) -> bytes:
    return zlib.compress(random.Random(size).randbytes(size))


INVOICE = b'<?xml version="1.0"?>\r\n<p:Invoice xmlns:p="urn:a"><Text>One: two</Text>'
BASE64_LINES = base64.encodebytes(noise(90_000)).replace(b"\n", b"\r\n")
SIGNED_FILES = {
    "contract.pdf.p7m": b"%PDF-1.7\r\n%\xb5\xb5\r\n1 0 obj\r\n<</Length 1>>stream\r\n"
    + noise(900_000)
    + b"\r\nendstream",
    "contract.docx.p7m": zipped(("[Content_Types].xml", b"<Types/>"), ("word/document.xml", b"<a/>" + noise(90_000))),
    "photo.jpg.p7m": b"\xff\xd8\xff\xe0" + noise(300_000),
    "IT01234567890_00001.xml.p7m": INVOICE + b"<Line><Text>One: two</Text></Line>" * 9000 + b"</p:Invoice>",
    "IT01234567890_00002.xml.p7m": INVOICE + b"<Attachment>" + BASE64_LINES + b"</Attachment></p:Invoice>",
    "letter.txt.p7m": b"Good morning: this is a letter\r\n\r\nhttps://a.example/\r\n" * 50,
}


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/pkcs7-mime"])
@pytest.mark.parametrize("name", SIGNED_FILES)
def test_signed_documents_and_invoices_were_read_as_mails(name: str, kind: str) -> None:
    """In Italy, contracts and invoices are signed in this way. They were not delivered: a limit was reached."""
    start = time.process_time()
    found = inspect(attached(cms(element(4, SIGNED_FILES[name])), name, kind), Limits())
    assert not found.limits and found.tags <= {"mime:ambiguous:undeclared-parts"}
    assert time.process_time() - start < 10
    assert found.hosts == ({"a.example"} if name.startswith("letter") else set())


def test_a_signed_invoice_in_pieces_with_a_pdf_document_was_not_delivered() -> None:
    """`openssl cms -stream` writes pieces of 4 KiB; without its NULs, the text was read as a million elements."""
    lines = base64.encodebytes(b"%PDF-1.4\n" + noise(210_000)).replace(b"\n", b"\r\n")
    invoice = INVOICE + b"<FormatoAttachment>PDF</FormatoAttachment><Attachment>" + lines + b"</Attachment></p:Invoice>"
    pieces = b"".join(element(4, invoice[at : at + 4096]) for at in range(0, len(invoice), 4096))
    der = cms(unending(0x24, pieces), put=unending)
    for kind in ("application/pkcs7-mime", "application/octet-stream"):
        found = inspect(attached(der, "IT01234567890_00003.xml.p7m", kind), Limits())
        assert not found.limits and found.tags == {"mime:ambiguous:undeclared-parts"}
    assert "malware:eicar" in smime_tags(cms(unending(0x24, pieces + element(4, EICAR)), put=unending))


UUENCODED = b"\r\nbegin 644 eicar.com\r\n" + b"".join(
    binascii.b2a_uu(EICAR[at : at + 45]).replace(b"\n", b"\r\n") for at in range(0, len(EICAR), 45)
)
PARTS = b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\nContent-Transfer-Encoding: base64\r\n\r\n"
SIGNED_MAILS = {
    "a file in the text of a mail": b"Subject: x\r\n\r\nHello\r\n" + UUENCODED + b"`\r\nend\r\n",
    "fields after another beginning": b"%PDF-1.7\r\n" + PARTS + base64.b64encode(EICAR) + b"\r\n--b--\r\n",
    "fields with NULs": PARTS.replace(b"ent-T", b"ent\0-T") + base64.b64encode(EICAR) + b"\r\n--b--\r\n",
    "signed twice": cms(OCTETS),
    "an archive": zipped(("eicar.com", EICAR)),
    "Base64 alone": base64.encodebytes(zipped(("eicar.com", EICAR + bytes(500)))),
}


@pytest.mark.parametrize("form", SIGNED_MAILS)
def test_whatever_a_program_finds_in_signed_data_is_read(form: str) -> None:
    assert "malware:eicar" in smime_tags(cms(element(4, SIGNED_MAILS[form])))
    assert "malware:eicar" in tags(cms(element(4, SIGNED_MAILS[form])), "contract.pdf.p7m")
