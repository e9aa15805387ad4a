"""Which configuration applies, for the daemon and for every command.

It is the file that was named, otherwise the package's file, otherwise the embedded default. The embedded default is
for trying things out, so it has its own state directory: its Maildir, quarantine and token never mix with real
ones.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path

from bridge.config import model
from bridge.config.model import Config
from bridge.daemon import directories
from bridge.errors import ConfigError

log = logging.getLogger(__name__)

DEMO = "scanbridge-demo"


def load(path: Path | None) -> Config:
    """The file's configuration, or the embedded default. Raises ConfigError."""
    if path is not None:
        return _from_file(path)
    state = directories.state_directory(None, DEMO)
    directories.make_directory(state, "the state directory")
    try:
        return model.embedded(state)
    except ConfigError as exc:
        raise ConfigError(f"the path of the state directory {state} cannot be used in a configuration: {exc}") from exc


def reload(path: Path | None) -> Config:
    """`load` in a running daemon. Raises ConfigError."""
    conf = load(path)
    log_warnings(conf)
    return conf


def log_warnings(conf: Config) -> None:
    """Logs what works but should be changed in the file. Not part of `load`, which runs before there is a log."""
    for text in conf.warnings:
        log.warning("%s", text)


def _from_file(path: Path) -> Config:
    try:
        return model.load(path)
    except ConfigError as exc:
        if re.search(r": (guard|abby): unknown key", str(exc)):
            hint = f"{path}: this is the configuration of the service: use `scanbridge service -c {path}`"
            raise ConfigError(f"{exc}\n{hint}") from exc
        raise
