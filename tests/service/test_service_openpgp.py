"""OpenPGP messages within a mail that are not encrypted."""

from __future__ import annotations

import base64
import bz2
import zlib
from pathlib import Path

import pytest

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.service.container_kit import MESSAGE, SCRIPT, deflated, extracted, tags
from tests.service.service_kit import EICAR, mail, zipped


def packet(tag: int, body: bytes) -> bytes:
    return bytes([0xC0 | tag, 255]) + len(body).to_bytes(4, "big") + body


LITERAL = packet(11, b"b\x05a.eml" + bytes(4) + MESSAGE)
PGP = {
    "zlib": packet(8, b"\2" + zlib.compress(LITERAL)),
    "deflate": packet(8, b"\1" + deflated(LITERAL)),
    "bzip2 in zlib": packet(8, b"\2" + zlib.compress(packet(8, b"\3" + bz2.compress(LITERAL)))),
    "old packets": b"\xa3\2" + zlib.compress(b"\xae" + len(LITERAL[6:]).to_bytes(4, "big") + LITERAL[6:]),
    "parts": b"\xc8\xe0\2" + b"".join(b"\xe0" + bytes([byte]) for byte in zlib.compress(LITERAL)) + b"\0",
    "signed": packet(4, bytes(13)) + LITERAL + packet(2, bytes(99)),
}


def armoured(content: bytes) -> bytes:
    lines = (
        b"-----BEGIN PGP MESSAGE-----\nVersion: 1\n\n"
        + base64.encodebytes(content)
        + b"=abcd\n-----END PGP MESSAGE-----\n"
    )
    return lines.replace(b"\n", b"\r\n")


@pytest.mark.parametrize("name", PGP)
def test_an_openpgp_message_that_is_not_encrypted_was_not_opened(name: str) -> None:
    """`gpg --store` writes it, and programs show it without a key."""
    assert "malware:eicar" in tags(PGP[name], "a.gpg")
    assert "malware:eicar" in inspect(mail(armoured(PGP[name])), Limits()).tags
    kind = 'multipart/encrypted; protocol="application/pgp-encrypted"; boundary=b'
    body = b"--b\r\nContent-Type: application/pgp-encrypted\r\n\r\nVersion: 1\r\n\r\n--b\r\n"
    body += b"Content-Type: application/octet-stream\r\n\r\n" + armoured(PGP[name]) + b"\r\n--b--\r\n"
    assert "malware:eicar" in inspect(mail(body, Content_Type=kind), Limits()).tags


def armour(kind: bytes, text: bytes) -> bytes:
    return b"-----BEGIN PGP " + kind + b"-----\n\n" + text + b"-----END PGP " + kind + b"-----\n"


SMALL = packet(8, b"\1" + deflated(packet(11, b"b\x05a.txt" + bytes(4) + EICAR)))
TEXT = base64.encodebytes(SMALL)
ARMOURS = {
    "an armoured file": armour(b"ARMORED FILE", TEXT),
    "called a signature": armour(b"SIGNATURE", TEXT),
    "called a key": armour(b"PUBLIC KEY BLOCK", TEXT),
    "called a secret key": armour(b"PRIVATE KEY BLOCK", TEXT),
    "dashes in a line": armour(b"MESSAGE", TEXT[:8] + b"-----" + TEXT[8:]),
    "a line of dashes": armour(b"MESSAGE", TEXT[:8] + b"\n-----\n" + TEXT[8:]),
    "a first line within": armour(  # whose eight letters are the last six bytes of a packet
        b"MESSAGE",
        base64.b64encode(packet(61, bytes(15))[:15]) + b"-----BEGIN PGP -----" + base64.b64encode(SMALL) + b"\n",
    ),
    "after a packet of a private type": packet(61, b"abcde") + SMALL,
    "after many packets": packet(61, b"abcde") * 2000 + SMALL,
}


@pytest.mark.parametrize("name", ARMOURS)
def test_an_openpgp_message_in_disguise_was_not_opened(name: str, tmp_path: Path) -> None:
    """gpg opens it, whatever it is called, and passes over what does not belong there."""
    assert EICAR in extracted("gpg", ARMOURS[name], "a.bin", tmp_path).values()
    assert "malware:eicar" in tags(ARMOURS[name], "a.bin")
    assert "malware:eicar" in tags(zipped(("a.bin", ARMOURS[name])), "a.zip")


def test_an_openpgp_message_far_down_in_a_text_was_not_opened() -> None:
    """Only long lines of Base64 were noticed, or a message in the first lines of the text."""
    short = b"\r\n".join(TEXT.replace(b"\n", b"")[at : at + 20] for at in range(0, len(TEXT), 20))
    text = b"This is a text.\r\n" * 100 + b"-----BEGIN PGP MESSAGE-----\r\n\r\n" + short + b"\r\n"
    assert "malware:eicar" in inspect(mail(text), Limits()).tags


def test_many_first_lines_of_openpgp_messages_are_bounded() -> None:
    assert "limit:archive-work" in tags(b"-----BEGIN PGP \n" * 60_000, "a.asc")


def test_the_name_of_an_openpgp_file_without_its_suffix_was_not_checked() -> None:
    assert "mime:executable" in tags(packet(11, b"b\0" + bytes(4) + SCRIPT), "invoice.js.gpg")


@pytest.mark.parametrize(
    "junk", [b"", b"\xc8", b"\xc8\xff", b"\xcb\x02b\xff", b"\x80" * 40, b"\xff" * 40, b"\xa3\3junk"]
)
def test_an_openpgp_message_that_is_no_such_thing_does_no_harm(junk: bytes) -> None:
    assert tags(junk, "a.gpg") == set()


def test_deeply_nested_openpgp_data_is_a_limit() -> None:
    content = LITERAL
    for _ in range(20):
        content = packet(8, b"\0" + content)
    assert "limit:openpgp-depth" in tags(content, "a.gpg")
