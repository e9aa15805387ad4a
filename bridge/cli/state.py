"""The state directory of the daemon whose mail and lists an operator works on.

The systemd units tell the daemon where its state is ($STATE_DIRECTORY). A shell of root does not have that variable,
and would look in root's home directory and find nothing. So for root, the configuration of the packages means the
state directory of the packages, even if the file is older than its key `state_directory`.

From the moment a command knows the directory, root has only the rights of its owner (`bridge.runtime.root_as_owner`).
So every command that opens something there asks here for the directory.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from bridge.config.model import Config
from bridge.daemon import directories
from bridge.errors import ConfigError
from bridge.runtime import root_as_owner

_CONFIGURATION = Path("/etc/scanbridge")  # bridge.yml, and NAME/bridge.yml of scanbridge@NAME
_STATE = Path("/var/lib/scanbridge")
_INSTANCES = Path("/var/lib/scanbridge-instances")


def state_directory(conf: Config, path: Path | None) -> Path:
    """For the configuration in this file, or for the embedded default. Raises ConfigError."""
    found = _place(conf, path)
    act_for(found, "state_directory")
    return found


def owner(conf: Config, path: Path | None) -> int | None:
    """The user who owns the daemon's state directory; None if there is none."""
    try:
        return _place(conf, path).stat().st_uid
    except OSError:
        return None


def act_for(directory: Path, key: str) -> None:
    """Until the end of this command, root has only the rights of this directory's owner. Raises ConfigError."""
    try:
        context = click.get_current_context(silent=True)
        if context is not None:  # without a command, `make_directory` refuses the directory of another user
            context.find_root().with_resource(root_as_owner.acting_for(directory))
            directories.warn_of_foreign_parent(directory, key)
    except OSError as exc:
        raise ConfigError(f"{key}: {directory} {exc.strerror}; run this command as that user") from exc


def _place(conf: Config, path: Path | None) -> Path:
    if path is not None and not conf.state_directory and _is_root_without_directory():
        packaged = _packaged(path)
        if packaged is not None and packaged.is_dir():
            return packaged
    return directories.state_directory(conf.state_directory)


def make_state_directory(conf: Config, path: Path | None) -> Path:
    """The same, created if it does not exist. Raises ConfigError."""
    try:
        return directories.make_directory(state_directory(conf, path), "state_directory")
    except ConfigError as exc:
        if os.getuid() == 0:
            raise
        raise ConfigError(f"{exc}\nrun this command as root or as the daemon's user") from exc


def _is_root_without_directory() -> bool:
    return os.getuid() == 0 and not (os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME"))


def _packaged(path: Path) -> Path | None:
    directory = path.absolute().parent
    if directory == _CONFIGURATION:
        return _STATE
    return _INSTANCES / directory.name if directory.parent == _CONFIGURATION else None
