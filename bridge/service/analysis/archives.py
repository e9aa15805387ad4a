"""Archives, unpacked within a budget.

A small archive can contain a huge file, and archives can contain archives. So everything unpacked
from one mail is charged to one `Budget`, and `TooMuch` ends the walk. Formats that the standard library
cannot read (RAR, 7z) are recognised but not opened. A broken member is reported, not raised.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bridge.mime.structure import TooMuch
from bridge.service.analysis import openpgp, tnef

MAX_MEMBER = 128 * 1024 * 1024  # one member is held in memory during its inspection
_CHUNK = 256 * 1024
_PIECE = 4 * 1024
_ZIP_TAIL = 22 + 65_535  # the end-of-central-directory record and the longest comment
_MAX_DIRECTORY = 16 * 1024 * 1024  # bytes of a zip file's central directory


@dataclass(slots=True)
class Budget:
    """What may still be unpacked."""

    members: int = 10_000
    bytes: int = 256 * 1024 * 1024
    depth: int = 4

    def take_member(self) -> None:
        self.members -= 1
        if self.members < 0:
            raise TooMuch("archive-members")

    def take(self, count: int) -> None:
        self.bytes -= count
        if self.bytes < 0:
            raise TooMuch("archive-size")


@dataclass(frozen=True, slots=True)
class Member:
    """A file within an archive. `content` is None if the file is encrypted or unreadable."""

    name: str
    content: bytes | None
    encrypted: bool = False


def kind_of(content: bytes) -> str:
    """The archive format by its magic number; empty if this is not an archive."""
    if content.startswith(_MAGIC_NUMBERS):
        return next(kind for magic, kind in _MAGIC if content.startswith(magic))
    if content[257:262] == b"ustar" or _has_tar_checksum(content):
        return "tar"
    if openpgp.is_message(content):
        return "pgp"
    if b"\x05" in content and content.rfind(b"PK\x05\x06", max(0, len(content) - _ZIP_TAIL)) >= 0:
        return "zip"  # programs recognise a zip file by its end, whatever comes before it
    return ""


def _has_tar_checksum(content: bytes) -> bool:
    """The only sign of the oldest tar format: the sum of its header, with spaces instead of the sum itself."""
    digits = content[148:156].strip(b" \0")
    if len(content) < 512 or not digits.isdigit() or len(digits) > 7:
        return False
    if b"8" in digits or b"9" in digits:
        return False
    return int(digits, 8) == sum(content[:148]) + 8 * 32 + sum(content[156:512])


_MAGIC = [
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"Rar!\x1a\x07", "rar"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (tnef.MAGIC, "tnef"),
    (b"]\0\0", "lzma"),
    (b"MSCF\0\0\0\0", "cab"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"LZIP", "lzip"),
]
_MAGIC_NUMBERS = tuple(magic for magic, _ in _MAGIC)


def members(content: bytes, kind: str, name: str, budget: Budget) -> Iterator[Member]:
    """The files in the archive. Raises TooMuch if the budget is exhausted, BadArchive if it is unreadable."""
    opener = _OPENERS.get(kind)
    if opener is None:
        raise BadArchive
    try:
        yield from opener(content, name, budget)
    except _BROKEN as exc:
        raise BadArchive from exc


class BadArchive(Exception):
    """The archive is broken, or its format is not supported."""


_BROKEN = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, struct.error,
    NotImplementedError, RuntimeError, ValueError, KeyError, IndexError, OverflowError,
)  # fmt: skip


def has_zip_member(content: bytes) -> bool:
    """Whether a zip file's member is somewhere in it: some programs find it without the file's directory."""
    at = content.find(_MEMBER) if b"\x03" in content else -1  # one byte is found much faster, and text has none
    while at >= 0 and _local_header(content, at) is None:
        at = content.find(_MEMBER, at + 4)
    return at >= 0


def _zip(content: bytes, _name: str, budget: Budget) -> Iterator[Member]:
    listed: set[int] = set()
    try:
        _check_directory(content, budget)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for info in archive.infolist():
                budget.take_member()
                listed.add(info.header_offset)
                if info.is_dir() and not info.file_size:
                    continue
                if info.flag_bits & 1:
                    yield Member(info.filename, None, encrypted=True)
                    continue
                yield Member(info.filename, _read_zip_member(archive, info, budget, content))
    except (BadArchive, *_BROKEN) as exc:
        yield from _unlisted_members(content, listed, budget)
        raise BadArchive from exc
    yield from _unlisted_members(content, listed, budget)


_MEMBER = b"PK\x03\x04"
_LOCAL = struct.Struct("<4xHHH8xIIHH")  # version, flags, method, sizes, lengths of name and extra field


def _unlisted_members(content: bytes, listed: set[int], budget: Budget) -> Iterator[Member]:
    """Members that the directory does not list, or all if there is none: some programs look for them one by one."""
    at = content.find(_MEMBER)
    while at >= 0:
        header = _local_header(content, at)
        if at not in listed and header is not None:
            budget.take_member()
            yield Member(header[3], _local_content(content, header, budget))
        at = content.find(_MEMBER, at + 4)


def _local_content(content: bytes, header: tuple[int, int, int, str], budget: Budget) -> bytes | None:
    start, method, size, _ = header
    if method == 8:
        return _inflated(content, start, budget)
    budget.take(min(size, len(content)))
    return content[start : start + size]


def _local_header(content: bytes, at: int) -> tuple[int, int, int, str] | None:
    """Where the member's bytes start, its compression (stored or deflated), its stored size, and its name."""
    if at + 30 > len(content):
        return None
    version, flags, method, size, _, name_length, extra_length = _LOCAL.unpack_from(content, at)
    if version & 0xFF > 63 or flags & 1 or method not in (0, 8) or not 0 < name_length < 1000:
        return None
    start = at + 30 + name_length + extra_length
    return start, method, size, content[at + 30 : at + 30 + name_length].decode("utf-8", "replace")


