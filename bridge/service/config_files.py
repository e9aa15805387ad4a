"""Reads the service's configuration, in each form that its operators have.

The original service reads two files, `guard/core/guard.yml` and `abby/abby/abby.yml` below one directory. Ours
reads that directory, either file alone, or one file with both as the sections `guard` and `abby`. Our own keys
are in that file, or in `service.yml` of the directory.

The original has more keys than the description of its interfaces shows. An operator must not have to find out
which of them to delete, so those that we do not know are named in a warning and dropped. However, a key that
resembles one of ours is refused, because a misspelled limit or token must not be ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bridge.errors import ConfigError
from bridge.runtime import config_mistakes, yaml_file
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.renamed_keys import Path_, Renamed, read_old_names
from bridge.runtime.suggestion import nearest
from bridge.runtime.yaml_file import Tree, Trees
from bridge.service.abby_settings import PERMISSIONS, PLACEHOLDER_HINT, Abby, Core, ServiceProviders, StaticApiToken
from bridge.service.section import Section
from bridge.service.settings import REST_API_HINT, Guard, ScanSources, ServiceConfig

GUARD = Path("guard", "core", "guard.yml")
ABBY = Path("abby", "abby", "abby.yml")
OURS = Path("service.yml")
_BELOW: dict[str, Path_] = {"guard": ("guard",), "abby": ("abby",), "service": ()}
_PLACEHOLDER = re.compile(r"^[^#\n]*https?://[^\s,]*[{}]", re.MULTILINE)
_REST_API = re.compile(r"^[^#\n]*\brestApi\s*\{", re.MULTILINE)


class _NoKeys(Section):
    """A section that only has to be present."""


RENAMED: tuple[Renamed, ...] = ()  # keys; see docs/reference/stability.md

# The sections of the documented files: the key -> the model of what is below it (of each entry of a list).
_SECTIONS: dict[type[Section], dict[str, type[Section]]] = {
    Guard: {"scanSources": ScanSources},
    ScanSources: {"restApi": _NoKeys},
    Abby: {
        "serviceProviders": ServiceProviders,
        "staticApiTokens": StaticApiToken,
    },
    ServiceProviders: {"core": Core},
}


@dataclass(frozen=True)
class Loaded:
    """A valid configuration, what its operator should know about it, and where each key is."""

    config: ServiceConfig
    warnings: list[str]
    trees: Trees
    files: list[Path]
    absent: dict[str, Path] = field(default_factory=dict)  # the section -> the file of a directory that would have it
    empty: frozenset[Path] = frozenset()  # files without a single key

    def at(self, *where: str | int) -> str:
        """File, line and name of a key, for a message about it; or the file that is missing."""
        if file := self.absent.get(str(where[0])):
            return f"{file}: there is no such file, and {'.'.join(map(str, where))} is not set in any other file"
        return self.trees.at(where)


def check_files(old: Loaded, new: Loaded) -> None:
    """Raises ConfigError for each file that had keys when `old` was loaded, and is missing or empty now.

    An editor or a deployment that was interrupted leaves such files behind. Each of them alone would be valid, and
    would turn off scanning or revoke all tokens.
    """
    had_keys = [path for path in old.files if path not in old.empty]
    lost = {path: "is now missing" for path in had_keys if path not in new.files}
    lost |= {path: "is now empty" for path in had_keys if path in new.empty}
    if lost:
        remedy = "restore it, or restart the service if this is intended"
        raise ConfigError("\n".join(f"{path}: this file {state}; {remedy}" for path, state in lost.items()))


def load(path: Path, renamed: Sequence[Renamed] = RENAMED) -> Loaded:
    """Raises ConfigError with one line per error."""
    reading = _Reading(renamed)
    for file, kind in _files(path):
        reading.add(file, kind)
    if not _is_directory(path):
        return reading.finish(path.parent)
    absent = {name: path / file for name, file in (("guard", GUARD), ("abby", ABBY)) if name not in reading.value}
    return reading.finish(path, {name: file for name, file in absent.items() if not _exists(file)})


def _files(path: Path) -> list[tuple[Path, str]]:
    """The files to read and their kinds, if known without reading them. Raises ConfigError."""
    if not _is_directory(path):
        return [(path, "")]
    found = [
        (path / name, kind) for name, kind in ((GUARD, "guard"), (ABBY, "abby"), (OURS, "")) if _exists(path / name)
    ]
    if not found:
        raise ConfigError(f"{path}: this directory has none of {GUARD}, {ABBY} and {OURS}{_nearby(path)}")
    return found


def _is_directory(path: Path) -> bool:
    """Also False if this cannot be determined: reading the file then reports why."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _exists(path: Path) -> bool:
    """Also True if it cannot be read, or is a broken link: reading it then reports why."""
    try:
        return path.exists() or path.is_symlink()
    except OSError:
        return True


