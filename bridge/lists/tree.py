"""A directory of files as many lists: where each file belongs.

    lists/
      blocked-senders.txt                              the deployment's list
      0b8e4567-e89b-12d3-a456-426614174000/            one tenant's lists
        allowed-domains.csv

A file is named after its list; the ending says its format. Hidden files and files with another
ending (a README) are left alone and reported. A directory that is no tenant is an error: a typing
mistake in a tenant's UUID must not leave that tenant without its lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from bridge.lists.files import SUFFIXES, InputError


@dataclass(frozen=True, slots=True)
class Target:
    """One list of one scope, and the file it shall be equal to."""

    name: str
    tenant: str | None  # None: the deployment
    path: Path

    def __str__(self) -> str:
        return f"{self.name} of tenant {self.tenant}" if self.tenant else self.name


@dataclass(frozen=True, slots=True)
class Tree:
    targets: list[Target]
    ignored: list[Path]


def find(directory: Path) -> Tree:
    """Every list in `directory`, in the order of names. Raises InputError with all that is wrong."""
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
                mistakes.append(f"{child}: a directory is named after its tenant, which is a UUID")
                continue
            _gather(child, tenant, tree)
            mistakes += [f"{below}: too deep: nobody's list" for below in sorted(child.iterdir()) if below.is_dir()]
    except OSError as exc:
        raise InputError(f"{directory}: cannot be read: {exc.strerror}") from exc
    mistakes += _doubles(tree.targets)
    if not tree.targets and not mistakes:
        mistakes.append(f"{directory}: holds no lists; name a file after its list, for example blocked-senders.txt")
    if mistakes:
        raise InputError("\n".join(mistakes))
    return tree


def _gather(directory: Path, tenant: str | None, tree: Tree) -> None:
    for path in sorted(directory.iterdir()):
        if path.is_dir() or path.name.startswith("."):
            continue
        if path.suffix.lower() in SUFFIXES:
            tree.targets.append(Target(path.stem, tenant, path))
        else:
            tree.ignored.append(path)


def _doubles(targets: list[Target]) -> list[str]:
    seen: dict[tuple[str, str | None], Path] = {}
    mistakes = []
    for target in targets:
        first = seen.setdefault((target.name, target.tenant), target.path)
        if first is not target.path:
            mistakes.append(f"{target.path}: {first.name} is for the same list")
    return mistakes
