"""Root works in a directory of another user with that user's rights to files, and no others.

The state directory belongs to the daemon's unprivileged user. That user can put a link, a second name of a file or
another directory in place of anything in it, at any moment, and SQLite opens its files by name, the journals even
later. So checking a file before it is opened is not enough. Instead, root's commands take the file system identity of
the directory's owner (setfsuid(2)) before they open anything there: whatever a name leads to, they can do only what the
owner may do. Files that are created belong to the owner.

The identity belongs to a thread, and new threads inherit it. `as_operator` goes back to root's rights for a file that
the operator or the configuration names, such as a secret or the target of an export.

Under systemd with DynamicUser, the owner cannot reach the directory outside of the service: /var/lib/private is closed
to all but root. Then the right to read and search (CAP_DAC_READ_SEARCH) is kept: nothing can be written elsewhere, and
what is read is checked as well (`durable_files`).
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_NOT_A_USER = -1  # setfsuid(-1) changes nothing and returns the user
_MAX_LINKS = 40  # as the kernel
_CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_READ_SEARCH = 1 << 2  # CAP_DAC_READ_SEARCH


@dataclass(frozen=True, slots=True)
class _Owner:
    uid: int
    gid: int
    groups: tuple[int, ...]
    reads_all: bool = False


_acting: _Owner | None = None  # of this process: a command works on one state directory


def current_user() -> int:
    """Whose rights to files this thread has."""
    user = os.geteuid()
    return int(_libc().setfsuid(_NOT_A_USER)) if user == 0 and _acting is not None else user


def current_groups() -> frozenset[int]:
    """The groups whose rights to files this thread has."""
    own = os.getegid() if current_user() == os.geteuid() or _acting is None else _acting.gid
    return frozenset((own, *os.getgroups()))


def foreign_owner(path: Path) -> int | None:
    """The user other than root to whom this directory belongs, or the nearest one that exists, or a link on the way.

    A directory further up does not count: a daemon run by root may keep its mail below one, and root must get at it.
    """
    found, unmapped = None, _unmapped_user()
    for place in _way(path):
        found = place.lstat()
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, unmapped):
            return found.st_uid
    return found.st_uid if found is not None and found.st_uid != 0 and _is_known(found.st_uid, path) else None


def foreign_parent(path: Path) -> Path | None:
    """For a directory of root: the first one on its path that another user owns, who could thus replace it."""
    if foreign_owner(path) is not None:
        return None
    trusted = (0, _unmapped_user())
    return next((place for place in _way(path) if place.lstat().st_uid not in trusted), None)


def _is_known(uid: int, path: Path) -> bool:
    """Not for a directory above a missing one that belongs to a user outside of our user namespace."""
    return uid != _unmapped_user() or path.exists()


def _way(path: Path) -> Iterator[Path]:
    """The directories and links that lead to this path, as far as they exist. Raises OSError."""
    todo, here, links = list(reversed(path.absolute().parts[1:])), Path("/"), 0
    while todo:
        name = todo.pop()
        if name == "..":
            here = here.parent
            continue
        try:
            found = (here / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        yield here / name
        if not stat.S_ISLNK(found.st_mode):
            here /= name
            continue
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = (here / name).readlink()
        here = Path("/") if target.is_absolute() else here
        todo += reversed([part for part in target.parts if part != "/"])


def _unmapped_user() -> int | None:
    """In a user namespace: the number that stands for all users outside of it, among them the machine's root."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):  # /proc/sys is not shown in a sandbox
        return None


@contextmanager
def acting_for(directory: Path) -> Iterator[None]:
    """As root: with the rights of the user to whom this directory belongs, if that is not root.

    For everybody else, and inside another such block, it changes nothing. Raises OSError.
    """
    global _acting
    uid = foreign_owner(directory) if os.geteuid() == 0 and _acting is None else None
    if uid is None:
        yield
        return
    groups, owner = os.getgroups(), _owner(uid, directory)
    try:
        os.setgroups(owner.groups)
        _acting = owner
        _take(owner)
        if not (_can_enter(directory) and _can_enter(Path(__file__).parent)):
            _acting = _Owner(owner.uid, owner.gid, owner.groups, reads_all=True)
            _take(_acting)
        yield
    finally:
        _restore()
        _acting = None
        os.setgroups(groups)


@contextmanager
def as_operator() -> Iterator[None]:
    """With root's rights again, in this thread, for a file that is not in the state directory. Must not await."""
    if _acting is None or current_user() == 0:
        yield
        return
    acting = _acting
    _restore()
    try:
        yield
    finally:
        _take(acting)


def _owner(uid: int, directory: Path) -> _Owner:
    """The groups are those of the user database: the directory may have the group of root."""
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:  # a number only, as in a container
        nearest = next(path for path in (directory, *directory.absolute().parents) if path.exists())
        gid = nearest.stat().st_gid or uid
        return _Owner(uid, gid, (gid,))
    return _Owner(uid, entry.pw_gid, tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)))


def _take(owner: _Owner) -> None:
    """Raises OSError if the kernel refuses, as in a container whose root has few rights."""
    libc = _libc()
    if owner.uid != 0:  # with root's rights, before they are gone
        libc.setfsgid(owner.gid)
    libc.setfsuid(owner.uid)
    if owner.uid == 0:
        libc.setfsgid(owner.gid)
    if libc.setfsuid(_NOT_A_USER) != owner.uid:
        raise OSError(errno.EPERM, f"belongs to user {owner.uid}, and this process cannot act as that user")
    if owner.reads_all:
        _keep_reading(libc)


def _restore() -> None:
    """Root's own rights."""
    _take(_Owner(0, os.getegid(), ()))


def _keep_reading(libc: Any) -> None:
    """The kernel took all rights to files from this thread; give it one back."""
    import ctypes

    header = (ctypes.c_uint32 * 2)(_CAPABILITIES, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: the lower halves, then the upper ones
    if libc.capget(header, sets) != 0:
        return
    sets[0] |= sets[1] & _READ_SEARCH
    libc.capset(header, sets)


def _can_enter(directory: Path) -> bool:
    try:
        (directory / ".").stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


@cache
def _libc() -> Any:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, "belongs to another user, and root can act as that user only on Linux")
    return libc
