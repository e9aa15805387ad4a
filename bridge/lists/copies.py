"""Local copies of lists: files in the state directory, looked at where they lie.

`look` maps what is new or was replaced; `get` is what a mail is matched against, and never waits. A
copy is replaced by a whole one only (`fetch` writes it), so it outlives a restart and a service
that is down; its age is the file's: the last time that somebody saw the service agree with it.
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

_CLOCK_S = 60.0
REPORT = "refresh.json"  # what became of the last refresh


@dataclass(frozen=True, slots=True)
class Wanted:
    """One list in one scope. `kind` is the operator's word of what its entries are, if there is one."""

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
    identity: tuple[int, int]  # device and inode: another one after each replacement

    @property
    def age_s(self) -> float:
        age = time.time() - self.seen_at
        return age if age > -_CLOCK_S else float("inf")  # from the future: the clock was set back, nobody knows


class Copies:
    """All copies of a directory that are wanted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._wanted: tuple[Wanted, ...] = ()
        self._copies: dict[tuple[str, str | None], Copy] = {}
        self._said: dict[Wanted, str] = {}
        self._reported_at = 0.0
        self.problems: dict[str, str] = {}  # of the last refresh, whoever did it

    @property
    def wanted(self) -> tuple[Wanted, ...]:
        return self._wanted

    def want(self, wanted: Iterable[Wanted]) -> None:
        self._wanted = tuple(wanted)

    def get(self, name: str, tenant: str | None) -> Copy | None:
        return self._copies.get((name, tenant))

    def missing(self) -> list[Wanted]:
        """What nothing is known of yet."""
        return [one for one in self._wanted if (one.name, one.tenant) not in self._copies]

    def look(self) -> None:
        """Map what has changed. Blocks for some 20 ms per million entries: not for an event loop."""
        found: dict[tuple[str, str | None], Copy] = {}
        for one in self._wanted:
            copy = self._look_at(one)
            if copy is not None:
                found[one.name, one.tenant] = copy
        self._copies = found
        self._read_report()

    def _look_at(self, one: Wanted) -> Copy | None:
        path, known = self.directory / one.file_name, self.get(one.name, one.tenant)
        try:
            stat = path.stat()
            identity = (stat.st_dev, stat.st_ino)
            if known is not None and identity == known.identity:
                return Copy(known.table, stat.st_mtime, identity)  # its inode is ours as long as it is mapped
            table = Table.open(path)
            self._said.pop(one, None)
            return Copy(table, stat.st_mtime, identity)
        except FileNotFoundError:
            return known  # somebody removed the file; what is mapped is still true
        except (BadTable, OSError) as exc:
            why = str(exc) if isinstance(exc, BadTable) else exc.strerror or type(exc).__name__
            if self._said.get(one) != why:
                log.error("the local copy of the list %s cannot be used: %s: %s", one, path, why)
            self._said[one] = why
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
    """Remove copies that nobody wants, and what an interrupted refresh left."""
    keep = {one.file_name for one in wanted}
    for path in directory.iterdir():
        if (path.suffix == ".copy" and path.name not in keep) or path.suffix == ".new":
            path.unlink(missing_ok=True)
