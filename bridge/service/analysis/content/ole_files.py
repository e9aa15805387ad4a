"""OLE2 (MS-CFB), the container of old Office documents, of macros, of embedded objects and of Outlook's .msg files.

Every entry of the directory is read in one loop, including those that no tree leads to: packages for this format follow
the tree recursively, so a long branch stops them. Chains of sectors may form loops and may be shared, so each is at
most as long as the file, and whatever is read is charged. Nothing here raises anything but TooMuch.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator
from typing import NamedTuple

from bridge.service.analysis.content.unpacking import Budget

MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ENTRY = 128  # bytes
_ENTRY_WORK = 1024
_BYTE_WORK = 2  # of a stream, which is searched several times: several entries may have the same one
_STORAGE, _STREAM, _ROOT = 1, 2, 5
_LAST = 0xFFFFFFFA  # numbers from here on are not sectors
_IN_HEADER = 109  # numbers of sectors of the table


class Entry(NamedTuple):
    name: str
    is_stream: bool
    class_id: bytes
    content: bytes


def entries(content: bytes, budget: Budget, names: Collection[str] = ()) -> Iterator[Entry]:
    """Everything in the directory, or what has one of these names, in lower case; nothing if the header is damaged."""
    if len(content) < 512 or content[30] not in (9, 12):
        return
    yield from _File(content, budget).entries(names)


class _File:
    def __init__(self, content: bytes, budget: Budget) -> None:
        self._content = content
        self._budget = budget
        self._size = 1 << content[30]
        self._directory, self._cutoff, small = (_number(content, at) for at in (48, 56, 60))
        budget.take_work(len(content))
        self._table = self._read_table()
        self._small_table = _numbers(self._chain(small, self._table, len(content)))
        self._small = b""

    def entries(self, names: Collection[str]) -> Iterator[Entry]:
        directory = self._chain(self._directory, self._table, len(self._content))
        for at in range(0, len(directory) - _ENTRY + 1, _ENTRY):
            kind = directory[at + 66]
            if kind not in (_STORAGE, _STREAM, _ROOT):
                continue
            self._budget.take_work(_ENTRY_WORK)
            length = min(struct.unpack_from("<H", directory, at + 64)[0], 64)
            name = directory[at : at + max(0, length - 2)].decode("utf-16-le", "replace")
            start, size = _number(directory, at + 116), _number(directory, at + 120)
            if at == 0:  # the root; other entries of its type are ignored
                self._small = self._chain(start, self._table, len(self._content))
            if names and name.lower() not in names:
                continue
            content = self._stream(start, size) if kind == _STREAM else b""
            yield Entry(name, kind == _STREAM, directory[at + 80 : at + 96], content)

    def _stream(self, start: int, size: int) -> bytes:
        self._budget.take_work(_BYTE_WORK * min(size, len(self._content)))  # a chain may lead nowhere
        if size < self._cutoff:
            pieces, left = [], min(size, len(self._content))
            while start < len(self._small_table) and left > 0:
                pieces.append(self._small[64 * start : 64 * start + 64])
                start, left = self._small_table[start], left - 64
            found = b"".join(pieces)[:size]
        else:
            found = self._chain(start, self._table, min(size, len(self._content)))
        self._budget.take(len(found))
        return found

    def _read_table(self) -> array[int]:
        """The numbers of its own sectors are in the header, and in a chain of further sectors."""
        numbers = list(struct.unpack_from(f"<{_IN_HEADER}I", self._content, 76))
        following, per_sector = _number(self._content, 68), self._size // 4 - 1
        for _ in range(len(self._content) // self._size):
            sector = self._sector(following)
            if following >= _LAST or len(sector) < self._size:
                break
            found = _numbers(sector)
            numbers += found[:per_sector]
            following = found[per_sector]
        most = len(self._content) // self._size + 1
        return _numbers(b"".join(self._sector(number) for number in numbers[:most] if number < _LAST))

    def _chain(self, start: int, table: array[int], size: int) -> bytes:
        pieces: list[bytes] = []
        for _ in range(-(-size // self._size)):
            if start >= _LAST:
                break
            pieces.append(self._sector(start))
            start = table[start] if start < len(table) else _LAST
        return b"".join(pieces)[:size]

    def _sector(self, number: int) -> bytes:
        at = (number + 1) * self._size
        return self._content[at : at + self._size]


def _number(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 4], "little")


def _numbers(content: bytes) -> array[int]:
    found = array("I")
    found.frombytes(content[: len(content) // 4 * 4])
    return found
