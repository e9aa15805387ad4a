"""Compressed files: gzip, bzip2, xz and lzma, and the decoder that zip files and S/MIME use too.

The decoders of the standard library discard what they produced in the call that fails; other programs keep it,
so it is decoded again, and from the failed call on in smaller and smaller steps. Input is passed in pieces that
grow, because a decoder copies what it does not need, and a file may consist of many thousands of streams. Other
programs still read more of some damaged data (7-Zip and unzip ignore errors in deflate codes, The Unarchiver ignores
the checksums of xz), so a mail with a damaged file is not delivered by default (`default_scores`).

Engines that look for malware may stop at damage, or after the first stream, as ClamAV does with bzip2: only a file
that is one whole stream is certainly read by all.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from bridge.mime.structure import TooMuch
from bridge.service.analysis.content.unpacking import MAX_MEMBER, BadArchive, Budget, CutOff, Member

MAX_MEMORY = 128 * 1024 * 1024  # that a decoder may use; `xz -9` needs 65 MiB
STREAM_COST = 1024  # work, however short a stream is: creating a decoder takes longer than using it
BZIP2_MAGIC, XZ_MAGIC = b"BZh", b"\xfd7zXZ"
_FIRST_PIECE, _MAX_PIECE = 512, 64 * 1024
_CHUNK = 256 * 1024
# Bytes into and out of one call; the smaller ones only where larger ones have failed.
_STEPS = ((_MAX_PIECE, _CHUNK), (256, _CHUNK), (1, _CHUNK), (1, 512), (1, 1))
_ONE_BYTE_IN = 2  # the first of them with a single byte
_STEP_COST = 256  # work for each such call
_BZIP2_WORK = 6  # for each byte: 16 to 100 ns
_GZIP_NAME = 256  # where a name of usual length ends
GZIP_LEVELS = (b"\0", b"\2", b"\4")  # 7-Zip opens no others
_USUAL_FLAGS = 1 | 4 | 8 | 16  # of gzip: text, an extra field, a name, a comment; but no checksum of the header
_OLDER = (b"\x1f\x9d", b"\x1f\x9e", b"\x1f\xa0", b"\x1f\x1e")  # what `gunzip` reads too: compress, LZH, pack
_LZMA_HEAD = 14  # bytes
_LZMA_DICTIONARY = 3 << 25  # bytes: of the sizes that liblzma accepts, the largest within MAX_MEMORY
_LZMA_DEFAULT = b"]\0\0"  # the usual parameters: enough for The Unarchiver, whatever the sizes are
_XZ_START, _XZ_END = 12, 12  # bytes around the blocks and the index
_MANY_BLOCKS = 1000  # `xz` writes one for 24 MiB or more, unless it is told otherwise
_MAX_INDEX = 20 * _MANY_BLOCKS  # bytes: two numbers for each block
_BZIP2_STREAM = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90|.{0,5}\Z)", re.DOTALL)
_NOT_ZERO = re.compile(rb"[^\0]")


class Decoder(Protocol):
    """The part of `bz2.BZ2Decompressor` and `lzma.LZMADecompressor` that is used here."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class Inflater:
    """zlib's decoder, used like the others. `wbits` is -15 for data without a header."""

    def __init__(self, wbits: int = -15) -> None:
        self._decoder = zlib.decompressobj(wbits)
        self._data, self._at = b"", 0
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        if data:
            self._data, self._at = self._data[self._at :] + data, 0
        # No more than may come out, because zlib returns a copy of what it has not yet used.
        given = self._data[self._at : self._at + max_length if max_length > 0 else None]
        block = self._decoder.decompress(given, max_length)
        self._at += len(given) - len(self._decoder.unconsumed_tail)
        self.needs_input = self._at >= len(self._data) and len(block) < max_length
        return block


@dataclass(frozen=True, slots=True)
class Decoded:
    """What there was of a stream. `end` is the position after it; `is_whole` is False if it is damaged or cut off."""

    content: bytes
    end: int
    is_whole: bool
    is_refused: bool = False  # damaged; other programs may read more


