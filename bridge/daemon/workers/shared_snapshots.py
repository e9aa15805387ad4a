"""Each worker's numbers on a board that the others can read: for one scrape that gives all.

A board is shared memory with two halves. Its worker writes the half that is not current, then makes
it current, so a worker that is killed while it writes leaves its last whole words behind: what it
had counted does not vanish with it. Whoever wants fresh words rings, and every worker that
turns its event loop writes at once.
"""

from __future__ import annotations

import mmap
import os
import zlib

_HALF = 1024 * 1024  # bytes; memory that nobody has touched costs nothing
_HEAD = 8  # the number of the last edition; odd ones are in the second half
_LABEL = 16  # length and checksum


class Boards:
    """Made by the supervisor before it forks; one for each row, and the last for the supervisor."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._size = _HEAD + 2 * _HALF
        self._memory = mmap.mmap(-1, (rows + 1) * self._size)
        self._bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(rows)]

    @property
    def supervisor(self) -> int:
        """The number of the supervisor's own board."""
        return self.rows

    def bell(self, row: int) -> int:
        """Readable when somebody has rung."""
        return self._bells[row]

    def ring(self, row: int) -> None:
        os.eventfd_write(self._bells[row], 1)

    def heard(self, row: int) -> None:
        try:
            os.eventfd_read(self._bells[row])
        except BlockingIOError:
            pass

    def edition(self, row: int) -> int:
        start = row * self._size
        return int.from_bytes(self._memory[start : start + _HEAD], "little")

    def write(self, row: int, text: bytes) -> None:
        """Raises ValueError when it does not fit."""
        if len(text) > _HALF - _LABEL:
            raise ValueError(f"{len(text)} bytes do not fit on a board")
        edition = self.edition(row) + 1
        start = self._half(row, edition)
        label = len(text).to_bytes(8, "little") + zlib.crc32(text).to_bytes(8, "little")
        self._memory[start + _LABEL : start + _LABEL + len(text)] = text
        self._memory[start : start + _LABEL] = label
        self._memory[row * self._size : row * self._size + _HEAD] = edition.to_bytes(_HEAD, "little")

    def read(self, row: int) -> bytes:
        """The last whole words; b"" when there are none (or the writer was faster, three times)."""
        for _ in range(3):
            edition = self.edition(row)
            if edition == 0:
                return b""
            start = self._half(row, edition)
            length = int.from_bytes(self._memory[start : start + 8], "little")
            checksum = int.from_bytes(self._memory[start + 8 : start + _LABEL], "little")
            text = self._memory[start + _LABEL : start + _LABEL + min(length, _HALF)]
            if zlib.crc32(text) == checksum:
                return text
        return b""

    def clear(self, row: int) -> None:
        """For the next worker of this row. The writer must be gone."""
        self._memory[row * self._size : row * self._size + _HEAD] = bytes(_HEAD)
        if row < self.rows:
            self.heard(row)

    def _half(self, row: int, edition: int) -> int:
        return row * self._size + _HEAD + (edition & 1) * _HALF
