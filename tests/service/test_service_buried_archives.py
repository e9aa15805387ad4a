"""Archives that 7-Zip finds in content that is none, and that we did not look for.

7-Zip opens the file as well, so that no case claims what no program does.
"""

from __future__ import annotations

import gzip
import io
import lzma
import random
import struct
import zlib
from pathlib import Path

import pytest

from bridge.service.analysis.content import archive_marks
from bridge.service.analysis.inspection import inspect
from tests.mime.encodings import uuencoded
from tests.processor_time import fair_cpu_s
from tests.requirements import library
from tests.service.container_kit import extracted
from tests.service.service_kit import EICAR
from tests.service.test_service_documents import ALL, tags

PROGRAM = b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0" + b"program " * 40
NAME = b"x.exe"


def cpio() -> bytes:
    out = b""
    for name, data in ((NAME, PROGRAM), (b"TRAILER!!!", b"")):
        numbers = (1, 0o100644, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        head = b"070701" + b"".join(b"%08X" % number for number in numbers) + name + b"\0"
        out += head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)
    return out


def old_cpio() -> bytes:
    out = b""
    for name, data in ((NAME, PROGRAM), (b"TRAILER!!!", b"")):
        head = struct.pack("<11H", 0o70707, 0, 1, 0o100644, 0, 0, 1, 0, 0, 0, len(name) + 1)
        head += struct.pack("<HH", 0, len(data)) + name + b"\0"
        out += head + bytes(-len(head) % 2) + data + bytes(-len(data) % 2)
    return out


def lha() -> bytes:
    head = b"-lh0-" + struct.pack("<IIIBBB", len(PROGRAM), len(PROGRAM), 0, 0x20, 0, len(NAME)) + NAME + bytes(2)
    return bytes((len(head), sum(head) & 0xFF)) + head + PROGRAM + b"\0"


def zstd(data: bytes) -> bytes:
    return b"\x28\xb5\x2f\xfd\x60" + struct.pack("<HI", len(data) - 256, len(data) << 3 | 1)[:5] + data


def written(kind: str, data: bytes = PROGRAM) -> bytes:
    libarchive = library("libarchive", "archives")
    out = io.BytesIO()
    with libarchive.custom_writer(out.write, kind) as archive:
        archive.add_file_from_memory(NAME.decode(), len(data), data)
    return out.getvalue()


OPENED = {
    "zstd": lambda: zstd(PROGRAM),
    "cpio": cpio,
    "old cpio": old_cpio,
    "lha": lha,
    "iso": lambda: written("iso9660"),
}
PRECEDING = {"text": b"junk of any sort", "document": b"%PDF-1.4\n%%EOF\n"}


@pytest.mark.parametrize("before", PRECEDING)
@pytest.mark.parametrize("kind", OPENED)
def test_a_few_bytes_before_it_hid_an_archive_of_this_kind(kind: str, before: str, tmp_path: Path) -> None:
    library("libarchive", "archives")
    content = PRECEDING[before] + OPENED[kind]()
    assert "mime:executable" in tags(content, "a.bin")
    assert PROGRAM in extracted("7z", content, "a.bin", tmp_path).values()


IN_TEXT = {
    **{kind: (lambda made=made: b"junk of any sort" + made()) for kind, made in OPENED.items()},
    "7z": lambda: b"junk of any sort" + written("7zip"),
    "gzip": lambda: b"junk of any sort" + gzip.compress(PROGRAM),
    "xz": lambda: b"junk of any sort" + lzma.compress(PROGRAM),
    "lzma": lambda: lzma.compress(PROGRAM, lzma.FORMAT_ALONE),
}


@pytest.mark.parametrize("kind", IN_TEXT)
def test_an_encoded_file_in_a_text_hid_an_archive_of_this_kind(kind: str) -> None:
    """MIME-tools, ripMIME and uudeview save a file that is in uuencode, and we looked only at its first bytes."""
    library("libarchive", "archives")
    lines = [b"From: a@example.org", b"", b"Hello.", b"", *uuencoded(IN_TEXT[kind](), random.Random(1))]
    assert "mime:executable" in inspect(b"\r\n".join(lines), ALL).tags


def test_two_bytes_of_noise_are_no_cpio_archive() -> None:
    """They were the mark of one, and its name was cut off: such mail got a tag."""
    library("libarchive", "archives")
    noise = b"noise \xc7\x71" + b"x" * 18 + b"\x40\0" + b"x" * 6 + b"noise"
    assert "mime:unopened-archive" not in tags(noise, "a.bin")


def arj() -> bytes:
    head = bytes((30, 11, 1, 0, 0, 0, 2, 0)) + bytes(22) + b"a\0\0"
    return b"\x60\xea" + struct.pack("<H", len(head)) + head + struct.pack("<I", zlib.crc32(head)) + bytes(100)