def _nearby(path: Path) -> str:
    """Where the files are, if the directory is one level above or below the right one."""
    try:
        for root in (path.parent, path.parent.parent, *sorted(path.iterdir())):
            if (root / GUARD).is_file() or (root / ABBY).is_file():
                return f"; use -c {root}"
        found = [path / name for name in (GUARD.name, ABBY.name) if (path / name).is_file()]
    except OSError as exc:
        return f" ({exc.strerror})"
    return f"; use -c {found[0]}" if found else ""


@dataclass
class _Reading:
    """What has been read so far."""

    renamed: Sequence[Renamed]
    value: dict[str, Any] = field(default_factory=dict)
    parts: list[tuple[Path_, Tree]] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    directories: dict[str, Path] = field(default_factory=dict)
    empty: set[Path] = field(default_factory=set)

    def add(self, path: Path, kind: str) -> None:
        tree = Tree(path)
        try:
            text = yaml_file.read_text(path)
        except ConfigError as exc:
            self.mistakes.append(str(exc))
            return
        value = tree.read(text)
        self.mistakes += tree.mistakes
        if not tree.parsed:
            self.mistakes += _hints(path, text)
            return
        value = {} if value is None else value
        if not isinstance(value, dict):
            hint = f": {REST_API_HINT}" if _REST_API.search(text) else ""
            self.mistakes.append(f"{path}:1: the file: expected keys and values{hint}")
            return
        if not value:
            self.empty.add(path)
        below = _BELOW[_kind(value, path, kind)]
        self.parts.append((below, tree))
        if below:
            self.directories[f"{below[0]}_directory"] = path.parent
        self._read_old_names(value, below, tree)
        self._merge(value, below)

    def _read_old_names(self, value: dict[str, Any], below: Path_, tree: Tree) -> None:
        """In a file that is a single section, the keys have no prefix."""
        prefix = f"{below[0]}." if below else ""
        own = [entry for entry in self.renamed if entry.old.startswith(prefix) and entry.new.startswith(prefix)]
        own = [replace(entry, old=entry.old[len(prefix) :], new=entry.new[len(prefix) :]) for entry in own]
        result = read_old_names(value, own, tree)
        self.warnings += result.warnings
        self.mistakes += result.mistakes

    def _merge(self, value: dict[str, Any], below: Path_) -> None:
        trees = Trees(self.parts[-1:])
        for key, section in ({str(below[0]): value} if below else value).items():
            if key in self.value:
                self.mistakes.append(f"{trees.at((key,))}: this section is in two files; delete one of them")
            elif key in ServiceConfig.model_fields:
                self.value[key] = section
            else:
                self.mistakes.append(f"{trees.at((key,))}: {_unknown_top_level(key)}")

    def finish(self, directory: Path, absent: dict[str, Path] | None = None) -> Loaded:
        trees = Trees(self.parts)
        self._drop_unused(trees)
        context = {"directory": directory, **self.directories}
        config, mistakes = config_mistakes.validate(self.value, ServiceConfig, trees, context)
        self.mistakes += mistakes
        if config is not None and not self.mistakes:
            self.mistakes += _contradictions(config, trees)
            self.warnings += _unknown_permissions(config, trees)
        if self.mistakes or config is None:
            raise ConfigError("\n".join(sorted(set(self.mistakes), key=_file_and_line)))
        files = [tree.path for _, tree in self.parts]
        return Loaded(config, self.warnings, trees, files, absent or {}, frozenset(self.empty))

    def _drop_unused(self, trees: Trees) -> None:
        for name, model in (("guard", Guard), ("abby", Abby)):
            section = self.value.get(name)
            if section is not None:
                self.value[name] = self._known(section, model, (name,), trees)
        abby = self.value.get("abby", {})
        if "abby" in self.value and not _has_core(abby):
            self.mistakes.append(
                f"{trees.at(('abby', 'serviceProviders'))}: this key is required, with an entry `core`; "
                "to scan in this process, write `serviceProviders: {core: {hosts: []}}`"
            )
            if isinstance(abby, dict):
                self.value["abby"] = {key: value for key, value in abby.items() if key != "serviceProviders"}

    def _known(self, value: Any, model: type[Section], where: Path_, trees: Trees) -> Any:
        """`value` without the keys that `model` does not have."""
        if isinstance(value, list):
            return [self._known(entry, model, (*where, i), trees) for i, entry in enumerate(value)]
        if not isinstance(value, dict):
            return value
        kept = {}
        for key, child in value.items():
            here = (*where, key)
            if key in model.model_fields:
                section = _SECTIONS.get(model, {}).get(key)
                kept[key] = child if section is None else self._known(child, section, here, trees)
            elif similar := closest(key, model.model_fields):
                self.mistakes.append(f"{trees.at(here)}: unknown key; did you mean {similar}?")
            elif home := _home(key, model):
                self.mistakes.append(f"{trees.at(here)}: this key belongs below `{home}:`")
            elif len(where) == 1 and key in ServiceConfig.model_fields:
                self.warnings.append(f"{trees.at(here)}: this key belongs in {OURS}; here, it is ignored")
            else:
                self.warnings.append(f"{trees.at(here)}: scanbridge does not use this key; it is ignored")
        return kept


