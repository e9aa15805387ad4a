"""Zip files within a mail: header and directory may disagree, and programs believe one or the other."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from tests.service.container_kit import (
    RAW,
    SCRIPT,
    ZIP,
    ZIPS,
    decision,
    entry,
    extracted,
    local,
    one_member,
    tags,
    with_directory,
)
from tests.service.service_kit import EICAR


@pytest.mark.parametrize("name", ZIPS)
def test_the_directory_of_a_zip_file_hid_what_its_header_says(name: str, tmp_path: Path) -> None:
    """unzip believes the header before a member; only the directory was believed here."""
    assert EICAR in b"".join(extracted("unzip", ZIPS[name], "a.zip", tmp_path).values())
    assert "malware:eicar" in tags(ZIPS[name], "a.zip")


@pytest.mark.parametrize("version", [64, 255])
def test_a_zip_file_of_a_future_version_was_not_opened(version: int, tmp_path: Path) -> None:
    """Java does not look at the version that a member needs."""
    content = one_member(EICAR, version=version)
    assert EICAR in extracted("jar", content, "a.zip", tmp_path).values()
    assert "malware:eicar" in tags(content)


FAKE_END = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0, 0, 7, 7, 0)
DECOYS = {
    "a method that does not exist": (
        local(b"evil.js", RAW, method=0x7777, crc=zlib.crc32(EICAR), size=len(EICAR)),
        entry(b"evil.js", method=8, crc=zlib.crc32(EICAR), packed=len(RAW), size=len(EICAR), comment=FAKE_END),
    ),
    "a header without a name": (
        local(b"", EICAR, method=0, crc=0, packed=0, size=0, flags=8),
        entry(b"evil.js", method=0, crc=zlib.crc32(EICAR), packed=len(EICAR), size=len(EICAR), flags=8,
              comment=FAKE_END),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECOYS)
def test_a_false_end_of_the_directory_hid_a_member(name: str, tmp_path: Path) -> None:
    """Only the next such record told by how much the offsets are wrong, and this one is part of a comment."""
    content = b"bytes before it\n" + with_directory(*DECOYS[name])
    assert extracted("jar", content, "a.zip", tmp_path) == {"evil.js": EICAR}
    assert {"malware:eicar", "mime:executable"} <= tags(content, "a.zip")


def test_many_false_ends_of_a_directory_are_bounded() -> None:
    ends = b"".join(struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0, 0, 2**31 - at, 7, 0) for at in range(20_000))
    entries = entry(b"a", method=0, crc=0, packed=1, size=1) * 5000
    assert "limit:archive-work" in tags(entries + ends, "a.zip")


def test_a_name_in_the_directory_counts_without_a_header() -> None:
    content = with_directory(b"", entry(b"evil.js", method=0, crc=0, packed=5, size=5, offset=7))
    assert {"mime:executable", "mime:broken-archive"} <= tags(content, "a.zip")


def unicode_path(name: bytes, shown: bytes) -> bytes:
    return struct.pack("<HHBI", 0x7075, 5 + len(shown), 1, zlib.crc32(name)) + shown


def test_a_second_name_in_a_zip_file_was_not_checked(tmp_path: Path) -> None:
    """unzip, 7-Zip and WinRAR give the file the name in the Unicode Path field."""
    extra = unicode_path(b"a.txt", b"invoice.js")
    common = {"method": 0, "crc": zlib.crc32(SCRIPT), "size": len(SCRIPT), "extra": extra}
    content = with_directory(local(b"a.txt", SCRIPT, **common), entry(b"a.txt", packed=len(SCRIPT), **common))
    assert "invoice.js" in extracted("unzip", content, "a.zip", tmp_path)
    assert "mime:executable" in tags(content)


def test_the_name_in_a_members_header_was_not_checked() -> None:
    """Programs that read the archive from its beginning use it."""
    header = local(b"invoice.js", SCRIPT, method=0, crc=zlib.crc32(SCRIPT), size=len(SCRIPT))
    content = with_directory(header, entry(b"a.txt", method=0, crc=1, packed=len(SCRIPT), size=len(SCRIPT)))
    assert "mime:executable" in tags(content)


@pytest.mark.parametrize("name", [b"x" * 5000 + b".js", b"invoice.js\0.txt"])
def test_long_names_and_names_with_a_nul_are_checked(name: bytes) -> None:
    """A member was ignored if its name had a thousand characters or more."""
    assert "mime:executable" in tags(local(name, SCRIPT, method=0, crc=0, size=len(SCRIPT)))


@pytest.mark.parametrize("method", [9, 93, 95 + 3, 6])
def test_a_member_that_we_cannot_unpack_was_called_clean(method: int) -> None:
    """Deflate64, Zstandard, PPMd, Implode: other programs can, so the mail is not fully inspected."""
    common = {"method": method, "crc": 1, "size": 5000}
    data = b"\x0b" * 600
    content = with_directory(local(b"a.txt", data, **common), entry(b"a.txt", packed=len(data), **common))
    assert "limit:archive-method" in tags(content)
    assert decision(content) == "undecided"
    assert decision(local(b"a.txt", data, **common)) == "undecided"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
@pytest.mark.parametrize("is_listed", [True, False])
def test_every_common_compression_is_read(method: int, is_listed: bool) -> None:
    """With the directory, and without it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("x.zip", ZIP)
    content = buffer.getvalue()
    assert "malware:eicar" in tags(content if is_listed else content[: content.rindex(b"PK\1\2")])


def test_a_member_that_only_one_description_calls_encrypted_is_read() -> None:
    assert {"malware:eicar", "mime:encrypted-archive"} <= tags(one_member(EICAR, flags=1))


def test_a_member_with_a_damaged_end_was_thrown_away() -> None:
    """What can be read of it is inspected: other programs keep it."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(EICAR) + packer.flush(zlib.Z_SYNC_FLUSH) + b"\xff" * 9
    content = local(b"a.txt", data, method=8, crc=0, size=len(EICAR))
    assert {"malware:eicar", "mime:broken-archive"} <= tags(content)
