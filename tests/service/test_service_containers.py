"""Containers within a mail: whatever a program extracts from one, the inspection has seen, or the mail is held.

Each container here is read differently by different programs. Where the program is installed, it extracts the
file first, so that no case claims what no program does.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import gzip
import io
import lzma
import random
import shutil
import struct
import subprocess
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge.mime.structure import TooMuch
from bridge.service.analysis import archives, smime, tar_archive
from bridge.service.analysis.archives import Budget
from bridge.service.analysis.decision import INCOMPLETE, DecisionTable
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.limits import Limits
from bridge.service.decision_settings import Decisions
from tests.service.service_kit import CONFIG, EICAR, attached, mail, service, zipped

SCRIPT = b"WScript.Echo(1)"
ZIP = zipped(("eicar.com", EICAR))


def tags(content: bytes, name: str = "a.bin") -> set[str]:
    found = inspect(attached(content, name), Limits())
    return found.tags | {f"limit:{limit}" for limit in found.limits}


def decision(content: bytes, name: str = "a.bin") -> str:
    found = tags(content, name)
    if any(tag.startswith("limit:") for tag in found):
        found.add(INCOMPLETE)
    return DecisionTable(Decisions()).decide(found).decision.value


def extracted(program: str, content: bytes, name: str, directory: Path) -> dict[str, bytes]:
    """What this program extracts; skips the test if it is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    place = directory / program
    place.mkdir()
    (place / name).write_bytes(content)
    command = {
        "unzip": ["unzip", "-o", "-q", name],
        "jar": ["jar", "xf", name],
        "tar": ["tar", "-xf", name],
        "gpg": ["gpg", "--homedir", ".", "--batch", "--output", "out", "--decrypt", name],
        "tnef": ["tnef", "--overwrite", name],
        "gunzip": ["gunzip", "-k", "-N", name],
        "bunzip2": ["bunzip2", "-k", name],
        "xz": ["xz", "-d", "-k", name],
        "unlzma": ["unlzma", "-k", name],
    }[program]
    subprocess.run(command, cwd=place, capture_output=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    files = [path for path in place.rglob("*") if path.is_file() and path.name != name]
    return {str(path.relative_to(place)): path.read_bytes() for path in files}


def deflated(content: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()


def local(name: bytes, data: bytes, *, method: int, crc: int, size: int, version: int = 20, flags: int = 0,
          packed: int = -1, extra: bytes = b"") -> bytes:  # fmt: skip
    packed = len(data) if packed < 0 else packed
    head = struct.pack("<4sHHHIIIIHH", b"PK\3\4", version, flags, method, 0, crc, packed, size, len(name), len(extra))
    return head + name + extra + data


def entry(name: bytes, *, method: int, crc: int, packed: int, size: int, version: int = 20, flags: int = 0,
          extra: bytes = b"", offset: int = 0, comment: bytes = b"") -> bytes:  # fmt: skip
    head = struct.pack("<4sHHHHIIII", b"PK\1\2", 20, version, flags, method, 0, crc, packed, size)
    lengths = struct.pack("<HHHHHII", len(name), len(extra), len(comment), 0, 0, 0, offset)
    return head + lengths + name + extra + comment


def with_directory(headers: bytes, *entries: bytes) -> bytes:
    directory = b"".join(entries)
    count = len(entries)
    return (
        headers + directory + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, count, count, len(directory), len(headers), 0)
    )


def one_member(content: bytes, **entry_says: object) -> bytes:
    """A zip file with one deflated member, whose directory says something else."""
    data, crc = deflated(content), zlib.crc32(content)
    says = {"name": b"a.txt", "method": 8, "crc": crc, "packed": len(data), "size": len(content)} | entry_says
    header = local(b"a.txt", data, method=8, crc=crc, size=len(content), version=int(says.get("version", 20)))
    return with_directory(header, entry(**says))


RAW = deflated(EICAR)
ZIPS = {
    "the directory says stored, the header deflated": one_member(
        EICAR, method=0, crc=zlib.crc32(RAW), packed=len(RAW), size=len(RAW)
    ),
    "the directory says empty": one_member(EICAR, method=0, crc=0, packed=0, size=0),
    "the directory says shorter": with_directory(
        local(b"a.txt", b"harmless  " + EICAR, method=0, crc=zlib.crc32(b"harmless  " + EICAR), size=len(EICAR) + 10),
        entry(b"a.txt", method=0, crc=zlib.crc32(b"harmless  "), packed=10, size=10),
    ),
    "bytes before it": b"MZ junk" + one_member(EICAR),
}


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


def tarred(*members: tuple[str, bytes, bytes], between: bytes = b"") -> bytes:
    out = b""
    for name, kind, content in members:
        info = tarfile.TarInfo(name)
        info.size, info.type = len(content), kind
        out += info.tobuf(tarfile.USTAR_FORMAT) + content + bytes(-len(content) % 512) + between
    return out + bytes(1024)


def with_sum(header: bytes) -> bytes:
    total = sum(header[:148]) + 8 * 32 + sum(header[156:512])
    return header[:148] + b"%06o\0 " % total + header[156:]


def old_header(name: bytes, size: int) -> bytes:
    """Without a magic number, so that nothing but its sum tells that it is one."""
    return with_sum(name.ljust(100, b"\0") + b"0000644\0" + bytes(16) + b"%011o\0" % size + bytes(376))


def shortened(*announcing: tuple[str, bytes, bytes]) -> bytes:
    """By the other headers, the last file ends before the header of the next one; by its own, it goes on."""
    inner = b"Z" * 512 + old_header(b"evil.js", len(SCRIPT)) + SCRIPT + bytes(512 - len(SCRIPT))
    return tarred(*announcing, ("b.txt", b"0", inner))


SIZE = b"12 size=512\n"
OTHER_NAME = tarred(("a.txt", b"x", b"18 path=x/evil.js\n"), ("a.txt", b"0", SCRIPT))
TARS = {
    "an unknown type": (tarred(("a.zip", b"Z", ZIP)), "malware:eicar"),
    "an unknown type with a script's name": (tarred(("evil.js", b"Z", SCRIPT)), "mime:executable"),
    "damaged blocks": (tarred(("a", b"0", b"hi"), ("a.zip", b"0", ZIP), between=b"\xff" * 512), "malware:eicar"),
    "a damaged first block": (b"\xff" * 512 + tarred(("a.zip", b"0", ZIP)), "malware:eicar"),
    "a name in a header of its own": (OTHER_NAME, "mime:executable"),
    "a long name": (tarred(("x", b"L", b"y/evil.js\0"), ("a.txt", b"0", SCRIPT)), "mime:executable"),
    "a name with a line end": (
        tarred(("a.txt", b"x", b"22 path=a.txt\nevil.js\n"), ("a.txt", b"0", SCRIPT)),
        "mime:executable",
    ),
    "a size for all members": (shortened(("g", b"g", SIZE), ("a.txt", b"0", b"A" * 512)), "mime:executable"),
    "a size before the name of a link": (shortened(("x", b"x", SIZE), ("y", b"K", b"link\0")), "mime:executable"),
    "a link with a script's name": (tarred(("a.txt", b"0", SCRIPT), ("evil.js", b"2", b"")), "mime:executable"),
}


@pytest.mark.parametrize("name", TARS)
def test_members_of_a_tar_file_were_not_read(name: str, tmp_path: Path) -> None:
    """GNU tar extracts them, some with a warning."""
    content, tag = TARS[name]
    if name != "a link with a script's name":
        files = extracted("tar", content, "a.tar", tmp_path)
        assert ZIP in files.values() or any(file.endswith("evil.js") for file in files)
    assert tag in tags(content, "a.tar")


@pytest.mark.parametrize("kind", [b"L", b"K", b"x", b"g", b"V", b"1", b"5", b"7"])
def test_data_behind_a_header_that_should_have_none_is_read(kind: bytes) -> None:
    """cpio extracts most types as files."""
    assert "malware:eicar" in tags(tarred(("a.gz", kind, gzip.compress(EICAR, mtime=0))), "a.tar")


def test_a_compressed_tar_file_with_a_damaged_first_block_was_not_read(tmp_path: Path) -> None:
    """It was one by its name only if that ended in .tar."""
    content = gzip.compress(b"J" * 512 + old_header(b"evil.js", len(SCRIPT)) + SCRIPT + bytes(1536 - len(SCRIPT)))
    assert "evil.js" in extracted("tar", content, "a.tgz", tmp_path)
    assert "mime:executable" in tags(content, "a.tgz")


def test_sums_and_sizes_of_a_tar_file_in_other_notations(tmp_path: Path) -> None:
    """Binary numbers, and a sum of signed bytes."""
    header = bytearray(tarred(("\u00e4.zip", b"0", ZIP))[:512])
    header[124:136] = b"\x80" + len(ZIP).to_bytes(11, "big")
    signed = sum(byte - 256 if byte > 127 else byte for byte in (*header[:148], *header[156:])) + 8 * 32
    header[148:156] = b"%06o\0 " % signed
    content = bytes(header) + ZIP + bytes(-len(ZIP) % 512 + 1024)
    assert ZIP in extracted("tar", content, "a.tar", tmp_path).values()
    assert "malware:eicar" in tags(content, "a.tar")


def test_a_sparse_file_in_a_tar_file_is_filled_up(tmp_path: Path) -> None:
    """The gaps belong to the file."""
    if shutil.which("tar") is None:
        pytest.skip("tar is not installed")
    inner = gzip.compress(EICAR, mtime=0)
    with (tmp_path / "a.bin").open("wb") as stream:
        stream.write(inner)
        stream.truncate(1_000_000)
    for form in ("gnu", "posix"):
        subprocess.run(["tar", "-cSf", "a.tar", f"--format={form}", "a.bin"], cwd=tmp_path, check=True)
        assert "malware:eicar" in tags((tmp_path / "a.tar").read_bytes(), "a.tar")


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


def attribute(kind: int, value: bytes, level: int = 2) -> bytes:
    return struct.pack("<BII", level, kind, len(value)) + value + struct.pack("<H", sum(value) & 0xFFFF)


def prop(tag: int, value: bytes) -> bytes:
    return struct.pack("<III", tag, 1, len(value)) + value + bytes(-len(value) % 4)


def winmail(*properties: bytes, title: bytes = b"a.zip\0", data: bytes | None = None) -> bytes:
    out = b"\x78\x9f\x3e\x22\x01\0" + attribute(0x00089006, struct.pack("<I", 0x10000), 1)
    out += attribute(0x00069007, struct.pack("<II", 1252, 0), 1)
    out += attribute(0x00069002, struct.pack("<HIII", 1, 0xFFFFFFFF, 0, 0)) + attribute(0x00018010, title)
    if data is not None:
        out += attribute(0x0006800F, data)
    return out + attribute(0x00069005, struct.pack("<I", len(properties)) + b"".join(properties))


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


def length(count: int) -> bytes:
    return bytes([count]) if count < 128 else b"\x84" + count.to_bytes(4, "big")


def element(tag: int, value: bytes) -> bytes:
    return bytes([tag]) + length(len(value)) + value


def unending(tag: int, value: bytes) -> bytes:
    return bytes([tag, 0x80]) + value + b"\0\0"


DATA, SIGNED, COMPRESSED_DATA, OTHER = (
    bytes.fromhex(oid)
    for oid in (
        "06092a864886f70d010701",
        "06092a864886f70d010702",
        "060b2a864886f70d0109100109",
        "060b2a864886f70d0109100101",
    )
)
MESSAGE = attached(EICAR, "eicar.com")
OCTETS = element(4, MESSAGE)


def cms(content: bytes, *, kind: bytes = DATA, algorithms: bytes = b"", outer: bytes = SIGNED,
        put: Callable[[int, bytes], bytes] = element) -> bytes:  # fmt: skip
    info = put(0x30, kind + put(0xA0, content))
    signed = element(2, b"\1") + element(0x31, algorithms) + info + element(0x31, b"")
    return put(0x30, outer + put(0xA0, put(0x30, signed)))


def signed_mail(der: bytes, kind: str = "application/pkcs7-mime; smime-type=signed-data; name=smime.p7m") -> bytes:
    body = base64.encodebytes(der).replace(b"\n", b"\r\n")
    return mail(body, Content_Type=kind, Content_Transfer_Encoding="base64")


def smime_tags(der: bytes, *kind: str) -> set[str]:
    found = inspect(signed_mail(der, *kind), Limits())
    return found.tags | {f"limit:{limit}" for limit in found.limits}


HARMLESS = element(0x30, DATA + element(0xA0, element(4, b"Subject: x\r\n\r\nAll is fine\r\n")))
NOISE = element(4, bytes(range(128, 256)) * 8)
PIECES = b"".join(element(4, MESSAGE[at : at + 7]) for at in range(0, len(MESSAGE), 7))
SMIME = {
    "one piece": cms(OCTETS),
    "a decoy among the algorithms": cms(OCTETS, algorithms=element(0x30, DATA + HARMLESS + NOISE)),
    "another type of content": cms(OCTETS, kind=OTHER, algorithms=NOISE),
    "unending": cms(unending(0x24, PIECES), put=unending),
    "pieces in pieces": cms(unending(0x24, unending(0x24, PIECES[:-9]) + element(0x24, PIECES[-9:]))),
    "compressed": cms(element(4, zlib.compress(MESSAGE)), outer=COMPRESSED_DATA),
    "compressed and cut off": cms(element(4, zlib.compress(MESSAGE)[:-4]), outer=COMPRESSED_DATA),
    "signed within signed": cms(cms(OCTETS)),
    "cut off": cms(OCTETS)[:-5],
    "text": cms(element(4, b"Subject: x\r\n\r\n" + EICAR)),
}


@pytest.mark.parametrize("name", SMIME)
def test_the_message_in_signed_data_was_searched_for_instead_of_read(name: str) -> None:
    """The first bytes that looked like a content counted, wherever they were."""
    assert "malware:eicar" in smime_tags(SMIME[name])


def test_signed_data_counts_whatever_it_is_called() -> None:
    """Some programs open it by its content, or as application/octet-stream with a name of its own."""
    assert "malware:eicar" in smime_tags(cms(OCTETS), "application/octet-stream; name=a.p7s")


def test_a_million_pieces_of_signed_data_were_cut_silently() -> None:
    """Only the first 100,000 were read, without a word."""
    pieces = b"\4\1 " * 300_000
    assert "malware:eicar" in smime_tags(cms(unending(0x24, pieces[:330_000] + OCTETS), put=unending))
    assert "limit:archive-work" in smime_tags(cms(unending(0x24, pieces * 4 + OCTETS), put=unending))


def test_encrypted_mail_is_not_taken_for_a_message() -> None:
    """Its content has the same form, in another place."""
    secret = element(0x30, DATA + element(0x30, DATA) + unending(0xA0, element(4, b"X" * 500)))
    enveloped = element(2, b"\0") + element(0x31, b"") + secret
    der = element(0x30, SIGNED + element(0xA0, element(0x30, enveloped)))
    assert list(smime.contents(der, Budget())) == []


def test_deeply_nested_signed_data_is_a_limit() -> None:
    der = OCTETS
    for _ in range(60):
        der = element(0x30, SIGNED + element(0xA0, der))
    assert "limit:smime-depth" in smime_tags(der)


@pytest.mark.parametrize(
    "junk", [b"", b"\x30", b"\x30\x80", b"\x30\x84\xff\xff\xff\xff\x06", b"\x30\x80\x04\x80", b"\xff" * 9]
)
def test_signed_data_that_is_no_such_thing_does_no_harm(junk: bytes) -> None:
    assert smime_tags(junk) <= {"mime:broken-archive"}


def test_openssl_shows_what_we_read(tmp_path: Path) -> None:
    """A message that openssl signed, in its own encodings."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    run = lambda *command: subprocess.run(["openssl", *command], cwd=tmp_path, check=True, capture_output=True)  # noqa: E731
    run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "k", "-out", "c", "-days", "2", "-subj", "/CN=a")
    (tmp_path / "in").write_bytes(MESSAGE)
    for option in ("-nosmimecap", "-stream", "-noattr"):
        run("cms", "-sign", "-in", "in", "-signer", "c", "-inkey", "k", "-nodetach", "-binary", "-outform", "DER",
            "-out", "out", option)  # fmt: skip
        der = (tmp_path / "out").read_bytes()
        assert b"".join(smime.contents(der, Budget())) == MESSAGE
        assert "malware:eicar" in smime_tags(der)
    run("cms", "-encrypt", "-in", "in", "-outform", "DER", "-out", "out", "-stream", "c")
    assert list(smime.contents((tmp_path / "out").read_bytes(), Budget())) == []


ENCODED = b"begin 644 a.txt\n" + b"".join(
    binascii.b2a_uu(EICAR[at : at + 45]) for at in range(0, len(EICAR), 45)
) + b"`\nend\n"  # fmt: skip
PEM = b"-----BEGIN PKCS7-----\n" + base64.encodebytes(cms(OCTETS)) + b"-----END PKCS7-----\n"
CALENDAR = b"BEGIN:VCALENDAR\r\nATTACH;ENCODING=BASE64:" + base64.b64encode(EICAR) + b"\r\nEND:VCALENDAR\r\n"
IN_ARCHIVES = {
    "smime.p7m": cms(OCTETS),
    "unnamed": cms(OCTETS),
    "pem.p7m": PEM,
    "a.pem": PEM,
    "a.uue": ENCODED,
    "a.txt": ENCODED,
    "a.ics": CALENDAR,
}


@pytest.mark.parametrize("name", IN_ARCHIVES)
def test_a_file_in_an_archive_was_only_opened_if_it_was_an_archive(name: str) -> None:
    """The same file as an attachment was read."""
    assert "malware:eicar" in tags(IN_ARCHIVES[name], name)
    assert "malware:eicar" in tags(zipped((name, IN_ARCHIVES[name])), "a.zip")
    assert "malware:eicar" in tags(tarred((name, b"0", IN_ARCHIVES[name])), "a.tar")


@pytest.mark.parametrize(
    "key",
    [
        b"ATTACH;X-FILENAME=evil.js:data:application/octet-stream;base64,",
        b'ATTACH;VALUE=BINARY;ENCODING="BASE64";X-FILENAME=evil.js:',
        b"PHOTO;BASE64:",
        b"KEY:data:application/octet-stream;base64,",
    ],
)
def test_a_file_in_a_calendar_or_card_was_not_decoded(key: bytes) -> None:
    """There are more ways to say that it is encoded."""
    found = tags(b"BEGIN:VCALENDAR\r\n" + key + base64.b64encode(EICAR) + b"\r\nEND:VCALENDAR\r\n", "a.ics")
    assert "malware:eicar" in found
    assert ("mime:executable" in found) == (b"evil.js" in key)


def test_encoded_text_in_archives_is_bounded() -> None:
    """To read it in every way takes a second for each megabyte."""
    text = b"This is a text.\r\n" * 30_000 + ENCODED
    found = tags(zipped(*((f"{number}.txt", text) for number in range(9))), "a.zip")
    assert found & {"limit:archive-work", "limit:readings"}
    assert "malware:eicar" in tags(zipped(("a.txt", text * 3)), "a.zip")


def test_the_name_of_a_signed_file_was_not_checked() -> None:
    """Programs that verify it write it without the suffix."""
    content = cms(element(4, SCRIPT))
    assert "mime:executable" in tags(content, "invoice.js.p7m")
    assert "mime:executable" in tags(content, "invoice.js.p7m."), "Windows removes the dot at the end"
    assert "mime:executable" in tags(zipped(("invoice.js.P7M", content)), "a.zip")
    assert "mime:executable" not in tags(content, "invoice.txt.p7m")


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
    started = time.process_time()
    assert "limit:archive-work" in tags(member * 450, "a.zip")
    assert time.process_time() - started < 10
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
