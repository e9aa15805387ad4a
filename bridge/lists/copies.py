"""Local copies of lists: files in the state directory, searched in place.

`look` maps new and replaced files; `get` returns the copy that mail is matched against and never
blocks. `fetch` writes the copies and replaces one only with a complete one, so copies survive restarts and
outages of the service. The age of a copy is that of its file: the last time it agreed with the service.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from bridge.matching.table import BadTable, Table

log = logging.getLogger(__name__)

_CLOCK_S = 60.0  # tolerated clock difference
REPORT = "refresh.json"  # the result of the last refresh


@dataclass(frozen=True, slots=True)
class Wanted:
    """One list in one scope. `kind` is what the operator says its entries are, or None."""

    name: str
    tenant: str | None = None
    kind: str | None = None

    @property
    def file_name(self) -> str:
        return f"{quote(self.name, safe='')}.{self.tenant or 'deployment'}.copy"

    def __str__(self) -> str:
        return f"{self.name} of tenant {self.tenant}" if self.tenant else self.name


@dataclass(frozen=True, slots=True)
class Copy:
    """A list as it was at `seen_at` (Unix time)."""

    table: Table
    seen_at: float
    identity: tuple[int, int]  # device and inode; each replacement has a new one

    @property
    def age_s(self) -> float:
        age = time.time() - self.seen_at
        return age if age > -_CLOCK_S else float("inf")  # in the future: the clock was set back, the age is unknown


class Copies:
    """The wanted copies in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._wanted: tuple[Wanted, ...] = ()
        self._copies: dict[tuple[str, str | None], Copy] = {}
        self._logged: dict[Wanted, str] = {}  # the last problem logged for each list
        self._reported_at = 0.0
        self.problems: dict[str, str] = {}  # of the last refresh, by the daemon or the command line

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        return self._wanted

    def want(self, wanted: Iterable[Wanted]) -> None:
        self._wanted = tuple(wanted)

    def get(self, name: str, tenant: str | None) -> Copy | None:
        return self._copies.get((name, tenant))

    def missing(self) -> list[Wanted]:
        """The wanted lists without a copy."""
        return [wanted for wanted in self._wanted if (wanted.name, wanted.tenant) not in self._copies]

    def look(self) -> None:
        """Map the files that have changed. Blocks for about 20 ms per million entries: not for an event loop."""
        found: dict[tuple[str, str | None], Copy] = {}
        for wanted in self._wanted:
            copy = self._look_at(wanted)
            if copy is not None:
                found[wanted.name, wanted.tenant] = copy
        self._copies = found
        self._read_report()

    def _look_at(self, wanted: Wanted) -> Copy | None:
        path, known = self.directory / wanted.file_name, self.get(wanted.name, wanted.tenant)
        try:
            stat = path.stat()
            identity = (stat.st_dev, stat.st_ino)
            if known is not None and identity == known.identity:
                return Copy(known.table, stat.st_mtime, identity)  # an inode is not reused while it is mapped
            table = Table.open(path)
            self._logged.pop(wanted, None)
            return Copy(table, stat.st_mtime, identity)
        except FileNotFoundError:
            return known  # the file was removed; the mapped content is still valid
        except (BadTable, OSError) as exc:
            why = str(exc) if isinstance(exc, BadTable) else exc.strerror or type(exc).__name__
            if self._logged.get(wanted) != why:
                log.error("local copy of the list %s is unusable: %s: %s", wanted, path, why)
            self._logged[wanted] = why
            return known

    def _read_report(self) -> None:
        path = self.directory / REPORT
        try:
            stat = path.stat()
            if stat.st_mtime == self._reported_at:
                return
            problems = json.loads(path.read_bytes())["problems"]
            self.problems = {str(name): str(text) for name, text in problems.items()}
            self._reported_at = stat.st_mtime
        except (OSError, ValueError, KeyError, AttributeError):
            self.problems = {}


def tidy(directory: Path, wanted: Iterable[Wanted]) -> None:
    """Remove copies that are not wanted, and leftovers of an interrupted refresh."""
    keep = {item.file_name for item in wanted}
    for path in directory.iterdir():
        if (path.suffix == ".copy" and path.name not in keep) or path.suffix == ".new":
            path.unlink(missing_ok=True)