def decode(new: Callable[[], Decoder], data: bytes, at: int, budget: Budget) -> Decoded:
    """One stream that begins at `at`. Raises TooMuch."""
    out: list[bytes] = []
    failed: list[int] = []  # for each size of step: the call from which smaller steps are needed
    for _ in _STEPS:
        budget.take_work(STREAM_COST)
        out = []
        try:
            end, is_whole = _decode(new(), data, at, budget, out, failed)
        except _DAMAGED as exc:
            _refuse_limit(exc)
        else:
            return Decoded(b"".join(out), end, is_whole)
    return Decoded(b"".join(out), len(data), False, is_refused=True)


def streams(new: Callable[[], Decoder], magic: bytes, data: bytes, at: int, budget: Budget) -> Iterator[Decoded]:
    """The one that begins at `at`, and those that follow it, perhaps after zeros: together they form one file."""
    is_whole = True
    is_first = True
    while is_whole and data.startswith(magic, at) and (is_first or _may_follow(data, at)):
        is_first = False
        found = decode(new, data, at, budget)
        yield found
        is_whole, at = found.is_whole, _after_zeros(data, found.end)


def _may_follow(data: bytes, at: int) -> bool:
    """Programs ignore what follows a bzip2 stream if it only begins like another one."""
    return not data.startswith(BZIP2_MAGIC, at) or _BZIP2_STREAM.match(data, at) is not None


_DAMAGED = (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError)


def _refuse_limit(exc: Exception) -> None:
    """Only the text of liblzma's error distinguishes our limit from damaged data."""
    if isinstance(exc, lzma.LZMAError) and "limit" in str(exc):
        raise TooMuch("archive-memory") from exc


def _decode(
    decoder: Decoder, data: bytes, at: int, budget: Budget, out: list[bytes], failed: list[int]
) -> tuple[int, bool]:
    """Appends each call's result to `out`, and to `failed` if one fails. Whatever is repeated is charged as work."""
    charge, is_repeated = (budget.take_work, True) if failed else (budget.take, False)
    size, total, start = _FIRST_PIECE, 0, at
    while not decoder.eof and at < len(data):
        first_call = len(out)
        piece = data[at : at + min(size, _step(failed, len(out))[0])]
        budget.take_work(len(piece))
        at += len(piece)
        size = min(2 * size, _MAX_PIECE)
        while piece or not (decoder.eof or decoder.needs_input):
            try:
                block = decoder.decompress(piece, _step(failed, len(out))[1])
            except _DAMAGED:
                failed.append(len(out) if len(failed) >= _ONE_BYTE_IN else first_call)
                raise
            out.append(block)
            total += len(block)
            charge(len(block) + is_repeated * _STEP_COST)
            if isinstance(decoder, bz2.BZ2Decompressor):
                budget.take_slow(len(block), total, at - start, _BZIP2_WORK)
            if total > MAX_MEMBER:
                raise TooMuch("archive-size")
            piece = b""
    return at - len(decoder.unused_data), decoder.eof


def _step(failed: list[int], call: int) -> tuple[int, int]:
    """How large the step of this call is: one size smaller after each of the calls that failed."""
    return _STEPS[sum(call >= number for number in failed)]


def inflated(content: bytes, budget: Budget) -> bytes:
    """Decompressed zlib data; nothing if it is not zlib data (RFC 1950)."""
    if is_zlib(content[:2]):
        return decode(lambda: Inflater(zlib.MAX_WBITS), content, 0, budget).content
    return b""


def is_zlib(beginning: bytes) -> bool:
    """Whether these two bytes may begin zlib data."""
    return len(beginning) == 2 and beginning[0] & 0x0F == 8 and int.from_bytes(beginning, "big") % 31 == 0


