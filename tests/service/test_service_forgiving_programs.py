"""What archive programs forgive: a damaged or unusual file that one of them opens all the same is read here or held.

Each program extracts its file first, if it is installed.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from tests.service.container_kit import decision, entry, extracted, local, tags, tarred, with_directory
from tests.service.service_kit import EICAR

TEXT = b"An invoice, and one more invoice.\r\n" * 3 + EICAR  # in which nothing is found before it is unpacked


# Deflate

ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)


class Bits:
    def __init__(self) -> None:
        self.value = self.count = 0

    def add(self, value: int, count: int) -> None:
        self.value |= value << self.count
        self.count += count

    def code(self, value: int, count: int) -> None:
        for place in reversed(range(count)):
            self.add(value >> place & 1, 1)

    def to_bytes(self) -> bytes:
        return self.value.to_bytes(-(-self.count // 8), "little")


def codes_of(lengths: list[int]) -> dict[int, tuple[int, int]]:
    found, code, before = {}, 0, 0
    for length, symbol in sorted((length, symbol) for symbol, length in enumerate(lengths) if length):
        code <<= length - before
        found[symbol] = code, length
        code, before = code + 1, length
    return found


def block(literals: list[int], distances: list[int], *, copies: bool = False, ends: bool = True) -> bytes:
    """A block with these lengths of codes: the text, perhaps after a copy of three bytes at distance 1."""
    bits, symbols, places = Bits(), codes_of(literals), codes_of(distances)
    bits.add(0b101, 3)
    for value, count in ((len(literals) - 257, 5), (len(distances) - 1, 5), (15, 4)):
        bits.add(value, count)
    own = [4] * 16 + [0] * 3
    for symbol in ORDER:
        bits.add(own[symbol], 3)
    for length in literals + distances:
        bits.code(*codes_of(own)[length])
    if copies:
        bits.code(*symbols[257])
        bits.code(*places[0])
    for symbol in [*TEXT, 256] if ends else TEXT:
        bits.code(*symbols[symbol])
    return bits.to_bytes()


COMPLETE = [8] * 255 + [9] * 2
FORGIVEN = {
    "288 symbols": (block(COMPLETE + [0] * 31, [0]), "7z", b""),
    "32 distances": (block(COMPLETE, [0] * 32), "unzip", b""),
    "symbols without a code": (block([8] * 128 + [9] * 129, [0]), "7z", b""),
    "distances without a code": (block(COMPLETE, [2, 2, 2]), "7z", b""),
    "a copy from before the beginning": (block([8] * 254 + [9] * 4, [1, 1], copies=True), "unzip", bytes(3)),
    "no end of the block": (block([8] * 256 + [0], [0], ends=False), "7z", b""),
}


@pytest.mark.parametrize("name", FORGIVEN)
def test_deflated_data_that_zlib_refuses_was_delivered(name: str, tmp_path: Path) -> None:
    """Other programs read it, some without a word."""
    data, program, before = FORGIVEN[name]
    content = before + TEXT
    facts = {"method": 8, "crc": zlib.crc32(content), "size": len(content)}
    archive = with_directory(local(b"a.txt", data, **facts), entry(b"a.txt", packed=len(data), **facts))
    assert decision(archive, "a.zip") != "deliver"
    assert decision(b"\x1f\x8b\x08" + bytes(7) + data + bytes(8), "a.gz") != "deliver"
    assert content in extracted(program, archive, "a.zip", tmp_path).values()


# Zip

STREAMS = {
    "bzip2": (12, bz2.compress(b"one " * 9) + bz2.compress(TEXT), "unar"),
    "xz": (95, lzma.compress(b"one " * 9) + lzma.compress(TEXT), "7z"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_only_the_first_of_several_streams_in_a_zip_member_was_read(name: str, tmp_path: Path) -> None:
    method, data, program = STREAMS[name]
    content = b"one " * 9 + TEXT
    facts = {"method": method, "crc": zlib.crc32(content), "size": len(content)}
    archive = with_directory(local(b"a.txt", data, **facts), entry(b"a.txt", packed=len(data), **facts))
    assert {"malware:eicar"} == tags(archive, "a.zip")
    assert content in extracted(program, archive, "a.zip", tmp_path).values()


# An archive behind another one that 7-Zip refuses

HARMLESS = b"harmless"
FACTS = {"method": 0, "crc": zlib.crc32(HARMLESS), "size": len(HARMLESS)}


def zip_behind(beginning: bytes, *entries: bytes) -> bytes:
    """A valid file in a zip file that begins with something else."""
    header, listed = local(b"a.txt", HARMLESS, **FACTS), entry(b"a.txt", packed=8, offset=len(beginning), **FACTS)
    return with_directory(beginning + header, *entries, listed)


def tar_with(at: int, value: bytes) -> bytes:
    header = bytearray(tarred(("a.txt", tarfile.REGTYPE, HARMLESS))[:1024])
    header[at : at + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


HIDDEN = gzip.compress(TEXT)
SHORT = gzip.compress(HARMLESS)
LONG = local(b"b.txt", HARMLESS, **FACTS)[:28] + b"\xff\x7f" + b"b.txt" + HARMLESS  # the length of its extra field
PADDED = b"\x08\0\0\xff\xff"  # an empty block, stored
UNKNOWN = local(b"b.txt", HARMLESS, **FACTS | {"method": 0x200})
REFUSED = {
    "an extra field that is too long": zip_behind(LONG + HIDDEN),
    "such a field, and the file is listed": zip_behind(LONG + HIDDEN, entry(b"b.txt", packed=8, **FACTS)),
    "a method that is unknown": zip_behind(UNKNOWN + HIDDEN, entry(b"b.txt", packed=8, **FACTS)),
    "the end of a directory": zip_behind(b"PK\5\6" + HIDDEN),
    "reserved flags of gzip": SHORT[:3] + b"\x20" + SHORT[4:] + lzma.compress(TEXT),
    "a bit that fills up a byte": SHORT[:10] + PADDED + SHORT[10:] + lzma.compress(TEXT),
    "the same after a name": SHORT[:3] + b"\x08" + SHORT[4:10] + b"a\0" + PADDED + SHORT[10:] + lzma.compress(TEXT),
    "a wrong extra field of gzip": SHORT[:3] + b"\4" + SHORT[4:10] + b"\1\0a" + SHORT[10:] + lzma.compress(TEXT),
    "letters for a number in a tar file": tar_with(136, b"zzzzzzzzzzzz") + HIDDEN,
    "a number without digits": tar_with(329, b" \0\0\0\0\0\0\0") + HIDDEN,
    "an announcement of nothing": tar_with(156, b"x") + HIDDEN,
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_archive_behind_one_that_is_refused_was_not_found(name: str, tmp_path: Path) -> None:
    """We could open the one at the beginning, and looked no further; 7-Zip could not, and opened the other one."""
    assert "malware:eicar" in tags(REFUSED[name], "a.bin")
    assert TEXT in extracted("7z", REFUSED[name], "a.bin", tmp_path).values()


def test_a_plain_archive_of_many_archives_is_opened_once() -> None:
    parts = [(f"{number}.gz", gzip.compress(b"log %d" % number)) for number in range(30)]
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w") as archive:
        for part in parts:
            archive.writestr(*part)
    for content in (stored.getvalue(), tarred(*((name, tarfile.REGTYPE, data) for name, data in parts))):
        assert tags(content) == {"mime:nested-archive"}


# LZMA and xz


@pytest.mark.parametrize("name", ["a.bin", "a.xz"])
@pytest.mark.parametrize("facts", ["00000000 ffffffffffffffff", "00008000 ffffff5fffffffff"])
def test_lzma_data_of_unusual_sizes_was_not_recognised(name: str, facts: str, tmp_path: Path) -> None:
    """The Unarchiver looks at three bytes."""
    dictionary, size = facts.split()
    data = lzma.compress(TEXT, lzma.FORMAT_ALONE)
    content = data[:1] + bytes.fromhex(dictionary + size) + data[13:]
    assert "malware:eicar" in tags(content, name)
    assert TEXT in extracted("unar", content, name, tmp_path).values()


FIRST = lzma.compress(b"one " * 9, lzma.FORMAT_ALONE)
LAST = lzma.compress(TEXT, lzma.FORMAT_ALONE)
LZMA_STREAMS = {
    "two": FIRST + LAST,
    "the size is known": FIRST[:5] + struct.pack("<Q", 36) + FIRST[13:] + LAST,
    "an empty one": FIRST[:5] + bytes(13) + LAST,
    "a tiny dictionary": FIRST + LAST[:1] + b"\1\0\0\0" + lzma.compress(b"", lzma.FORMAT_ALONE)[5:] + LAST,
    "lzma86": b"\0" + FIRST + b"\0" + LAST,
}


@pytest.mark.parametrize("name", ["a.lzma", "a.bin"])
@pytest.mark.parametrize("streams", LZMA_STREAMS)
def test_only_the_first_of_several_lzma_streams_was_read(streams: str, name: str, tmp_path: Path) -> None:
    """7-Zip writes one file, in which the virus follows harmless text."""
    assert "malware:eicar" in tags(LZMA_STREAMS[streams], name)
    (content,) = extracted("7z", LZMA_STREAMS[streams], name, tmp_path).values()
    assert content.endswith(TEXT)


def with_wrong_checksums(filters: list[dict[str, int]] | None = None) -> bytes:
    """In the header of the stream and of each of its two blocks, and after the first block."""
    one, two = (bytearray(lzma.compress(text, filters=filters)) for text in (b"one " * 9, TEXT))
    for content in (one, two):
        head = 12 + 4 * (content[12] + 1)
        content[8] ^= 1
        content[head - 1] ^= 1
    index = len(one) - 12 - 4 * (int.from_bytes(one[-8:-4], "little") + 1)
    one[index - 1] ^= 1
    return bytes(one[:index] + two[12:])


@pytest.mark.parametrize("name", ["", "x86", "delta"])
def test_an_xz_file_with_wrong_checksums_was_delivered(name: str, tmp_path: Path) -> None:
    """The Unarchiver ignores them."""
    more = {"x86": {"id": lzma.FILTER_X86}, "delta": {"id": lzma.FILTER_DELTA, "dist": 4}}.get(name)
    filters = [more, {"id": lzma.FILTER_LZMA2, "preset": 6}] if more else None
    content = with_wrong_checksums(filters)
    assert decision(content, "a.xz") == "quarantine"
    assert b"one " * 9 + TEXT in extracted("unar", content, "a.xz", tmp_path).values()
