"""The source of a macro was found only if it began with the usual word; and what is compiled was not looked at."""

from __future__ import annotations

import struct

import pytest

from bridge.service.analysis.content.unpacking import Budget
from bridge.service.analysis.content.vba import sources
from tests.service.service_kit import zipped
from tests.service.test_service_document_attacks import score
from tests.service.test_service_documents import MACRO, ole, tags, vba

ALL = {"mime:macro", "office:auto-macro", "office:macro-runs-program"}
BODY = b'Sub AutoOpen()\r\nCreateObject("WScript.Shell").Run "calc"\r\nEnd Sub\r\n'
HEAD = b'Attribute VB_Name = "M"\r\n'
HARMLESS = HEAD + b"Sub Add()\r\nEnd Sub\r\n"
COMPILED = b"\x01\x16\x03\0" + bytes(40)
PROGRAM = b"\xb9\0\x0d\0WScript.Shell\0"  # LitStr, as it is compiled


def listed(offset: int, name: str = "M", *, version: bool = True) -> bytes:
    """The directory of a project with one module (MS-OVBA 2.3.4.2)."""
    records = [(0x01, struct.pack("<I", 3)), (0x19, name.encode()), (0x1A, name.encode())]
    records += [(0x32, name.encode("utf-16-le")), (0x31, struct.pack("<I", offset)), (0x21, b""), (0x2B, b"")]
    out = b"".join(struct.pack("<HI", kind, len(data)) + data for kind, data in records[:1])
    out += struct.pack("<HI", 0x09, 4) + bytes(6) if version else b""
    return vba(out + b"".join(struct.pack("<HI", kind, len(data)) + data for kind, data in records[1:]))


def copied(source: bytes) -> bytes:
    """Compressed so that the first eight bytes have a copy: `aaaa` is one character and three more."""
    body = bytes((2,)) + b"a" + struct.pack("<H", 0) + source[4:10]
    body += b"".join(b"\0" + source[at : at + 8] for at in range(10, len(source), 8))
    return b"\x01" + struct.pack("<H", (len(body) - 1) | 0xB000) + body


BEGINNINGS = {
    "small letters": HEAD.lower() + BODY,
    "a line end": b"\r\n" + HEAD + BODY,
    "a comment": b"' x\r\n" + HEAD + BODY,
    "white space": b"\t \t \t \t \t" + HEAD + BODY,
    "no attributes": BODY,
    "a declaration": b"Dim a As String\r\n" + BODY,
}


@pytest.mark.parametrize("kind", BEGINNINGS)
@pytest.mark.parametrize("is_listed", [False, True])
def test_a_source_with_another_beginning_was_not_read(kind: str, is_listed: bool) -> None:
    streams = {"M": COMPILED + vba(BEGINNINGS[kind])} | ({"dir": listed(len(COMPILED))} if is_listed else {})
    for document, name in ((ole(streams), "a.doc"), (zipped(("word/vbaProject.bin", ole(streams))), "a.docm")):
        assert tags(document, name) >= ALL
        assert score(document, name) >= 8


@pytest.mark.parametrize("offset", [0, 44, 5000])
def test_a_source_was_not_read_where_the_directory_says(offset: int) -> None:
    """It begins with what no source begins with, and its first characters are a copy."""
    source = b"aaaa=1\r\n" + BODY
    stream = bytes(offset) + copied(source)
    assert list(sources(stream, Budget(), {offset})) == [source]
    assert tags(ole({"M": stream, "dir": listed(offset)}), "a.doc") >= ALL
    assert tags(ole({"M": stream, "DIR": listed(offset, "m", version=False)}), "a.doc") >= ALL


def test_a_source_within_what_looks_like_another_was_not_read() -> None:
    decoy = b"\x01\xff\xbf\0Attribut"
    assert tags(ole({"M": decoy + vba(HEAD + BODY)}), "a.doc") >= ALL


REPLACED = {"another source": HARMLESS, "attributes": HEAD, "a comment": HEAD + b"'" * 80}


@pytest.mark.parametrize("kind", REPLACED)
def test_a_macro_whose_source_was_replaced_was_not_seen(kind: str) -> None:
    """Office of the version that compiled it runs what is compiled."""
    document = ole({"M": COMPILED + PROGRAM + vba(REPLACED[kind])})
    assert tags(document, "a.doc") >= {"mime:macro", "office:macro-runs-program"}
    assert score(document, "a.doc") >= 8


@pytest.mark.parametrize("rest", [b"", bytes(200), b"\x01\0\0" + bytes(99)])
def test_a_macro_without_its_source_was_not_seen(rest: bytes) -> None:
    document = ole({"M": COMPILED + rest, "dir": listed(len(COMPILED))})
    assert tags(document, "a.doc") == {"mime:macro", "document:not-read"}
    assert score(document, "a.doc") >= 8


def test_ordinary_macros_have_no_more_tags() -> None:
    """What is compiled is in the source; and another stream may have the name of a module."""
    harmless = {"M": COMPILED + vba(HARMLESS), "dir": listed(len(COMPILED))}
    assert tags(ole(harmless), "a.doc") == {"mime:macro"}
    assert tags(ole(harmless | {"PROJECT": b"Module=M\r\n", "_VBA_PROJECT": b"Shell WScript.Shell"}), "a.doc") == {
        "mime:macro"
    }
    data = {"Data": COMPILED + vba(HARMLESS), "data": bytes(9000), "dir": listed(len(COMPILED), "Data")}
    assert tags(ole(data), "a.doc") == {"mime:macro"}
    known = HEAD + b'Sub Add()\r\nCreateObject("wscript.shell")\r\nEnd Sub\r\n'
    assert tags(ole({"M": COMPILED + PROGRAM + vba(known)}), "a.doc") == {"mime:macro", "office:macro-runs-program"}
    assert tags(ole({"WordDocument": bytes(99) + b"powershell", "dir": b"\x01dir"}), "a.doc") == set()
    assert tags(ole({"Data": b"\x01\x20\xb0\0This is a text that no macro is." + bytes(60)}), "a.doc") == set()


@pytest.mark.parametrize("cut", range(1, 90, 11))
def test_damaged_projects_do_not_raise(cut: int) -> None:
    directory, module = listed(44), COMPILED + vba(MACRO)
    for streams in ({"dir": directory[:-cut], "M": module}, {"dir": directory[:cut] + b"\xff" * 9, "M": module[:-cut]}):
        assert "mime:macro" in tags(ole(streams), "a.doc")
