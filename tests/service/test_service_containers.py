"""Containers within a mail: whatever a program extracts from one, the inspection has seen, or the mail is held.

Each container here is read differently by different programs. Where the program is installed, it extracts the
file first, so that no case claims what no program does.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content import archives, tar_archive
from bridge.service.analysis.content.archives import Budget
from tests.processor_time import fair_cpu_s
from tests.service.container_kit import (
    SCRIPT,
    SMIME,
    ZIP,
    ZIPS,
    decision,
    deflated,
    extracted,
    local,
    prop,
    signed_mail,
    tags,
    tarred,
    winmail,
)
from tests.service.service_kit import CONFIG, EICAR, attached, service, zipped


def test_the_name_in_a_gzip_header_was_ignored(tmp_path: Path) -> None:
    """7-Zip and `gunzip -N` use it."""
    content = b"\x1f\x8b\x08\x08" + bytes(6) + b"evil.js\0" + deflated(SCRIPT)
    content += struct.pack("<II", zlib.crc32(SCRIPT), len(SCRIPT))
    assert "evil.js" in extracted("gunzip", content, "a.gz", tmp_path)
    assert "mime:executable" in tags(content, "a.gz")


def test_what_compress_wrote_after_a_gzip_stream_was_ignored() -> None:
    """gunzip reads it as one file; we do not read that format, so the mail is not fully inspected."""
    codes = sum(byte << 9 * place for place, byte in enumerate(EICAR)).to_bytes(len(EICAR) * 9 // 8 + 1, "little")
    content = gzip.compress(b"") + b"\x1f\x9d\x10" + codes
    if shutil.which("gunzip"):
        assert EICAR in subprocess.run(["gunzip", "-c"], input=content, capture_output=True, check=False).stdout
    assert decision(content, "a.gz") == "undecided"


XZ = lzma.compress(EICAR)
COMPRESSED: dict[str, bytes] = {
    "bzip2 without its last byte": bz2.compress(EICAR)[:-1],
    "bzip2 with a wrong checksum": bz2.compress(EICAR)[:-2] + b"\0\0",
    "xz with a wrong checksum": XZ[:-28] + bytes(8) + XZ[-20:],
    "xz without its end": XZ[:-20],
    "lzma": lzma.compress(EICAR, lzma.FORMAT_ALONE),
    "lzma of a known size": b"\x5d\0\0\x80\0" + struct.pack("<Q", 68) + lzma.compress(EICAR, lzma.FORMAT_ALONE)[13:],
}


@pytest.mark.parametrize("name", COMPRESSED)
def test_what_can_be_read_of_a_damaged_file_was_thrown_away(name: str) -> None:
    """Other programs keep it."""
    assert "malware:eicar" in tags(COMPRESSED[name])


def test_an_xz_file_that_needs_more_memory_than_we_allow_was_called_clean(tmp_path: Path) -> None:
    """It has 300 bytes, and `xz -d` opens it."""
    content = bytearray(lzma.compress(EICAR + b" " * 4000, check=lzma.CHECK_CRC32))
    size = (content[12] + 1) * 4
    header = content[12 : 12 + size]
    header[header.index(b"\x21\x01") + 2] = 34  # a dictionary of 512 MiB
    header[-4:] = struct.pack("<I", zlib.crc32(header[:-4]))
    content[12 : 12 + size] = header
    assert EICAR in b"".join(extracted("xz", bytes(content), "a.xz", tmp_path).values())
    assert "limit:archive-memory" in tags(bytes(content))
    assert decision(bytes(content)) == "undecided"


def lzma_asking_for_memory(text: bytes) -> bytes:
    """Its header asks for a dictionary of 2 GiB."""
    content = lzma.compress(text, lzma.FORMAT_ALONE)
    return content[:1] + b"\0\0\0\x80" + content[5:]


def test_a_picture_that_begins_like_lzma_was_not_delivered() -> None:
    """A metafile (EMF) whose header has 128 bytes, as the office programs of WPS write it."""
    picture = struct.pack("<10I4s", 1, 128, 42, 0, 100, 75, 0, 0, 2540, 2293, b" EMF") + bytes(range(256)) * 40
    assert tags(picture, "image1.emf") == set()
    document = zipped(("[Content_Types].xml", b"<Types/>"), ("word/media/image1.emf", picture))
    assert decision(document, "a.docx") == "deliver"


def test_lzma_is_read_with_as_much_memory_as_we_allow(tmp_path: Path) -> None:
    content = lzma_asking_for_memory(EICAR + bytes(4000))
    assert any(EICAR in found for found in extracted("7z", content, "a.lzma", tmp_path).values())
    assert "malware:eicar" in tags(content, "a.lzma")
    assert "malware:eicar" in tags(lzma.compress(b"one", lzma.FORMAT_ALONE) + content, "a.lzma"), "a second stream"
    assert "limit:archive-memory" in tags(lzma_asking_for_memory(bytes(97 << 20))[:-20], "a.lzma")


@pytest.mark.parametrize(
    "content",
    [
        b"\x1f\x8b\x08" + bytes(7) + deflated(b"x") + bytes(8) + ZIP,
        bz2.compress(b"x") + ZIP,
        tarred(("a.txt", b"0", b"x")) + ZIP,
        b"7z\xbc\xaf\x27\x1c" + bytes(100) + ZIP,
        b"Rar!\x1a\x07\0" + bytes(100) + ZIP,
    ],
    ids=["gzip", "bzip2", "tar", "7z", "rar"],
)
def test_a_zip_file_behind_another_archive_was_not_read(content: bytes, tmp_path: Path) -> None:
    """unzip looks for its end, and does not care how the file begins."""
    assert EICAR in extracted("unzip", content, "a.zip", tmp_path).values()
    assert "malware:eicar" in tags(content, "a.zip")


UNOPENED = {
    "cab": b"MSCF" + bytes(100),
    "arj": b"\x60\xea\x28\0" + bytes(100),
    "lzh": b"\x20\x10-lh5-" + bytes(100),
    "zstd": b"\x28\xb5\x2f\xfd" + bytes(100),
    "compress": b"\x1f\x9d\x90" + bytes(100),
    "cpio": b"070701" + b"0" * 104,
    "iso": bytes(0x8001) + b"CD001" + bytes(100),
    "vhdx": b"vhdxfile" + bytes(100),
    "vhd": bytes(1024) + b"conectix" + bytes(504),
    "wim": b"MSWIM\0\0\0" + bytes(100),
    "rar": b"Rar!\x1a\x07\x01\0" + bytes(100),
}


@pytest.mark.parametrize("kind", UNOPENED)
def test_a_container_that_is_not_opened_had_no_tag(kind: str) -> None:
    """RAR and 7z had one; the others looked like any file."""
    assert "mime:unopened-archive" in tags(UNOPENED[kind])


@pytest.mark.parametrize("name", ["a.rar", "a.7z", "a.CAB", "a.vhdx ", "a.zst", "a.ace"])
def test_a_container_is_recognised_by_its_name(name: str) -> None:
    """unrar and 7-Zip open it, whatever comes before the archive in it."""
    assert "mime:unopened-archive" in tags(b"junk before it", name)
    assert "mime:unopened-archive" in tags(zipped((name, b"junk before it")), "a.zip")


class Counting(Budget):
    """Counts the work instead of limiting it."""

    spent = 0

    def take_work(self, count: int) -> None:
        type(self).spent += count

    def take(self, count: int) -> None:
        type(self).spent += count


def work(content: bytes, kind: str) -> int:
    Counting.spent = 0
    try:
        list(archives.members(content, kind, (), Counting(members=10**9)))
    except archives.BadArchive:
        pass
    return Counting.spent


EMPTY_GZIP = b"\x1f\x8b\x08" + bytes(7) + deflated(b"") + bytes(8)
STREAMS = {
    "gzip": EMPTY_GZIP,
    "bzip2": bz2.compress(b""),
    "xz": lzma.compress(b"", check=lzma.CHECK_NONE),
    "zip": local(b"a", deflated(b"hello"), method=8, crc=0, size=5),
    "tar": tarred(("a", b"0", b"x" * 600)),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_twice_as_many_streams_are_twice_the_work(kind: str) -> None:
    """What followed a stream was copied for each of them: a mail of 1.6 MB took 20 seconds."""
    small, large = work(STREAMS[kind] * 200, kind), work(STREAMS[kind] * 400, kind)
    assert 0 < large <= 2.1 * small


def test_members_that_share_their_bytes_are_charged_for_each() -> None:
    """2,000 members of one megabyte of empty blocks took 20 seconds, and nothing came out of them."""
    count, nothing = 2000, b"\0\0\0\xff\xff" * 200_000
    headers = b"".join(
        struct.pack("<4sHHHIIIIHH", b"PK\3\4", 20, 0, 8, 0, 0, 0, 0, 1, 31 * (count - 1 - i)) + b"a"
        for i in range(count)
    )
    budget = Budget()
    with pytest.raises(TooMuch, match="archive-work"):
        list(archives.members(headers + nothing, "zip", (), budget))
    assert budget.bytes == Budget().bytes
    assert decision(zipped(("a.bin", headers + nothing))) == "undecided"


def damaged(size: int) -> bytes:
    """Zeros, and then a block of a type that does not exist."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(bytes(size)) + packer.flush(zlib.Z_FULL_FLUSH) + b"\x07"


