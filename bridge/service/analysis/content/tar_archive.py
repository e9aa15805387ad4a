"""Tar files, read as the most tolerant program reads them.

A block whose checksum is right is a header, unless it is certainly part of a file: programs skip damaged blocks, and
disagree on which types of members have data and on where an archive ends. Every header is a member, whatever
its type, because programs extract types that they do not know as ordinary files.
"""

from __future__ import annotations

import io
import re
import tarfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import IO

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.unpacking import MAX_MEMBER, BadArchive, Budget, CutOff, Member

_BLOCK = 512
_CHUNK = 256 * 1024
_OCTAL = re.compile(rb"[\0\s]*([0-7]+)")
_MAY_BE_SUM = bytes(byte in b"\0\t\n\v\f\r 01234567+-\x80\xff" for byte in range(256))  # its first byte
_LOW = bytes(range(128))
_SMALLEST_SUM = 8 * 32  # the spaces alone
_EXACT = 256  # bytes whose sum is less than 65521, which Adler-32 divides it by (RFC 1950 8.2)
_SUM = re.compile(rb"[\0\s]*[0-7]|[\x80\xff+-]")  # the beginning of a number in any notation
_PATHS = re.compile(rb"(?:(?<!\d)(\d{1,9})[ \t])?\b(?:path|GNU\.sparse\.name)=")  # and the record's length
_SIZES = re.compile(rb"\bsize=[ \t+]*0*(\d{1,18})")
_GAPS = re.compile(rb"\b(?:GNU\.sparse\.[a-z]++|size)=")  # in a record about a file with gaps
_LONG_NUMBER = re.compile(rb"(?<!\d)\d{101}")
_PATH_COST = 10  # work for each byte of a name that a record may have
_SIZE_COST = 256  # work for each size that a member may have
_BLOCK_COST, _SUM_COST = 256, 1024  # work for each block, without and with what may be the sum of its bytes
_RECORD_COST = 32  # work for each byte of records
_GAP_COST = 128  # work for each byte that describes gaps
_PLAIN_NUMBER = re.compile(rb" *[0-7]+[ \0]*|\0*")
_PLAIN_SIZE = re.compile(rb"[0-7]{11}[ \0]")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_PLAIN_TYPES = (b"0", b"\0")
_LONG_NAME, _DIRECTORY, _SPARSE = b"L", b"5", b"S"
_FINAL = frozenset((b"\0", b"0", b"1", b"2", b"3", b"4", _DIRECTORY, b"6", b"7"))  # what is announced is for these
_EXTENDED, _GLOBAL = (b"x", b"X"), b"g"


def is_tar(content: bytes, *, is_unknown: bool = False) -> bool:
    """By the first header; or by any other, if it has the usual magic number or nothing says what the file is."""
    if content[257:262] == b"ustar" or is_header(content, 0):
        return True
    if is_unknown:
        firsts = content[148::_BLOCK].translate(_MAY_BE_SUM)
        at = firsts.find(b"\1")
        while at >= 0:
            if is_header(content, at * _BLOCK, at_least=_SMALLEST_SUM):
                return True
            at = firsts.find(b"\1", at + 1)
        return False
    letters = content[257::_BLOCK]
    at = letters.find(b"u")
    while at >= 0:
        if content.startswith(b"ustar", at * _BLOCK + 257) and is_header(content, at * _BLOCK):
            return True
        at = letters.find(b"u", at + 1)
    return False


def begins_as_plain_tar(content: bytes) -> bool:
    """Whether the first header is that of a plain file: programs refuse unusual ones, and look for another archive."""
    numbers = *(content[at : at + 8] for at in (100, 108, 116, 329, 337)), content[124:136], content[136:148]
    is_plain = content[156:157] in (*_PLAIN_TYPES, _DIRECTORY) and all(map(_PLAIN_NUMBER.fullmatch, numbers))
    return is_plain and is_header(content, 0, at_least=_SMALLEST_SUM)


