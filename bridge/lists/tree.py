"""A directory with files for many lists: which list and tenant each file belongs to.

    lists/
      blocked-senders.txt                              a deployment-global list
      0b8e4567-e89b-12d3-a456-426614174000/            one tenant's lists
        allowed-domains.csv

A file is named after its list; the suffix determines the format. Hidden files are ignored; files
with another suffix (a README) are ignored and reported. A directory whose name is not a UUID is an
error: a typo in a tenant's UUID must not leave that tenant without its lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from bridge.lists.files import SUFFIXES, InputError
from bridge.runtime.visible_text import visible


@dataclass(frozen=True, slots=True)
class Target:
    """One list of one scope, and its file."""

    name: str
    tenant: str | None  # None: the deployment-global scope
    path: Path

    def __str__(self) -> str:
        return f"{self.name} of tenant {self.tenant}" if self.tenant else self.name


@dataclass(frozen=True, slots=True)
class Tree:
    targets: list[Target]
    ignored: list[Path]


def find(directory: Path) -> Tree:
    """Every list in `directory`, ordered by name. Raises InputError with all mistakes."""
    mistakes: list[str] = []
    tree = Tree([], [])
    try:
        _gather(directory, None, tree)
        for child in sorted(directory.iterdir()):
            if not child.is_dir() or child.name.startswith("."):
                continue
            try:
                tenant = str(UUID(child.name))
            except ValueError:
                mistakes.append(f"{child}: the name of a directory must be the UUID of a tenant")
                continue
            _gather(child, tenant, tree)
            below = [path for path in sorted(child.iterdir()) if path.is_dir()]
            mistakes += [f"{path}: a tenant's directory must not contain directories" for path in below]
    except OSError as exc:
        raise InputError(f"{visible(str(directory))}: cannot read the directory: {exc.strerror}") from exc
    mistakes += _duplicates(tree.targets)
    if not tree.targets and not mistakes:
        mistakes.append(f"{directory}: no lists found; name each file after its list, for example blocked-senders.txt")
    if mistakes:
        raise InputError("\n".join(map(visible, mistakes)))
    return tree


def _gather(directory: Path, tenant: str | None, tree: Tree) -> None:
    for path in sorted(directory.iterdir()):
        if path.is_dir() or path.name.startswith("."):
            continue
        if path.suffix.lower() in SUFFIXES:
            tree.targets.append(Target(path.stem, tenant, path))
        else:
            tree.ignored.append(path)


def _duplicates(targets: list[Target]) -> list[str]:
    seen: dict[tuple[str, str | None], Path] = {}
    mistakes = []
    for target in targets:
        first = seen.setdefault((target.name, target.tenant), target.path)
        if first is not target.path:
            mistakes.append(f"{target.path}: {first.name} is for the same list")
    return mistakes