def test_damaged_members_took_half_a_second_each() -> None:
    """What precedes the damage was decoded again byte by byte. 20 members took 10 seconds, 40 all there were."""
    member = local(b"a", damaged(260_000), method=8, crc=0, size=260_000)
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(tags(member * 450, "a.zip"))) < 10
    assert "limit:archive-work" in found
    assert work(member, "zip") < 20 * 260_000


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 70_000, 262_144, 262_145, 3_000_000])
def test_all_that_precedes_the_damage_is_read(size: int) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = packer.compress(bytes(size) + EICAR) + packer.flush(zlib.Z_FULL_FLUSH) + b"\x07"
    found = next(archives.members(local(b"a", data, method=8, crc=0, size=0), "zip", (), Budget()))
    assert found.content == bytes(size) + EICAR
    assert found.broken


def test_many_empty_streams_are_held() -> None:
    """Each needs a decoder of its own."""
    assert "limit:archive-work" in tags(EMPTY_GZIP * 300_000)


OPAQUE = {
    "S/MIME": signed_mail(SMIME["unending"]),
    "winmail.dat": attached(winmail(prop(0x37010102, EICAR)), "winmail.dat"),
    "lzma": attached(lzma.compress(EICAR, lzma.FORMAT_ALONE), "a.lzma"),
    "a zip file": attached(ZIPS["the directory says stored, the header deflated"], "a.zip"),
    "a tar file": attached(
        gzip.compress(tarred(("a", b"0", b"x"), ("a.zip", b"Z", ZIP), between=b"\xff" * 512)), "a.tgz"
    ),
}


def test_clamd_did_not_get_what_is_in_signed_mail(tmp_path: Path, clamd) -> None:
    """clamd does not open S/MIME, and got the objects of ambiguous mail only."""
    engine = f"clamav: {{address: '127.0.0.1:{clamd.port}'}}"
    (tmp_path / "alone").mkdir()
    with service(tmp_path / "alone", CONFIG + f"analyzers: {{mime: null, {engine}}}\n") as alone:
        assert alone.submit(OPAQUE["S/MIME"]).json["decision"] == "deliver"
    with service(tmp_path, CONFIG + f"analyzers: {{{engine}}}\n") as running:
        for name, content in OPAQUE.items():
            found = running.submit(content).json["tags"]
            assert any(tag.startswith("malware:lab.eicar") for tag in found), (name, found)


def test_random_data_is_no_tar_archive() -> None:
    """An encrypted file of any size must not be taken for a broken archive by chance."""
    dice = random.Random(7)
    assert not tar_archive.is_tar(b"x" + dice.randbytes(60_000_000), is_unknown=True)
