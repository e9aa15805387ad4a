"""The local copy of a list: one file that is searched in place.

The file is mapped into memory: a million entries are available immediately, several processes share
the memory, and no entry needs a Python object. An entry is stored as the 16-byte BLAKE2b digest of its
canonical spelling. Nobody can find another text with the same digest, and the caller knows which
entry matched, because it knows what it looked up. An index by the first bits narrows a lookup down to a
few digests.

    magic, a line of JSON (what it is, CRC-32 of the rest), padding to 8 bytes,
    2^bits + 1 offsets of 4 bytes, the digests of each bucket one after the other

Any inconsistency (a truncated file, a flipped bit) raises `BadTable`; a partial list is never used.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from array import array
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from bridge.matching import spelling
from bridge.matching.match import NETWORK, Length

MAGIC = b"scanbridge list 1\n"
MAX_ENTRIES = 20_000_000  # 360 MB; bounds an endless stream
_WIDTH = 16
_PER_BUCKET = 4
_MAX_HEAD = 64 * 1024


class BadTable(Exception):
    """The file is not a complete table."""


@dataclass(frozen=True, slots=True)
class About:
    """A table's description of itself."""

    name: str
    tenant: str | None
    category: str
    count: int  # entries
    skipped: int  # entries of the service that cannot be matched
    lengths: tuple[Length, ...]  # for networks: the prefix lengths in use
    bits: int
    crc: int


class Table:
    """One list, ready for lookups. `open` raises BadTable and OSError."""

    def __init__(self, memory: mmap.mmap, about: About, start: int) -> None:
        self._memory = memory
        self.about = about
        self._index = start
        self._digests = start + 4 * (2**about.bits + 1)
        self._shift = 32 - about.bits

    @classmethod
    def open(cls, path: Path) -> Table:
        """Map the file and verify all of it: about 20 ms for a million entries."""
        with path.open("rb") as file:
            try:
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise BadTable("it is empty") from None
        about, start = _read_head(memory)
        size = 4 * (2**about.bits + 1) + _WIDTH * about.count
        with memoryview(memory) as view, view[start:] as body:
            if len(body) != size or zlib.crc32(body) != about.crc:
                raise BadTable("it is damaged")
        return cls(memory, about, start)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._has(_of_word(key))

    def has_network(self, version: int, length: int, number: int) -> bool:
        return self._has(_of_network(version, length, number))

    def _has(self, digest: bytes) -> bool:
        bucket = int.from_bytes(digest[:4]) >> self._shift
        first, end = struct.unpack_from("<II", self._memory, self._index + 4 * bucket)
        start, stop = self._digests + _WIDTH * first, self._digests + _WIDTH * end
        found = self._memory.find(digest, start, stop)
        while found >= 0 and (found - start) % _WIDTH:  # a match that spans two digests is not a match
            found = self._memory.find(digest, found + 1, stop)
        return found >= 0


def _read_head(memory: mmap.mmap) -> tuple[About, int]:
    if memory[: len(MAGIC)] != MAGIC:
        raise BadTable("it is not a list")
    end = memory.find(b"\n", len(MAGIC), _MAX_HEAD)
    try:
        data = json.loads(memory[len(MAGIC) : end])
        data["lengths"] = tuple(map(tuple, data["lengths"]))
        about = About(**data)
        if not (0 <= about.bits <= 32 and about.count >= 0):
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise BadTable("its header cannot be read") from None
    return about, _aligned(end + 1)


class TableMaker:
    """Takes the service's entries in any order and builds the table."""

    def __init__(self, category: str) -> None:
        self._category = category
        self._heaps = [bytearray() for _ in range(256)]  # digests by first byte, so that each heap is sorted alone
        self._lengths: set[Length] = set()
        self.skipped = 0
        self.added = 0

    def add(self, entry: str) -> None:
        """Add an entry; one that is invalid in a list of this kind is counted and skipped."""
        try:
            digest = self._digest(entry)
        except ValueError:
            self.skipped += 1
            return
        self._heaps[digest[0]] += digest
        self.added += 1

    def _digest(self, entry: str) -> bytes:
        if self._category != NETWORK:
            return _of_word(spelling.normalise(self._category, entry))
        network = spelling.certain_network(entry)
        self._lengths.add((network.version, network.prefixlen))
        return _of_network(network.version, network.prefixlen, int(network.network_address))

    def finish(self, name: str, tenant: str | None) -> tuple[About, list[bytes]]:
        """The content of the file after `head(about)`. Nothing can be added after this call."""
        heaps = [_sorted(heap) for heap in self._heaps]
        self._heaps = []
        count = sum(map(len, heaps)) // _WIDTH
        bits = (count // _PER_BUCKET).bit_length()
        body = [_offsets(heaps, bits), *heaps]
        crc = 0
        for part in body:
            crc = zlib.crc32(part, crc)
        lengths = tuple(sorted(self._lengths))
        return About(name, tenant, self._category, count, self.skipped, lengths, bits, crc), body


def head(about: About) -> bytes:
    """The start of the file, before the body that `finish` returns."""
    raw = MAGIC + json.dumps(asdict(about)).encode("ascii") + b"\n"
    return raw.ljust(_aligned(len(raw)), b"\0")


def _sorted(heap: bytearray) -> bytes:
    raw = bytes(heap)
    heap.clear()
    return b"".join(sorted({raw[i : i + _WIDTH] for i in range(0, len(raw), _WIDTH)}))


def _offsets(heaps: list[bytes], bits: int) -> bytes:
    """The start of each bucket, and the end of the last one."""
    counts = array("I", bytes(4 * (2**bits + 1)))
    for heap in heaps:
        for i in range(0, len(heap), _WIDTH):
            counts[(int.from_bytes(heap[i : i + 4]) >> (32 - bits)) + 1] += 1
    for i in range(1, len(counts)):
        counts[i] += counts[i - 1]
    return struct.pack(f"<{len(counts)}I", *counts)


def _of_word(key: str) -> bytes:
    return blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_WIDTH).digest()


def _of_network(version: int, length: int, number: int) -> bytes:
    return blake2b(b"%d/%d/%d" % (version, length, number), digest_size=_WIDTH).digest()


def _aligned(size: int) -> int:
    return -(-size // 8) * 8
