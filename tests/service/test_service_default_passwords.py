"""Encrypted documents that Office opens without asking for a password were delivered unread."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from bridge.service.analysis.content import default_password
from bridge.service.analysis.content.unpacking import Budget
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.service import encrypted_documents
from tests.service.encrypted_documents import agile, standard, workbook, workbook_in_xor
from tests.service.service_kit import attached
from tests.service.test_service_document_attacks import score, template
from tests.service.test_service_documents import ole, tags

EXCEL, POWERPOINT, OTHER = "VelvetSweatshop", "/01Hannes Ruescher/01", "secret"
DOCUMENT = template("https://a.example/t.dotm") + bytes(9000)
EXEC = b"\x42\x01\x6e\x00"
RECORDS = [
    (0x809, b"\0\6\5\0" + bytes(12)),
    (0x85, bytes(4) + b"\0\x01\x01\0M"),
    (0x18, b"\x20\0" + bytes(13) + b"\x01" + bytes(8)),
    (0x0A, b""),
    (0x809, b"\0\6\x40\0" + bytes(12)),
    (0x06, bytes(2000) + EXEC),
    (0x0A, b""),
]


@pytest.mark.parametrize("password", [EXCEL, POWERPOINT])
@pytest.mark.parametrize("write", [agile, standard])
def test_a_document_with_a_password_that_office_tries_was_not_read(write, password) -> None:  # type: ignore[no-untyped-def]
    assert "office:remote-template" in tags(write(DOCUMENT, password), "a.xlsx")


@pytest.mark.parametrize("write", [agile, standard])
def test_a_document_with_a_secret_password_is_encrypted(write) -> None:  # type: ignore[no-untyped-def]
    assert tags(write(DOCUMENT, OTHER), "a.xlsx") == {"document:encrypted"}


@pytest.mark.parametrize("is_new", [False, True], ids=["Excel 97", "Excel 2003"])
def test_macros_of_an_old_workbook_with_that_password_were_not_read(is_new: bool) -> None:
    """Excel 4 macros in a workbook that was encrypted with the password of Excel reached the recipient."""
    found = workbook(RECORDS, EXCEL, is_new=is_new)
    assert {"mime:macro", "office:auto-macro", "office:macro-runs-program"} <= tags(found, "a.xls")
    assert "document:encrypted" not in tags(found, "a.xls")
    assert score(found, "a.xls") >= 8
    assert tags(workbook(RECORDS, OTHER, is_new=is_new), "a.xls") == {"document:encrypted"}


@pytest.mark.parametrize("is_old", [False, True], ids=["Excel 97", "Excel 95"])
def test_macros_of_an_old_workbook_in_xor_were_not_read(is_old: bool) -> None:
    """Excel 4 macros in a workbook that was obfuscated with the password of Excel reached the recipient."""
    found = workbook_in_xor(RECORDS, is_old=is_old)
    assert {"mime:macro", "office:auto-macro", "office:macro-runs-program"} <= tags(found, "a.xls")
    assert "document:encrypted" not in tags(found, "a.xls")
    assert score(found, "a.xls") >= 8


def test_a_workbook_in_xor_with_another_password_is_encrypted() -> None:
    assert tags(workbook_in_xor(RECORDS, verifier=0xFE47), "a.xls") == {"document:encrypted"}


def test_a_password_that_is_hashed_without_end_makes_the_mail_incomplete() -> None:
    """The document says how often: ten million rounds would take ten seconds, and there may be many documents."""
    document = agile(b"x", EXCEL, spins=1).replace(b'spinCount="1"', b'spinCount="9999999"')
    assert inspect(attached(document, "a.xlsx"), Limits()).limits == {"archive-work"}


@pytest.mark.parametrize("cut", (0, 5, 12, 40, 80, 200, 690))
def test_damaged_descriptions_do_not_raise(cut: int) -> None:
    info = b"\4\0\2\0" + struct.pack("<II", 4, 36) + bytes(cut)
    assert default_password.package(info, bytes(40), Budget()) == b""
    xml = b"\4\0\4\0\x40\0\0\0" + b'<keyData keyBits="x"/><p:encryptedKey saltValue="a" hashAlgorithm="SHA9"/>' * 9
    assert not default_password.package(xml[:cut], bytes(40), Budget())
    assert default_password.book(struct.pack("<HH", 0x2F, cut) + b"\1\0\2\0\2\0" + bytes(cut), Budget()) == b""
    xor = struct.pack("<HHHHHH", 0x2F, 4, encrypted_documents.XOR_KEY, encrypted_documents.XOR_HASH, 0x85, 255)
    assert len(default_password.book(xor + bytes(cut), Budget())) == len(xor) + cut


@pytest.mark.parametrize("bits", ["34359738368", "9" * 30, "-8", "0", "129"])
def test_the_size_of_a_key_was_the_senders(bits: str) -> None:
    """Gigabytes were allocated for it."""
    document = agile(b"x", EXCEL, spins=1)
    for written in (b'keyBits="256"', b'keyBits="128"'):
        document = document.replace(written, b'keyBits="%b"' % bits.encode())
    assert bits.encode() in document and tags(document, "a.xlsx") == {"document:encrypted"}


def described(change: Callable[[bytes], bytes], password: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """An encrypted document whose description is written in another way."""

    def changed(streams: dict[str, bytes]) -> bytes:
        info = streams["EncryptionInfo"]
        return ole(streams | {"EncryptionInfo": info[:8] + change(info[8:])})

    monkeypatch.setattr(encrypted_documents, "ole", changed)
    return agile(DOCUMENT, password)


OTHER_KEY = b'<keyEncryptor><c:encryptedKey encryptedKeyValue="AAAA" X509Certificate="AAAA" certVerifier="AAAA"/>'
DESCRIPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "a line end after the name": lambda xml: xml.replace(b"encryptedKey ", b"encryptedKey\n"),
    "a tab after the name": lambda xml: xml.replace(b"encryptedKey ", b"encryptedKey\t"),
    "ten spaces before a value": lambda xml: xml.replace(b"spinCount=", b"spinCount" + b" " * 10 + b"="),
    "single quotes": lambda xml: xml.replace(b'"', b"'"),
    "a comment before it": lambda xml: b"<?xml version='1.0'?><!--encryptedKey -->" + xml,
    "a comment behind it": lambda xml: xml.replace(b"</keyEncryptor>", b"</keyEncryptor><!-- spinCount='1' -->"),
    "a reference": lambda xml: xml.replace(b'"1000"', b'"&#49;000"'),
    "an entity": lambda xml: b'<!DOCTYPE a [<!ENTITY e "100">]>' + xml.replace(b'"1000"', b'"&e;0"'),
    "UTF-16": lambda xml: xml.decode().encode("utf-16"),
    "UTF-16, the other order": lambda xml: b"\xfe\xff" + xml.decode().encode("utf-16-be"),
    "Shift_JIS": lambda xml: b"<?xml version='1.0' encoding='shift_jis'?>" + xml,
    "a long prefix with a hyphen": lambda xml: xml.replace(b"<p:", b"<" + b"p-" * 50 + b":"),
    "a key of a certificate first": lambda xml: xml.replace(
        b"<keyEncryptor>", OTHER_KEY + b"</keyEncryptor><keyEncryptor>"
    ),
    "another description first": lambda xml: xml.replace(
        b"<keyData ", b'<keyData keyBits="128" hashAlgorithm="SHA1" saltValue="AAAA"/><keyData '
    ),
}


@pytest.mark.parametrize("kind", DESCRIPTIONS)
def test_a_description_written_in_another_way_hid_the_document(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is XML, and was read with patterns: after one other white space, Excel opened what we called encrypted."""
    assert "office:remote-template" in tags(described(DESCRIPTIONS[kind], EXCEL, monkeypatch), "a.xlsx")
    assert tags(described(DESCRIPTIONS[kind], OTHER, monkeypatch), "a.xlsx") == {"document:encrypted"}


def test_a_document_that_only_a_certificate_opens_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    def only(xml: bytes) -> bytes:
        return xml[: xml.index(b"<keyEncryptor>")] + OTHER_KEY + b"</keyEncryptor></keyEncryptors></encryption>"

    assert tags(described(only, EXCEL, monkeypatch), "a.xlsx") == {"document:encrypted"}


@pytest.mark.parametrize(
    "xml", [b"", b"<a/>", b'<!DOCTYPE a [<!ENTITY a "1"><!ENTITY b "&a;">]><keyData/>', b"\xff" * 9]
)
def test_a_description_that_cannot_be_read_is_not_a_password(xml: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tags(described(lambda _: xml, EXCEL, monkeypatch), "a.xlsx") == {"document:not-read"}
