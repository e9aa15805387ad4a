"""The state directory and others for our own files: where they are, and whether anyone else can write there.

The only place that knows `$STATE_DIRECTORY` and the XDG directories. A directory that cannot be used raises a
ConfigError with the key, the directory and the next step.
"""

from __future__ import annotations

import logging
import os
import stat
from functools import cache
from pathlib import Path

from bridge.errors import ConfigError
from bridge.runtime import durable_files, root_as_owner

log = logging.getLogger(__name__)


def state_directory(configured: str | None, name: str = "scanbridge") -> Path:
    """Where data that must survive a restart is kept."""
    return found_state_directory(configured, name)[0]


def found_state_directory(configured: str | None, name: str = "scanbridge") -> tuple[Path, str]:
    """The same, and where it comes from: the environment or a default; empty if it is the configuration."""
    if configured:
        return Path(configured).expanduser().absolute(), ""
    if given := os.environ.get("STATE_DIRECTORY"):  # set by systemd; several are separated by colons
        return Path(given.partition(":")[0]), "$STATE_DIRECTORY"
    base = Path(os.environ.get("XDG_STATE_HOME") or "")
    if base.is_absolute():  # XDG specification: relative paths must be ignored
        return base / name, "$XDG_STATE_HOME"
    return Path.home() / ".local" / "state" / name, "default"


def make_directory(path: Path, key: str) -> Path:
    """For our own files: nobody else but root may write there. Raises ConfigError."""
    make_shared_directory(path, key)
    warn_of_foreign_parent(path, key)
    if others := durable_files.others_who_write(path):
        _refuse_shared(path, key, others)
    return path


def make_shared_directory(path: Path, key: str) -> Path:
    """For files that other programs own as well, such as a Maildir. Raises ConfigError."""
    try:
        durable_files.make_directory(path)
    except OSError as exc:
        raise ConfigError(
            f"{key}: {path} cannot be created: {exc.strerror}; choose a directory that scanbridge can write to"
        ) from exc
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise ConfigError(f"{key}: {path} is on a read-only file system; remount it, or choose another directory")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"{key}: {path} is not writable; check its owner, or choose another directory")
    return path


def _refuse_shared(path: Path, key: str, others: str) -> None:
    """A volume that its provisioner has opened to all, as an emptyDir of Kubernetes is, can only be warned about."""
    found = path.stat()
    own = (
        f"choose a directory that does not exist yet, such as {path}/state: "
        "scanbridge creates it with access only for itself"
    )
    if found.st_uid == 0 and stat.S_IMODE(found.st_mode) & 0o1777 == 0o777 and os.path.ismount(path):
        _warn(f"{key}: {path} {others}; {own}")
        return
    if found.st_uid == root_as_owner.current_user():
        step = f"run chmod go-w {path}"
    elif found.st_uid == 0:
        step = own
    else:
        step = "give it to the daemon's user with chown, or run this command as its owner"
    raise ConfigError(f"{key}: {path} {others}, so others could replace the files in it; {step}")


def warn_of_foreign_parent(path: Path, key: str) -> None:
    """Not an error: there may be mail in it."""
    if root_as_owner.current_user() != 0:
        return
    if above := root_as_owner.foreign_parent(path):
        text = f"{above} belongs to another user, who could replace {path}; move {path} to a directory that root owns"
        _warn(f"{key}: {text}")


@cache
def _warn(text: str) -> None:
    """Only once: several parts of the daemon look at the same directory."""
    log.warning("%s", text)