NOT_OPENED = {
    "wim": b"MSWIM\0\0\0" + bytes(200),
    "xar": b"xar!\0\x1c\0\1" + bytes(100),
    "squashfs": b"hsqs" + bytes(24) + b"\4\0" + bytes(100),
    "arj": arj(),
    "help": b"ITSF\3\0\0\0\x60\0\0\0" + bytes(100),
    "dmg": b"koly\0\0\0\4\0\0\2\0" + bytes(500),
    "ntfs": b"\xeb\x52\x90NTFS    " + bytes(600),
    "fat": b"\xeb\x3c\x90mkdosfs\0\0\2\4\1\0" + bytes(494) + b"U\xaa",
    "ext2": bytes(1024) + struct.pack("<7I", 16, 200, 0, 150, 5, 1, 0) + bytes(28) + b"\x53\xef" + bytes(500),
}


@pytest.mark.parametrize("kind", NOT_OPENED)
def test_an_archive_that_is_not_opened_had_no_tag_behind_other_content(kind: str) -> None:
    assert "mime:unopened-archive" in tags(b"junk" + NOT_OPENED[kind], "a.bin")


def sparse(data: bytes) -> bytes:
    return struct.pack("<IHHHHIIII", 0xED26FF3A, 1, 0, 28, 12, 1024, len(data) // 1024, 1, 0) + data


PARTITION = bytes((0x80, 0, 2, 0, 0x83, 0, 3, 0)) + struct.pack("<II", 1, 100)
IMAGES = {
    "ext2": NOT_OPENED["ext2"],
    "partition table": bytes(446) + PARTITION + bytes(48) + b"U\xaa" + bytes(512),
    "the third partition": bytes(446) + bytes(32) + PARTITION + bytes(16) + b"U\xaa" + bytes(512),
    "sparse image": sparse(bytes(1024)),
    "flash": b"FWS\x09" + struct.pack("<I", 4000) + bytes(100),
    "compressed flash": b"CWS\x0a" + struct.pack("<I", 4000) + zlib.compress(bytes(100)),
}


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_of_a_disk_had_no_tag(kind: str) -> None:
    """7-Zip recognises it, whatever its name is."""
    assert "mime:unopened-archive" in tags(IMAGES[kind], "a.bin")


@pytest.mark.parametrize(
    "text",
    [b"FWS\nfirst words\n", b"CWS is a list\n", b"-lh5- 070701 CD001 !<arch>\n" * 9, b"7" + b"07" * 90 + b"1" * 9000],
)
def test_text_with_such_marks_is_text(text: bytes) -> None:
    assert tags(text, "a.txt") == set()


def test_random_bytes_are_no_archive() -> None:
    """The marks of some formats are in every file of a few kilobytes."""
    content = random.Random(1).randbytes(2_000_000)
    assert archive_marks.kinds_in(content, archive_marks.KINDS) == []


# Other archives before it


def other_crc(content: bytes) -> bytes:
    return content[:8] + b"abcd" + content[12:]


def other_version(content: bytes) -> bytes:
    return content[:6] + b"\1" + content[7:]


def too_long(content: bytes) -> bytes:
    start = content[12:20] + struct.pack("<Q", int.from_bytes(content[20:28], "little") + 1) + content[28:32]
    return content[:8] + struct.pack("<I", zlib.crc32(start)) + start + content[32:]


@pytest.mark.parametrize("change", [other_crc, other_version, too_long])
def test_only_the_first_of_two_7z_archives_was_opened(change: object, tmp_path: Path) -> None:
    """libarchive opens the first one all the same; 7-Zip refuses it, and opens the other."""
    text = b"An invoice. " * 20 + EICAR
    assert callable(change)
    content = change(written("7zip", data=b"harmless " * 20)) + bytes(2) + written("7zip", data=text)
    assert "malware:eicar" in tags(content, "a.bin")
    assert text in extracted("7z", content, "a.bin", tmp_path).values()


def test_more_archives_than_are_opened_have_a_tag() -> None:
    library("libarchive", "archives")
    assert "mime:unopened-archive" in tags(b"7z\xbc\xaf\x27\x1c\0\4" * 30, "a.bin")


@pytest.mark.parametrize("before", [b"!<arch>\n", b"MSWIM\0\0\0", cpio()])
def test_an_archive_in_the_first_bytes_hid_an_image_of_a_disc(before: bytes, tmp_path: Path) -> None:
    """Its first 32 KiB belong to nobody."""
    image = written("iso9660")
    content = before.replace(NAME, b"a.txt").replace(PROGRAM, b"x" * len(PROGRAM))
    content += image[len(content) :]
    assert "mime:executable" in tags(content, "a.bin")
    assert PROGRAM in extracted("7z", content, "a.bin", tmp_path).values()


MARKS = [b"7z\xbc\xaf\x27\x1c", b"\x28\xb5\x2f\xfd\x04\0", b"\x1f\x9d\x90", b"\xc7\x71", b"07070", b"U\xaa", b"-lh0-"]


@pytest.mark.parametrize("mark", MARKS)
def test_marks_of_archives_take_little_time(mark: bytes) -> None:
    content = b"-" + mark * (3_000_000 // len(mark))
    assert fair_cpu_s(lambda: tags(content, "a.bin")) < 5
