"""The stream of `listEntries`: bytes in, entries out, one chunk in memory.

Lines are bounded, blank ones are skipped, unknown fields are ignored. What is no entry is an
error and never skipped: an incomplete block list is a hole in somebody's protection.
"""

from __future__ import annotations

import json

from bridge.api.lists import ListEntry
from bridge.lists.errors import ListsMalformed

MAX_LINE = 1024 * 1024


class EntryReader:
    """Feed it chunks; it gives back the entries they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines = 0

    def feed(self, chunk: bytes) -> list[ListEntry]:
        """Raises ListsMalformed."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise ListsMalformed(f"line {self._lines + len(lines) + 1} of the entries does not end")
        return self._read(lines)

    def end(self) -> list[ListEntry]:
        """The last line, if it had no line end. Raises ListsMalformed."""
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