def gzip_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """One file; its streams are concatenated. The header of a stream may name the file."""
    budget.take_member()
    known, out, at = [*_stems(names, ".gz", ".gzip", ".z")], [], 0
    is_whole = True
    while is_whole and content.startswith(b"\x1f\x8b", at):
        start, named = _gzip_header(content, at)
        if named:
            known.append(named)
        found = decode(Inflater, content, start, budget)
        out.append(found.content)
        is_whole = found.is_whole
        at = _after_zeros(content, found.end + 8)  # a checksum and a size, which other programs ignore too
    known = list(dict.fromkeys(known))
    is_usual = is_whole and len(out) == 1 and at == len(content) and _has_usual_header(content)
    yield Member(tuple(known), b"".join(out), is_disputed=not is_usual)
    if content.startswith(_OLDER, at):
        yield Member(tuple(known), None, limit="archive-method")
    if not is_whole:
        raise BadArchive if found.is_refused else CutOff


def _has_usual_header(content: bytes) -> bool:
    return content[2:3] == b"\x08" and not content[3] & ~_USUAL_FLAGS


def begins_as_plain_gzip(content: bytes) -> bool:
    """Whether all programs accept the header, and 7-Zip what follows it, which may be a name of usual length."""
    is_named = content[3:4] == b"\x08" and content.find(b"\0", 10, _GZIP_NAME) >= 0
    is_plain = content[2:3] == b"\x08" and content[8:9] in GZIP_LEVELS and (is_named or content[3:4] == b"\0")
    return is_plain and _begins_as_deflate(content, _gzip_header(content, 0)[0])


def _begins_as_deflate(content: bytes, at: int) -> bool:
    """7-Zip looks at the first block: its type, what fills up its first byte, its lengths."""
    head = content[at : at + 5]
    kind = head[0] >> 1 & 3 if len(head) == 5 else 3
    if kind == 0:  # stored: a length, and its complement
        return head[0] >> 3 == 0 and head[1] ^ head[3] == head[2] ^ head[4] == 0xFF
    return kind == 1 or (kind == 2 and head[1] & 0x1F < 30)


def _gzip_header(content: bytes, at: int) -> tuple[int, str]:
    """Where the data begins, after ten bytes and what the flags announce (RFC 1952), and the name."""
    flags, end, name = content[at + 3] if len(content) > at + 3 else 0, at + 10, ""
    if flags & 4:
        end += 2 + int.from_bytes(content[end : end + 2], "little")
    for flag in (8, 16):  # a name, a comment
        if flags & flag:
            start, end = end, content.find(b"\0", end) + 1 or len(content)
            name = name or (content[start : end - 1].decode("latin-1") if flag == 8 else "")
    return end + (2 if flags & 2 else 0), name


def bzip2_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    yield from _file(bz2.BZ2Decompressor, BZIP2_MAGIC, content, _stems(names, ".bz2", ".bzip2", ".bz"), budget)


def xz_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    new = lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY)  # noqa: E731
    for member in _file(new, XZ_MAGIC, content, _stems(names, ".xz"), budget):
        yield replace(member, is_disputed=member.is_disputed or not _has_plain_blocks(content))


def _has_plain_blocks(content: bytes) -> bool:
    """Whether no block has filters for executables; others support fewer of them. Large files have several blocks.

    The first two bits of a block's flags are their number; the index at the end gives the length of each block.
    """
    index = len(content) - _XZ_END - 4 * (int.from_bytes(content[-8:-4], "little") + 1)
    count, *lengths = _xz_numbers(content[index + 1 : -_XZ_END])
    if count > _MANY_BLOCKS:
        return False
    at = _XZ_START
    for length in lengths[: 2 * count : 2]:  # each is followed by that of the unpacked block
        if content[at + 1] & 3:
            return False
        at += (length + 3) // 4 * 4
    return at == index


def _xz_numbers(data: bytes) -> Iterator[int]:
    """Seven bits in each byte; the eighth says that more follow."""
    number, shift = 0, 0
    for byte in data[:_MAX_INDEX]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number, shift = 0, 0


