"""What is unpacked here also reaches the engines, unless they certainly unpack it themselves.

ClamAV knows fewer formats than archive programs, and reads some of them more strictly.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import struct
import subprocess
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.mail.message import Spool
from bridge.service.analysis.content.optional_formats import LIBARCHIVE
from bridge.service.analysis.findings import Inspection
from bridge.service.analysis.inspection import inspect
from bridge.service.analysis.job import StoredMail
from bridge.service.analysis.limits import Limits
from bridge.service.analysis.worker_pool import WorkerPool
from tests.requirements import library, need
from tests.service.container_kit import deflated, entry, local, with_directory
from tests.service.service_kit import CONFIG, EICAR, attached, service

ALL = Limits(formats=(*Limits().formats, LIBARCHIVE))


def zip_file(method: int = zipfile.ZIP_DEFLATED, name: str = "a.txt", size: int = 1) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, EICAR * size)
    return buffer.getvalue()


def streamed_zip() -> bytes:
    """Written to a pipe: the sizes follow the data."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with zipfile.ZipFile(pipe := Pipe(), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", EICAR)
        archive.writestr("b.txt", EICAR)
    return pipe.getvalue()


def zip_that_says(header: dict[str, int], in_both: dict[str, int] | None = None, extra: bytes = b"") -> bytes:
    """A zip file whose header has other values than its directory, or both have odd ones."""
    data, both = deflated(EICAR), in_both or {}
    usual = {"method": 8, "crc": zlib.crc32(EICAR), "packed": len(data), "size": len(EICAR)} | both
    written = local(b"a.txt", data, extra=extra, **(usual | header))  # type: ignore[arg-type]
    return with_directory(written, entry(b"a.txt", extra=extra, **usual))  # type: ignore[arg-type]


def zip64() -> bytes:
    sizes = struct.pack("<HHQQ", 1, 16, len(EICAR), len(deflated(EICAR)))
    return zip_that_says({}, {"packed": 0xFFFFFFFF, "size": 0xFFFFFFFF}, sizes)


def pdf(about: bytes, content: bytes, *others: bytes) -> bytes:
    """With a file in it."""
    file = b"<</Type/EmbeddedFile/Length %d%b>>stream\n%b\nendstream" % (len(content), about, content)
    objects = (b"<</Type/Filespec/F(a.txt)/EF<</F 2 0 R>>>>", file, *others)
    return b"%PDF-1.7\n" + b"".join(b"%d 0 obj\n%b\nendobj\n" % (n, each) for n, each in enumerate(objects, 1))


def predicted(content: bytes) -> bytes:
    """Each byte as the difference from the one before: one row, as in PNG (RFC 2083, 6.3)."""
    return b"\1" + bytes((byte - before) & 255 for byte, before in zip(content, b"\0" + content, strict=False))


