"""Configuration keys that were renamed: the old name is still read, for at least one minor version.

A file that worked with the last version must not stop the daemon after an upgrade. Each use of an old name gives a
warning with file and line; the daemon logs it when it starts, and `check` shows it. Without this file, every rename
would break a configuration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Renamed:
    """Both names with their sections, separated by dots. `*` is each entry of a list: `listeners.*.deadline`."""

    old: str
    new: str
    removed_in: str  # the first version that no longer reads the old name, such as 1.2

    @property
    def is_expired(self) -> bool:
        """Whether the running version is that one already: then the entry must be deleted."""
        from bridge import __version__

        return _numbers(__version__) >= _numbers(self.removed_in)


@dataclass(frozen=True, slots=True)
class Result:
    warnings: list[str] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


class Places(Protocol):
    """Where in its file each key is."""

    def at(self, where: Path_) -> str: ...

    def rename(self, old: Path_, new: Path_) -> None: ...


def read_old_names(value: Any, renamed: Sequence[Renamed], places: Places) -> Result:
    """Move values from old names to new ones, in `value` and in `places`."""
    result = Result()
    for entry in renamed:
        for old in list(_uses(value, entry.old.split("."), ())):
            new = _filled(entry.new, old)
            section = _section(value, new[:-1])
            if section is None:  # not keys and values: the validation reports it
                continue
            at, name = places.at(old), ".".join(map(str, new))
            content = _section(value, old[:-1]).pop(old[-1])
            if new[-1] in section:
                result.mistakes.append(f"{at}: this key is now called {name}, which is also set; remove the old key")
                continue
            section[new[-1]] = content
            places.rename(old, new)
            until = f"the old name works until version {entry.removed_in}"
            result.warnings.append(f"{at}: this key is now called {name}; {until}")
    return result


def _uses(value: Any, pattern: Sequence[str], where: Path_) -> Iterator[Path_]:
    if not pattern:
        yield where
    elif pattern[0] == "*" and isinstance(value, list):
        for i, child in enumerate(value):
            yield from _uses(child, pattern[1:], (*where, i))
    elif isinstance(value, dict) and pattern[0] in value:
        yield from _uses(value[pattern[0]], pattern[1:], (*where, pattern[0]))


def _filled(pattern: str, old: Path_) -> Path_:
    """The new place, in the same entries of lists as the old one."""
    entries = iter([part for part in old if isinstance(part, int)])
    return tuple(next(entries) if part == "*" else part for part in pattern.split("."))


def _section(value: Any, where: Path_) -> Any:
    """The section at `where`, made if there is none; None if something else is there."""
    for part in where:
        if isinstance(part, int):
            value = value[part]
        elif isinstance(value, dict):
            value = value.setdefault(part, {})
    return value if isinstance(value, dict) else None


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]
