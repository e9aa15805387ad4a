"""Files in Intel HEX, which 7-Zip recognises and decodes whatever their name is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.long_cases import few
from tests.processor_time import fair_cpu_s
from tests.service.container_kit import extracted
from tests.service.service_kit import EICAR
from tests.service.test_service_documents import tags


def record(address: int, data: bytes, kind: int = 0) -> bytes:
    whole = struct.pack(">BHB", len(data), address, kind) + data
    return b":" + whole.hex().upper().encode() + b"%02X\r\n" % (-sum(whole) & 0xFF)


def intel_hex(data: bytes, width: int = 4) -> bytes:
    lines = [record(at, data[at : at + width]) for at in range(0, len(data), width)]
    return b"".join(lines) + record(0, b"", 1)


HEX = {
    "capitals": intel_hex(EICAR),
    "small letters": intel_hex(EICAR).lower(),
    "no line ends": intel_hex(EICAR).replace(b"\r\n", b""),
}


@pytest.mark.parametrize("name", ["a.bin", "a.txt", "a.doc"])
@pytest.mark.parametrize("form", HEX)
def test_a_file_in_intel_hex_was_not_decoded(form: str, name: str, tmp_path: Path) -> None:
    """7-Zip recognises it under any name."""
    assert "malware:eicar" in tags(HEX[form], name)
    assert EICAR in extracted("7z", HEX[form], name, tmp_path).values()


def test_each_address_begins_another_file(tmp_path: Path) -> None:
    content = record(0, b"harmless") + record(0x100, EICAR) + record(0, b"", 1)
    assert "malware:eicar" in tags(content, "a.hex")
    assert sorted(extracted("7z", content, "a.hex", tmp_path).values()) == sorted([b"harmless", EICAR])


@pytest.mark.parametrize("text", [b":)\r\nhello", b":00000001FE\r\n", b":0\r\n", b": 1\r\n"])
def test_a_colon_is_no_intel_hex(text: bytes) -> None:
    assert tags(text, "a.txt") == set()


@pytest.mark.parametrize("step", few([1, 2], 1))
def test_many_records_take_little_time(step: int) -> None:
    """Each of them may be a file."""
    content = b"".join(record(at * step & 0xFFFF, b"a") for at in range(300_000))
    assert fair_cpu_s(lambda: tags(content, "a.hex")) < 5