def xz_of_blocks(*files: bytes) -> bytes:
    """One stream with the block of each of these xz files, as `xz` writes it with several threads."""
    blocks, records = b"", b""
    for file in files:
        index = len(file) - 12 - 4 * (int.from_bytes(file[-8:-4], "little") + 1)
        blocks += file[12:index]
        records += file[index + 2 : -16].rstrip(b"\0")
    records = bytes((0, len(files))) + records
    records += bytes(-len(records) % 4)
    end = struct.pack("<I", len(records) // 4) + files[0][6:8]
    checksums = (struct.pack("<I", zlib.crc32(data)) for data in (records, end))
    return files[0][:12] + blocks + records + next(checksums) + next(checksums) + end + b"YZ"


ARROWED = b"/Filter/FlateDecode/DecodeParms<</Predictor 11/Columns %d>>" % len(EICAR)
SELDOM_READ = {
    "zip: LZMA": zip_file(zipfile.ZIP_LZMA),
    "zip: another length in the header": zip_that_says({"packed": 10}),
    "zip: no length in the header": zip_that_says({"packed": 0}),
    "zip: a wrong length twice": zip_that_says({}, {"packed": 10}),
    "zip: a method that does not exist": zip_that_says({"method": 99}),
    "zip: flags": zip_that_says({}, {"flags": 0x2000}),
    "zip: encrypted in the header": zip_that_says({"flags": 1}),
    "zip: numbers of 64 bits": zip64(),
    "zip: a mark before it": b"PK00" + zip_file(),
    "zip: a directory elsewhere": zip_file()[:-6] + bytes(6),
    "bzip2: two streams": bz2.compress(b"x") + bz2.compress(EICAR),
    "bzip2: cut off": bz2.compress(EICAR)[:-4],
    "gzip: a checksum of the header": gzip.compress(EICAR)[:3] + b"\2" + gzip.compress(EICAR)[4:10] + b"\0\0"
    + gzip.compress(EICAR)[10:],
    "gzip: zeros between two streams": gzip.compress(b"x") + bytes(512) + gzip.compress(EICAR),
    "xz: cut off": lzma.compress(EICAR)[:-12],
    "xz: a filter": lzma.compress(EICAR, filters=[{"id": lzma.FILTER_ARM}, {"id": lzma.FILTER_LZMA2}]),
    "xz: a filter in the second block": xz_of_blocks(
        lzma.compress(b"x"), lzma.compress(EICAR, filters=[{"id": lzma.FILTER_ARM}, {"id": lzma.FILTER_LZMA2}])
    ),
    "PDF: a predictor": pdf(ARROWED, zlib.compress(predicted(EICAR))),
    "PDF: a filter elsewhere": pdf(b"/Filter 3 0 R", zlib.compress(EICAR), b"[/FlateDecode]"),
}  # fmt: skip


def shown(content: bytes, limits: Limits = ALL, name: str = "a.bin") -> list[tuple[bytes, bool, str | None]]:
    """What is kept for engines: the content, whether they may not find it themselves, and its type."""
    found: list[tuple[bytes, bool, str | None]] = []
    inspect(attached(content, name), limits, lambda data, _names, *about: found.append((data, *about)))
    return found


@pytest.mark.parametrize("name", SELDOM_READ)
def test_engines_did_not_get_what_only_archive_programs_unpack(name: str) -> None:
    """ClamAV called each of these clean, and so did we; 7-Zip, WinRAR or a PDF viewer extract the file."""
    assert any(is_opaque and EICAR in data for data, is_opaque, _ in shown(SELDOM_READ[name]))


USUAL = {
    "stored": zip_file(zipfile.ZIP_STORED),
    "deflated": zip_file(size=100),
    "streamed": streamed_zip(),
    "a name in UTF-8": zip_file(name="\u00e4.txt"),
    "gzip": gzip.compress(EICAR),
    "bzip2": bz2.compress(EICAR),
    "xz": lzma.compress(EICAR),
    "xz: several blocks": xz_of_blocks(*map(lzma.compress, (b"x" * 1000, EICAR, EICAR))),  # each large file has them
}


@pytest.mark.parametrize("name", USUAL)
def test_what_every_engine_unpacks_is_not_sent_twice(name: str) -> None:
    """Ordinary archives take no more time than before."""
    assert not any(is_opaque for _, is_opaque, _ in shown(USUAL[name]))


@pytest.mark.parametrize("method", ["LZMA2", "Deflate"])
def test_clamav_did_not_get_files_of_archives_whose_format_it_knows(method: str, tmp_path: Path) -> None:
    """ClamAV unpacks few methods of 7z. Engines that get single objects open such archives, so they get none of it."""
    need("7z")
    library("libarchive", "archives")
    (tmp_path / "a.txt").write_bytes(b"A line of text.\n" * 1000 + EICAR)
    command = ["7z", "a", "-bd", f"-m0={method}", "-mhc=off", "a.7z", "a.txt"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    found = [about for data, *about in shown((tmp_path / "a.7z").read_bytes()) if EICAR in data]
    assert found == [[True, None]]


def test_clamd_called_a_zip_file_clean_that_it_cannot_unpack(tmp_path: Path, clamd) -> None:
    """With a real clamd, which knows nothing but this signature."""
    with service(tmp_path, CONFIG + f"analyzers: {{clamav: {{address: '127.0.0.1:{clamd.port}'}}}}\n") as running:
        for name in ("zip: LZMA", "zip: another length in the header", "bzip2: two streams", "PDF: a predictor"):
            found = running.submit(attached(SELDOM_READ[name])).json["tags"]
            assert any(tag.startswith("malware:lab.eicar") for tag in found), (name, found)


async def inspected(content: bytes) -> Inspection:
    """In a process, where objects for engines are kept."""
    stored = StoredMail(Spool(1 << 24))
    stored.write(attached(content))
    pool = WorkerPool("bridge.service.analysis.inspector_process", 1, 1 << 30, {})
    try:
        await pool.start()
        return await pool.ask(stored, replace(ALL, keep_objects=True).to_dict(), 60.0, Inspection.from_dict)
    finally:
        await pool.stop()


async def test_a_large_archive_is_not_held_because_engines_get_its_files() -> None:
    """More than a second mail may have, unless it is compressed."""
    text = b"A line of text.\n" * (45 * 1024 * 1024 // 16)
    found = await inspected(gzip.compress(b"x") + bytes(512) + gzip.compress(text, 1))
    assert not found.limits
    assert found.rendition
    assert sum(map(len, found.rendition)) < 36 * 1024 * 1024


async def test_engines_get_the_same_file_once() -> None:
    """The same file under several names in an archive, or in both trees of an image."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for name in ("a.txt", "b.txt"):
            archive.writestr(name, b"A line of text.\n" * 60_000)
    found = await inspected(buffer.getvalue())
    assert found.rendition
    assert sum(map(len, found.rendition)) < 1_500_000