def _inflated(content: bytes, start: int, budget: Budget) -> bytes | None:
    try:
        return _inflate_from(zlib.decompressobj(-15), content, start, budget)[0]
    except zlib.error:
        return None


def _inflate_from(decoder: zlib._Decompress, content: bytes, at: int, budget: Budget) -> tuple[bytes, int]:
    """One stream, and where it ends.

    In pieces: what zlib is given and does not need, it copies, and there may be thousands of streams.
    """
    out = []
    while not decoder.eof and at < len(content):
        out.append(_inflate(decoder, content[at : at + _PIECE], budget))
        at += _PIECE
    return b"".join(out), min(at, len(content)) - len(decoder.unused_data)


def _read_zip_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, budget: Budget, content: bytes) -> bytes | None:
    try:
        with archive.open(info) as stream:
            return _read(stream.read, budget)
    except _BROKEN:  # other programs extract the file despite a wrong checksum
        header = _local_header(content, info.header_offset)
        return _local_content(content, header, budget) if header is not None else None


def _check_directory(content: bytes, budget: Budget) -> None:
    """Check the size of the directory before `zipfile` reads all of it into memory."""
    at = content.rfind(b"PK\x05\x06")
    if at < 0 or at + 22 > len(content):
        raise BadArchive
    _, size = struct.unpack_from("<HI", content, at + 10)
    if size != 0xFFFFFFFF and size > _MAX_DIRECTORY:
        raise TooMuch("archive-members")
    if content.count(b"PK\x01\x02", max(0, at - _MAX_DIRECTORY), at) > budget.members:
        raise TooMuch("archive-members")


def _tar(content: bytes, _name: str, budget: Budget) -> Iterator[Member]:
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for info in archive:
            budget.take_member()
            stream = archive.extractfile(info) if info.isreg() else None
            if stream is not None:
                yield Member(info.name, _read(stream.read, budget))


def _gzip(content: bytes, name: str, budget: Budget) -> Iterator[Member]:
    budget.take_member()
    out, at = [], 0
    while content.startswith(b"\x1f\x8b", at):  # concatenated streams form one file
        decoder = zlib.decompressobj(-15)  # ignores the checksum, as other programs do
        block, at = _inflate_from(decoder, content, _gzip_header(content, at), budget)
        out.append(block)
        at += 8
    yield Member(_stem(name, ".gz"), b"".join(out))
    if not decoder.eof:  # what there was of it has been inspected
        raise EOFError


