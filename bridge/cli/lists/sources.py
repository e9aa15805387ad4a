"""Where entries come from: arguments, files, standard input; and the line of each, for messages."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bridge.lists import files
from bridge.lists.errors import EntryRefused
from bridge.lists.files import Format, InputError
from bridge.runtime.visible_text import visible

STANDARD_INPUT = "standard input"


def places_of(sources: Iterable[Source], entries: Iterable[str]) -> dict[str, str]:
    """Where each entry is, as `file:line`; entries that were arguments are missing."""
    wanted = set(entries)
    found: dict[str, str] = {}
    for source in sources:
        found |= source.places(wanted)
    return found


def add_places(sources: Iterable[Source], reasons: dict[str, str]) -> None:
    """Begin the reason of each entry with its file and line."""
    for entry, place in places_of(sources, reasons).items() if reasons else ():
        reasons[entry] = f"{place}: {reasons[entry]}"


def with_place(sources: Iterable[Source], refused: EntryRefused) -> EntryRefused:
    """The same refusal, with the file and line of the entry first."""
    entry = refused.entry or ""
    place = places_of(sources, [entry]).get(entry)
    return EntryRefused(f"{place}: {refused}", refused.position, entry) if place else refused


@dataclass(slots=True)
class Source:
    """A file of entries, or standard input (`-`)."""

    path: Path
    kind: Format | None = None  # None: determined by the file's name
    _raw: bytes = b""  # of standard input, which cannot be read twice

    @property
    def _is_standard_input(self) -> bool:
        return str(self.path) == "-"

    def read(self) -> dict[str, str | None]:
        """Entries and comments. Raises InputError."""
        if self._is_standard_input:
            self._raw = sys.stdin.buffer.read()
            return files.read(self._raw, self.kind or Format.TEXT, STANDARD_INPUT)
        return files.read_file(self.path, self.kind)

    def places(self, wanted: set[str]) -> dict[str, str]:
        """The `wanted` entries and where they are, as `file:line`."""
        if self._is_standard_input:
            return files.places(self._raw, self.kind or Format.TEXT, STANDARD_INPUT, wanted)
        try:
            raw = self.path.read_bytes()
            return files.places(raw, self.kind or files.format_of(self.path), visible(str(self.path)), wanted)
        except (OSError, ValueError, InputError):  # changed in the meantime
            return {}
