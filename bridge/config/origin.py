"""Where each value of the configuration comes from: a line of the file, a profile, the environment or a default.

The comments are put at the ends of the lines of the finished YAML, so the output is still a file that can be used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bridge.config.mail_server_profiles import PROFILES
from bridge.config.model import Config, embedded_text
from bridge.config.renamed import RENAMED
from bridge.runtime import yaml_file
from bridge.runtime.renamed_keys import Path_, Renamed

_EMBEDDED = "embedded default"


def with_origins(
    data: dict[str, Any],
    conf: Config,
    path: Path | None,
    renamed: Sequence[Renamed] = RENAMED,
    state_directory_from: str = "",
) -> str:
    """The effective configuration as YAML, each value with a comment that says where it comes from.

    `state_directory_from`: what sets the state directory if the configuration does not.
    """
    text = yaml_file.dump(data, width=None)
    shown = yaml_file.lines(Path("shown"), text)
    lines = text.splitlines()
    width = min(60, max(map(len, lines)))
    for where, origin in origins(data, conf, path, renamed):
        at = shown[where] - 1
        known = state_directory_from if where == ("state_directory",) else ""
        lines[at] = f"{lines[at]:{width}}  # {known or origin}"
    return "\n".join(lines)


def origins(
    data: dict[str, Any], conf: Config, path: Path | None, renamed: Sequence[Renamed] = RENAMED
) -> Iterator[tuple[Path_, str]]:
    """The place of each value, and where the value comes from."""
    if path is not None:
        name, written = path.name, yaml_file.lines(path, yaml_file.read_text(path), renamed)
    else:
        name, written = _EMBEDDED, yaml_file.lines(Path(_EMBEDDED), embedded_text(Path("/")))
    for where in _values(data, ()):
        yield where, _origin(where, conf, name, written)


def _values(data: Any, where: Path_) -> Iterator[Path_]:
    """The places of all values that have no keys below them."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    if not children or not data:
        yield where
    for key, child in children:
        yield from _values(child, (*where, key))


def _origin(where: Path_, conf: Config, name: str, written: dict[Path_, int]) -> str:
    for place in _places(where):
        if place in written:
            return name if name == _EMBEDDED else f"{name}:{written[place]}"
    if profile := _profile_sets(where, conf):
        return f"profile {profile}"
    return "default"


def _places(where: Path_) -> Iterator[Path_]:
    """The places in the file that may set a value, the most specific first."""
    yield where
    if where[0] == "listeners" and where[2:3] == ("policy",):
        yield where[2:]
    if where[-1:] == ("action",) or isinstance(where[-1], int):  # written as `quarantine: reject`, or as one value
        yield where[:-1]


def _profile_sets(where: Path_, conf: Config) -> str | None:
    """The profile of a listener, if it decides this value."""
    match where:
        case ("listeners", int(i), "deadline"):
            return conf.listeners[i].profile
        case ("listeners", int(i), "policy", str(key), *_) if key in PROFILES[conf.listeners[i].profile].policy:
            return conf.listeners[i].profile
    return None