def lzma_members(content: bytes, names: Collection[str], budget: Budget) -> Iterator[Member]:
    """One file: 7-Zip reads on as long as a header follows a stream."""
    budget.take_member()
    start = 0 if is_lzma(content[:_LZMA_HEAD]) or not is_lzma86(content) else 1
    found = [_lzma_stream(content, start, budget)]
    while found[-1].is_whole and _is_lzma_header(content, found[-1].end + start):
        budget.take_member()  # a large dictionary takes time
        found.append(_lzma_stream(content, found[-1].end + start, budget))
    yield Member(_stems(names, ".lzma", ".lzma86"), b"".join(one.content for one in found), is_disputed=True)
    if not found[-1].is_whole:
        raise BadArchive if found[-1].is_refused else CutOff


def _lzma_stream(content: bytes, at: int, budget: Budget) -> Decoded:
    """With as much memory as we allow, if the header asks for more: other files begin like that, such as EMF pictures.

    Raises TooMuch if more would be needed.
    """
    if int.from_bytes(content[at + 1 : at + 5], "little") <= _LZMA_DICTIONARY:
        return decode(new_lzma, content, at, budget)
    smaller = content[at : at + 1] + _LZMA_DICTIONARY.to_bytes(4, "little") + content[at + 5 :]
    found = decode(new_lzma, smaller, 0, budget)
    if not found.is_whole and len(found.content) >= _LZMA_DICTIONARY:
        raise TooMuch("archive-memory")
    return replace(found, end=at + found.end)


def new_lzma() -> Decoder:
    return lzma.LZMADecompressor(lzma.FORMAT_ALONE, memlimit=MAX_MEMORY)


def is_lzma(content: bytes) -> bool:
    """Decided as 7-Zip and The Unarchiver do: the format has no magic number. The rules of liblzma are stricter."""
    if len(content) < _LZMA_HEAD or content[0] >= 225 or content[13] != 0:
        return False
    return content.startswith(_LZMA_DEFAULT) or _is_lzma_header(content)


def _is_lzma_header(content: bytes, at: int = 0) -> bool:
    content = content[at : at + _LZMA_HEAD - 1]
    if len(content) < _LZMA_HEAD - 1 or content[0] >= 225:
        return False
    dictionary, size = int.from_bytes(content[1:5], "little"), int.from_bytes(content[5:13], "little")
    lowest_bit = dictionary & -dictionary
    is_usual = dictionary > 0 and dictionary in (lowest_bit, 3 * lowest_bit, 2**32 - 1)
    return is_usual and (size == 2**64 - 1 or size < 2**56)


def is_lzma86(content: bytes) -> bool:
    """The same after one byte, which says whether it was filtered: that changes only executables, and only in part."""
    return content[:1] in (b"\0", b"\1") and is_lzma(content[1 : 1 + _LZMA_HEAD])


def _file(
    new: Callable[[], Decoder], magic: bytes, content: bytes, names: tuple[str, ...], budget: Budget
) -> Iterator[Member]:
    """A file of one or more streams."""
    budget.take_member()
    found = list(streams(new, magic, content, 0, budget))
    is_usual = len(found) == 1 and found[0].is_whole and found[0].end == len(content)
    yield Member(names, b"".join(one.content for one in found), is_disputed=not is_usual)
    if not all(one.is_whole for one in found):
        raise BadArchive if found[-1].is_refused else CutOff


def _after_zeros(content: bytes, at: int) -> int:
    found = _NOT_ZERO.search(content, at)
    return found.start() if found else len(content)


def _stems(names: Collection[str], *suffixes: str) -> tuple[str, ...]:
    stems = [
        next((name[: -len(suffix)] for suffix in suffixes if name.lower().endswith(suffix)), name) for name in names
    ]
    return tuple(dict.fromkeys(stems)) or ("",)
