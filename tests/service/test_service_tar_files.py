"""Tar files within a mail, in all the ways in which programs read their headers."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.tar_archive import tar_members
from bridge.service.analysis.content.unpacking import Budget
from tests.processor_time import fair_cpu_s
from tests.service.container_kit import SCRIPT, ZIP, extracted, tags, tarred
from tests.service.service_kit import EICAR


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


def record(text: bytes) -> bytes:
    """Of an extended header: the length includes its own digits."""
    length = len(text) + 2
    return b"%d %b\n" % (length + len(str(length + len(str(length)))), text)


SPARSE = record(b"GNU.sparse.major=1") + record(b"GNU.sparse.minor=0")
SPARSE_HEADERS = {
    "records": tarred(("p", b"x", SPARSE + b"6 a=b\n" * 1_500_000), ("f", b"0", b"")),
    "numbers of gaps": tarred(("p", b"x", SPARSE), ("f", b"0", b"4000000\n" + b"0\n" * 1_300_000)),
    "links": tarred(*(("p", b"x", SPARSE), ("f", b"2", b"")) * 2000),
    "headers of long names": tarred(("p", b"x", SPARSE), *(("f", b"K", b""),) * 2000),
}


@pytest.mark.parametrize("kind", SPARSE_HEADERS)
def test_small_headers_of_a_sparse_file_kept_a_process_busy(kind: str) -> None:
    """A mail of a kilobyte took a minute, because the standard library read them without any charge, or a crash."""
    content, found = SPARSE_HEADERS[kind], []
    assert fair_cpu_s(lambda: found.append(tags(gzip.compress(gzip.compress(content)), "a.tar.gz.gz"))) < 5
    assert {"limit:archive-work", "limit:archive-method"} & found[0]


def test_the_blocks_behind_a_header_were_looked_at_again_for_each_archive_before_them() -> None:
    """Headers at twenty alignments in a mail of 10 KB: a process took 30 seconds, and no limit said so."""
    block = b"\x90" * 148 + b"0200000\0" + b"\x90" * 356
    content = tarred(("d", b"5", b""))[:512] + block * 2000
    with pytest.raises(TooMuch, match="archive-work"):
        list(tar_members(content, (), Budget(work=1_000_000)))
    whole = tarred(("a.bin", b"0", block * 2000))
    assert [len(member.content or b"") for member in tar_members(whole, (), Budget(work=1_000_000))] == [512 * 2000]
