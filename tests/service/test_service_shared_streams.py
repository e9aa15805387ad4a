"""Old Office documents whose entries share one chain of sectors, and short pieces that take long to search."""

from __future__ import annotations

import struct

import pytest

from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.service.service_kit import attached, zipped
from tests.service.test_service_documents import entry, ole, vba

_NONE, _END, _OF_TABLE = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_MONIKER = bytes.fromhex("e0c9ea79f9bace118c8200aa004ba90b")


def shared(name: str, count: int, content: bytes) -> bytes:
    """An OLE2 file: `count` entries have the same content."""
    content += bytes(-len(content) % 512)
    sectors, directory, table = len(content) // 512, -(-(count + 1) * 128 // 512), 1
    while table * 128 < table + directory + sectors:
        table += 1
    first = table + directory
    numbers = [_OF_TABLE] * table + [*range(table + 1, first), _END] + [*range(first + 1, first + sectors), _END]
    entries = entry("Root Entry", 5, _END, 0) + entry(name, 2, first, len(content)) * count
    header = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(16) + struct.pack("<HHHHH", 62, 3, 0xFFFE, 9, 6) + bytes(10)
    header += struct.pack("<IIIIIIII", table, table, 0, 4096, _END, 0, _END, 0)
    header += struct.pack("<109I", *range(table), *[_NONE] * (109 - table))
    sector_table = struct.pack(f"<{len(numbers)}I", *numbers).ljust(table * 512, b"\xff")
    return header + sector_table + entries.ljust(directory * 512, b"\0") + content


COSTLY_STREAMS = {
    "beginnings of macros": ("a", b"\x01abAttribut"),
    "words of macros": ("a", b"Attribut"),
    "bytes of 1": ("a", b"\x01"),
    "links": ("a", b"http://abcd "),
    "fields": ("WordDocument", b"\x13"),
    "fields behind spaces": ("WordDocument", b"\x13\0         "),
    "tables of strings": ("1Table", b"\xff\xff\x12\0\0\0"),
    "paths of percent signs": ("1Table", b"\xff\xff\x12\0\0\0\0\0\0\x08" + b"%\0" * 2048),
    "objects on slides": ("PowerPoint Document", b"\x10\0\x11\x10"),
    "zeros on slides": ("PowerPoint Document", b"\0"),
    "names of files in a mail": ("__substg1.0_3707001F", b"\0\xd8"),
    "addresses of objects": ("\x01Ole", _MONIKER + b"http://abcd " * 200),
    "equations": ("Equation Native", b"\x1c\0" + b"a" * 26 + b"\x02" + (b"\x08" * 42 + b"\0") * 90_000),
}


@pytest.mark.parametrize("kind", few(COSTLY_STREAMS, 2))
def test_entries_that_share_a_chain_kept_a_process_busy(kind: str) -> None:
    """22 KB as a zip file took 5 to more than 200 seconds: each byte counted once, whatever was searched for in it."""
    name, piece = COSTLY_STREAMS[kind]
    content = shared(name, 60, piece * (4 * 1024 * 1024 // len(piece)))
    found: list[Inspection] = []
    raw = attached(zipped(("a.doc", content)), "a.zip")
    assert fair_cpu_s(lambda: found.append(inspect(raw, Limits()))) < 5, "two seconds on a quiet machine"
    assert found[0].limits == {"archive-work"}


def test_entries_that_share_a_short_chain_are_read() -> None:
    found = inspect(attached(shared("a", 3, b"https://evil.example/x " * 300), "a.doc"), Limits())
    assert found.hosts == {"evil.example"}
    assert not found.limits


def test_a_large_and_ordinary_old_document_is_read_to_its_end() -> None:
    streams = {
        "WordDocument": b"\x13 PAGE \x14 1 \x15 A paragraph of text. " * 200_000,
        "1Table": b"\xff\xff\0\0" * 500_000,
        "Data": bytes(range(256)) * 60_000,
        "PowerPoint Document": bytes(range(256)) * 20_000,
    }
    for name, content in streams.items():
        assert not inspect(
            attached(zipped(("a.doc", shared(name, 1, content[: 6 * 1024 * 1024]))), "a.zip"), Limits()
        ).limits


@pytest.mark.parametrize("before", [b"", b"Attribut", b"\x01\0\0Attribu", b"\x01abAttribut", b"\x01" * 50])
def test_macros_behind_what_looks_like_them_are_found(before: bytes) -> None:
    source = vba(b'Attribute VB_Name = "a"\r\nSub AutoOpen()\r\nShell "x"\r\nEnd Sub\r\n')
    found = inspect(attached(ole({"Module1": before + bytes(100) + source}), "a.doc"), Limits())
    assert {"office:auto-macro", "office:macro-runs-program"} <= found.tags
