"""Parses the stream of `listEntries`: bytes in, entries out, one chunk in memory.

Lines are limited in length, blank lines are skipped, unknown fields are ignored. A line that is not
an entry is an error and never skipped: an incomplete block list is a gap in the protection.
"""

from __future__ import annotations

import json

from bridge.api.lists import ListEntry
from bridge.lists.errors import ListsMalformed

MAX_LINE = 1024 * 1024


class EntryReader:
    """Takes chunks and returns the entries that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines = 0

    def feed(self, chunk: bytes) -> list[ListEntry]:
        """Raises ListsMalformed."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE:
            number = self._lines + len(lines) + 1
            raise ListsMalformed(f"line {number} of the entries is longer than {MAX_LINE} bytes")
        return self._read(lines)

    def end(self) -> list[ListEntry]:
        """The last line, if it was not terminated. Raises ListsMalformed."""
        last, self._rest = self._rest, b""
        return self._read([last])

    def _read(self, lines: list[bytes]) -> list[ListEntry]:
        found = []
        for line in lines:
            self._lines += 1
            if line.strip():
                try:
                    found.append(ListEntry.from_dict(json.loads(line)))
                except (ValueError, RecursionError):
                    raise ListsMalformed(f"line {self._lines} of the entries is not an entry") from None
        return found