def _gzip_header(content: bytes, at: int) -> int:
    """Where it ends: after ten bytes, and what its flags announce (RFC 1952)."""
    flags = content[at + 3] if len(content) > at + 3 else 0
    at += 10
    if flags & 4:
        at += 2 + int.from_bytes(content[at : at + 2], "little")
    for flag in (8, 16):  # a name, a comment
        if flags & flag:
            at = content.find(b"\0", at) + 1 or len(content)
    return at + (2 if flags & 2 else 0)


def inflated(content: bytes, budget: Budget) -> bytes | None:
    """Decompressed zlib data; None if it is not zlib data."""
    try:
        return _inflate(zlib.decompressobj(), content, budget)
    except zlib.error:
        return None


def _bzip2(content: bytes, name: str, budget: Budget) -> Iterator[Member]:
    budget.take_member()
    stream = bz2.BZ2File(io.BytesIO(content))
    yield Member(_stem(name, ".bz2"), _read(stream.read, budget))


def _xz(content: bytes, name: str, budget: Budget) -> Iterator[Member]:
    budget.take_member()
    out: list[bytes] = []
    at = 0
    while content.startswith(b"\xfd7zXZ", at):
        at = _PADDING.match(content, _unlzma(content, at, lzma.FORMAT_XZ, out, budget)).end()  # type: ignore[union-attr]
    yield Member(_stem(name, ".xz"), b"".join(out))


_PADDING = re.compile(rb"\0*")  # may follow each stream


def _lzma(content: bytes, name: str, budget: Budget) -> Iterator[Member]:
    budget.take_member()
    out: list[bytes] = []
    _unlzma(content, 0, lzma.FORMAT_ALONE, out, budget)
    yield Member(_stem(name, ".lzma"), b"".join(out))


def _unlzma(content: bytes, at: int, form: int, out: list[bytes], budget: Budget) -> int:
    """Appends the content of one stream, read in pieces like those of `_inflate_from`; returns where it ends."""
    decoder = lzma.LZMADecompressor(form, memlimit=128 * 1024 * 1024)
    while not decoder.eof and at < len(content):
        block = decoder.decompress(content[at : at + _PIECE], _CHUNK)
        while block or not (decoder.eof or decoder.needs_input):
            budget.take(len(block))
            out.append(block)
            block = b"" if decoder.eof else decoder.decompress(b"", _CHUNK)
        at += _PIECE
    return min(at, len(content)) - len(decoder.unused_data)


def _inflate(decoder: zlib._Decompress, content: bytes, budget: Budget) -> bytes:
    out, data = [], content
    while not decoder.eof and (block := decoder.decompress(data, _CHUNK)):
        budget.take(len(block))
        out.append(block)
        data = decoder.unconsumed_tail
    return b"".join(out)


def _read(read: Callable[[int], bytes], budget: Budget) -> bytes:
    out, total = [], 0
    while block := read(_CHUNK):
        budget.take(len(block))
        total += len(block)
        if total > MAX_MEMBER:
            raise TooMuch("archive-size")
        out.append(block)
    return b"".join(out)


def _stem(name: str, suffix: str) -> str:
    return name[: -len(suffix)] if name.lower().endswith(suffix) else name


def _pgp(content: bytes, _name: str, budget: Budget) -> Iterator[Member]:
    def inflate(data: bytes, algorithm: int) -> bytes:
        if algorithm == 3:
            return _read(bz2.BZ2File(io.BytesIO(data)).read, budget)
        return _inflate(zlib.decompressobj(-15 if algorithm == 1 else 15), data, budget) if algorithm else data

    for name, data in openpgp.files(content, inflate):
        budget.take_member()
        yield Member(name, data)


def _tnef(content: bytes, _name: str, budget: Budget) -> Iterator[Member]:
    for name, data in tnef.attachments(content):
        budget.take_member()
        budget.take(len(data))
        yield Member(name, data)


_OPENERS: dict[str, Callable[[bytes, str, Budget], Iterator[Member]]] = {
    "zip": _zip,
    "tar": _tar,
    "gzip": _gzip,
    "bzip2": _bzip2,
    "xz": _xz,
    "lzma": _lzma,
    "pgp": _pgp,
    "tnef": _tnef,
}
OPENABLE = frozenset(_OPENERS)
# They contain a single file, or are part of the mail: no nesting that deserves a tag.
COMPRESSORS = frozenset({"gzip", "bzip2", "xz", "lzma", "pgp", "tnef"})