def _kind(value: dict[str, Any], path: Path, kind: str) -> str:
    """`guard`, `abby`, or `service` for a file with both as sections."""
    if "guard" in value or "abby" in value:
        return "service"
    named = kind or path.stem.lower()
    if named in _BELOW:
        return named
    if any(closest(key, ServiceConfig.model_fields) for key in value):
        return "service"
    matches = [
        name for name, model in (("guard", Guard), ("abby", Abby)) if any(key in model.model_fields for key in value)
    ]
    return matches[0] if len(matches) == 1 else "service"


def _home(key: str, model: type[Section]) -> str:
    """The section below which a key was probably meant to be."""
    homes = {
        Guard: "scanSources",
        Abby: "serviceProviders",
        ServiceProviders: "core",
    }
    home = homes.get(model, "")
    return home if home and key in _SECTIONS[model][home].model_fields else ""


_OF_THE_BRIDGE = frozenset({"scanner", "listeners", "relay", "admission", "policy", "tenants", "quarantine", "admin"})


def _unknown_top_level(key: str) -> str:
    for name, model in (("guard", Guard), ("abby", Abby)):
        if key in model.model_fields:
            return f"this key belongs below `{name}:`"
    if key in _OF_THE_BRIDGE:
        return "unknown key; it belongs in the bridge's configuration (`scanbridge run -c`)"
    similar = nearest(key, ServiceConfig.model_fields)  # nothing of another vendor is here, so it is only misspelt
    return f"unknown key; did you mean {similar}?" if similar else "unknown key"


def _has_core(abby: Any) -> bool:
    providers = abby.get("serviceProviders") if isinstance(abby, dict) else None
    return isinstance(providers, dict) and "core" in providers


def _hints(path: Path, text: str) -> Iterator[str]:
    """Some of what the description of the original shows is not YAML: `restApi {}`, and `{mta_host}`."""
    for pattern, what in (
        (_REST_API, f"restApi: {REST_API_HINT}"),
        (_PLACEHOLDER, PLACEHOLDER_HINT),
    ):
        for found in pattern.finditer(text):
            yield f"{path}:{text.count(chr(10), 0, found.end()) + 1}: {what}"


def _contradictions(config: ServiceConfig, trees: Trees) -> Iterator[str]:
    core, where = config.abby.serviceProviders.core, ("abby", "serviceProviders", "core", "hosts")
    if core.remote_hosts and config.database_url.startswith("sqlite"):
        yield (
            f"{trees.at(where)}: nodes on other machines cannot read this service's SQLite file, so changes to lists "
            "would be accepted and have no effect; set `database: postgresql://...` in the configuration of all "
            f"nodes (in {OURS}), or `hosts: []` to scan in this process"
        )
    for host in core.hosts:
        if config.listen.port and _same_place(host, config.listen):
            yield f"{trees.at(where)}: one of the hosts is the address at which this service listens; remove it"


def _same_place(host: str, listen: Endpoint) -> bool:
    parts = urlsplit(host)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    name = parts.hostname or ""
    here = Endpoint(host=name).is_local and (listen.is_local or listen.is_any)
    return port == listen.port and (here or name == listen.host)


def _unknown_permissions(config: ServiceConfig, trees: Trees) -> Iterator[str]:
    found = False
    for i, token in enumerate(config.abby.staticApiTokens):
        unknown = [name for name in token.permissions if name not in PERMISSIONS]
        if "permissions" in token.model_fields_set and not token.permissions:
            place = trees.at(("abby", "staticApiTokens", i, "permissions"))
            yield f"{place}: the list is empty, so the token of {token.name} may do everything; list what it may do"
            found = True
        for name in unknown:
            similar = closest(name, PERMISSIONS)
            hint = f"; did you mean {similar}?" if similar else ""
            where = ("abby", "staticApiTokens", i, "permissions")
            yield f"{trees.at(where)}: unknown permission {name!r:.80}, which allows nothing{hint}"
            found = True
        if unknown and len(unknown) == len(token.permissions):
            place = trees.at(("abby", "staticApiTokens", i))
            yield (
                f"{place}: the token of {token.name} is not allowed to do anything, because it has no known permission"
            )
    if found:
        for name, meaning in PERMISSIONS.items():
            yield f"known permission {name}: {meaning}"


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that `word` is probably meant to be, or an empty string."""
    return nearest(word, known, 0.88)  # `hots` is `hosts`, but `requestTimeout` is not `longRequestTimeout`


def _file_and_line(text: str) -> tuple[str, int, str]:
    match = re.match(r"(.*?):(\d+): ", text)
    return (match.group(1), int(match.group(2)), text) if match else ("", 0, text)
