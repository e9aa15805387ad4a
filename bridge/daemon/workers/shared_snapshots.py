"""Snapshots that all workers can read: each worker's numbers, so that one scrape can show them all.

A snapshot is shared memory with two halves. Its worker writes the half that is not current and then
makes it current. A worker killed in the middle of a write therefore leaves its previous snapshot
intact, and what it had counted is not lost with it. A process that needs fresh numbers rings, and
every worker whose event loop runs then writes a new version.

Knows bytes only; what they mean is known in `aggregate`. If this is wrong, counters go backwards
when a worker dies.
"""

from __future__ import annotations

import mmap
import os
import zlib

_HALF = 1024 * 1024  # bytes; pages that were never written use no memory
_HEAD = 8  # the number of the current version; odd versions are in the second half
_LABEL = 16  # length and checksum


class SharedSnapshots:
    """Created by the supervisor before it forks: one snapshot per row, and the last one for the supervisor."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._size = _HEAD + 2 * _HALF
        self._memory = mmap.mmap(-1, (rows + 1) * self._size)
        self._bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(rows)]

    @property
    def supervisor(self) -> int:
        """The row of the supervisor's own snapshot."""
        return self.rows

    def bell(self, row: int) -> int:
        """A descriptor that becomes readable when another process asks this row for a fresh snapshot."""
        return self._bells[row]

    def ring(self, row: int) -> None:
        os.eventfd_write(self._bells[row], 1)

    def reset_bell(self, row: int) -> None:
        try:
            os.eventfd_read(self._bells[row])
        except BlockingIOError:
            pass

    def version(self, row: int) -> int:
        start = row * self._size
        return int.from_bytes(self._memory[start : start + _HEAD], "little")

    def write(self, row: int, text: bytes) -> None:
        """Raises ValueError when it does not fit."""
        if len(text) > _HALF - _LABEL:
            raise ValueError(f"{len(text)} bytes do not fit into a snapshot")
        version = self.version(row) + 1
        start = self._half(row, version)
        label = len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(8, "little")
        self._memory[start + _LABEL : start + _LABEL + len(text)] = text
        self._memory[start : start + _LABEL] = label
        self._memory[row * self._size : row * self._size + _HEAD] = version.to_bytes(_HEAD, "little")

    def read(self, row: int) -> bytes:
        """The last complete snapshot; b"" if there is none, or if it changed during each of three attempts."""
        for _ in range(3):
            version = self.version(row)
            if version == 0:
                return b""
            start = self._half(row, version)
            length = int.from_bytes(self._memory[start : start + 8], "little")
            checksum = int.from_bytes(self._memory[start + 8 : start + _LABEL], "little")
            text = self._memory[start + _LABEL : start + _LABEL + min(length, _HALF)]
            if zlib.crc32(text) == checksum:
                return text
        return b""

    def clear(self, row: int) -> None:
        """Empty the row for its next worker. The previous one must be gone."""
        self._memory[row * self._size : row * self._size + _HEAD] = bytes(_HEAD)
        if row < self.rows:
            self.reset_bell(row)

    def _half(self, row: int, version: int) -> int:
        return row * self._size + _HEAD + (version & 1) * _HALF