def is_header(content: bytes, at: int, at_least: int = 0) -> bool:
    """Whether the sum of its bytes is right, with spaces instead of the sum itself. Some programs add signed bytes.

    Signed bytes of random data add up to small numbers: every second file of 30 MB has a block whose sum is right.
    """
    if at + _BLOCK > len(content) or not _SUM.match(content, at + 148, at + 156):
        return False
    block = content[at : at + _BLOCK]
    expected = _number(block[148:156])
    if expected is None or expected < at_least:
        return False
    rest = block[:148] + b" " * 8 + block[156:]
    signed = expected + 256 * len(rest.translate(None, _LOW))
    # Adler-32 begins with 1 and is exact for 256 bytes. It is quick, and a file may have many such blocks.
    total = sum((zlib.adler32(half) & 0xFFFF) - 1 for half in (rest[:_EXACT], rest[_EXACT:]))
    return total in (expected, signed)


def _number(raw: bytes) -> int | None:
    """Octal; or binary or in Base64, if the first byte says so."""
    if raw[:1] in (b"+", b"-"):
        digits = raw[1:].rstrip(b" \0")
        if digits.translate(None, _BASE64):
            return None
        return sum(_BASE64.index(digit) << 6 * place for place, digit in enumerate(reversed(digits)))
    if raw[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(raw[1:], "big") if raw[0] == 0x80 else -1
    match = _OCTAL.match(raw)
    return int(match[1], 8) if match else None


@dataclass(frozen=True, slots=True)
class _Header:
    at: int
    kind: bytes
    names: tuple[str, ...]
    size: int
    is_plain: bool  # every program reads it alike

    @property
    def start(self) -> int:
        return self.at + _BLOCK

    @property
    def end(self) -> int:
        """Where the next header should be."""
        return self.start + -(-self.size // _BLOCK) * _BLOCK


@dataclass(slots=True)
class _Announced:
    """What other headers announce about the member that follows them."""

    names: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    is_resized: bool = False  # perhaps with a size that we cannot read
    gaps: bytes = b""  # records, if the member is sparse


def tar_members(content: bytes, _names: Collection[str], budget: Budget) -> Iterator[Member]:
    announced, for_all = _Announced(), _Announced()
    at, expected, is_broken, is_cut_off = 0, 0, False, False
    while at + _BLOCK <= len(content):
        budget.take_work(_SUM_COST if _SUM.match(content, at + 148, at + 156) else _BLOCK_COST)
        if not is_header(content, at):
            is_broken |= at == expected and any(content[at : at + _BLOCK])
            at += _BLOCK
            continue
        budget.take_member()
        header = _read_header(content, at)
        is_disputed = at != expected or not header.is_plain
        expected = max(expected, header.end)
        is_cut_off |= header.start + header.size > len(content)
        if header.kind in (_LONG_NAME, _GLOBAL, *_EXTENDED):
            length, cost = min(header.size, len(content)), 1 if header.kind == _LONG_NAME else _RECORD_COST
            # Some programs forget what an earlier header said for all members; others do not.
            for announcement in (announced, for_all) if header.kind == _GLOBAL else (announced,):
                budget.take_work(cost * length)
                _announce(announcement, header, content, budget)
            yield from _members(content, header, _Announced(), _Announced(), is_disputed, budget)
        else:
            yield from _members(content, header, announced, for_all, is_disputed, budget)
            if announced.is_resized or for_all.is_resized:
                header = replace(header, is_plain=False)
            # Some programs take a header of another type for a member, others for one more that announces a member.
            announced = _Announced() if header.kind in _FINAL else announced
        at = header.end if header.is_plain else at + _BLOCK
    if is_broken or is_cut_off:
        raise BadArchive if is_broken else CutOff


def _read_header(content: bytes, at: int) -> _Header:
    block = content[at : at + _BLOCK]
    name, prefix = (_text(raw) for raw in (block[:100], block[345:500]))
    size = _number(block[124:136]) or 0
    kind = block[156:157]
    is_plain = kind in _PLAIN_TYPES and _PLAIN_SIZE.fullmatch(block[124:136]) is not None
    is_plain &= not name.endswith("/")  # to some programs a directory, which has no data
    return _Header(at, kind, (f"{prefix}/{name}", name) if prefix else (name,), max(size, 0), is_plain)


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


def _announce(announced: _Announced, header: _Header, content: bytes, budget: Budget) -> None:
    data = content[header.start : header.start + header.size]
    if header.kind == _LONG_NAME:
        announced.names.append(_text(data))
        return
    line_end = -1
    for match in _PATHS.finditer(data):
        start, length = match.end(), int(match[1] or 0)
        if line_end < start:
            line_end = data.find(b"\n", start)
            line_end = line_end if line_end >= 0 else len(data)
        budget.take_work(_SIZE_COST + length + _PATH_COST * (line_end - start))  # a line may contain thousands
        whole = data[start : match.start() + length - 1]  # which may contain the end of a line
        announced.names += [_text(path) for path in dict.fromkeys((data[start:line_end], whole)) if path]
    announced.sizes += [int(size) for size in _SIZES.findall(data)]
    announced.is_resized |= b"size" in data
    if b"GNU.sparse." in data:
        announced.gaps = b"".join(_records_of_gaps(data))


def _records_of_gaps(data: bytes) -> Iterator[bytes]:
    for line in data.split(b"\n")[:-1]:
        if (found := _GAPS.search(line)) and not _LONG_NUMBER.search(line, found.end()):
            yield _record(line[found.start() :] + b"\n")


def _members(
    content: bytes, header: _Header, announced: _Announced, for_all: _Announced, is_disputed: bool, budget: Budget
) -> Iterator[Member]:
    budget.take_work(_SIZE_COST * (len(announced.sizes) + len(for_all.sizes) + len(for_all.names)))
    names = tuple(dict.fromkeys((*header.names, *announced.names, *for_all.names)))
    rest = max(0, len(content) - header.start)
    sizes = {min(size, rest) for size in (header.size, *announced.sizes, *for_all.sizes)}
    for size in sorted(sizes):
        data = content[header.start : header.start + size]
        budget.take(len(data))
        if data or not (header.kind == _DIRECTORY or all(name.endswith("/") for name in names)):
            yield Member(names, data, is_disputed=is_disputed or len(sizes) > 1)
    if header.kind == _SPARSE or announced.gaps:
        yield _sparse(content[header.at :], announced.gaps, names, budget)


def _record(text: bytes) -> bytes:
    """With its length, which includes the length of the length."""
    length = len(text) + 1
    return b"%d %b" % (length + len(str(length + len(str(length)))), text)


class _Described(io.BytesIO):
    """A tar file for the standard library, which may read every header in it, and the same ones for each member."""

    def __init__(self, content: bytes, budget: Budget) -> None:
        super().__init__(content)
        self._budget = budget
        self.cost = _GAP_COST

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self._budget.take_work(self.cost * len(data))
        return data


def _sparse(content: bytes, gaps: bytes, names: tuple[str, ...], budget: Budget) -> Member:
    """A file with gaps, which extraction fills with zeros. Rare, so the standard library does it.

    Of what precedes its header, the library gets only records about the gaps: for others, it takes quadratic time.
    """
    budget.take_work(len(content))
    if gaps:
        extended = tarfile.TarInfo("gaps")
        extended.type, extended.size = tarfile.XHDTYPE, len(gaps)
        content = b"".join((extended.tobuf(tarfile.USTAR_FORMAT), gaps, bytes(-len(gaps) % _BLOCK), content))
    stream = _Described(content, budget)
    try:
        with tarfile.TarFile(fileobj=stream) as archive:
            info = archive.next()
            source = archive.extractfile(info) if info is not None else None
            stream.cost = 0
            data = _read(source, budget) if source is not None else b""
    except (tarfile.TarError, OSError, ValueError, EOFError, IndexError, KeyError, RecursionError):
        return Member(names, None, limit="archive-method")
    return Member(names, data, is_disputed=True)


def _read(source: IO[bytes], budget: Budget) -> bytes:
    out, total = [], 0
    while block := source.read(_CHUNK):
        budget.take(len(block))
        total += len(block)
        if total > MAX_MEMBER:
            raise TooMuch("archive-size")
        out.append(block)
    return b"".join(out)
