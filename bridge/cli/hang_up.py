"""Sends SIGHUP to the daemon or the service that listens at an address, and to nothing else.

An answer from a port names a process, and any user may listen on a port: a command that runs as root must not signal
whatever such an answer names, because SIGHUP ends most programs. So for root, the process must have the listening
socket itself, and be one that may be ours. Other users can signal only their own processes: the kernel checks that, and
in the sandbox of a systemd unit, /proc shows them nothing to check.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

from bridge.errors import BridgeError
from bridge.runtime import port_owner
from bridge.runtime.endpoints import Endpoint

_OURS = ("scanbridge", "python")


class NotOurs(BridgeError):
    """The process is not the one that listens there."""


def may_be_ours(pid: int) -> bool:
    return port_owner.name(pid).startswith(_OURS)


def hang_up(pid: int, address: Endpoint, user: int | None = None) -> None:
    """Raises NotOurs; PermissionError if it is another user's; ProcessLookupError if there is no such process here.

    `user`: who runs the daemon; for root, where /proc does not show which process listens.
    """
    if os.geteuid() != 0 or os.environ.get("MAINPID") == str(pid):  # systemd names the unit's process to ExecReload
        os.kill(pid, signal.SIGHUP)
        return
    handle = _handle(pid)  # from now on, the number cannot come to mean another process
    try:
        if not may_be_ours(pid) or not _listens(pid, address, user):
            raise NotOurs(f"process {pid} ({port_owner.name(pid)}) does not listen on {address}")
        if handle is None:
            os.kill(pid, signal.SIGHUP)
        else:
            signal.pidfd_send_signal(handle, signal.SIGHUP)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, "no such process") from None
    finally:
        if handle is not None:
            os.close(handle)


def _listens(pid: int, address: Endpoint, user: int | None) -> bool:
    if port_owner.can_see_sockets():
        return pid in port_owner.owners(address)
    return user is not None and Path(f"/proc/{pid}").stat().st_uid == user


def _handle(pid: int) -> int | None:
    """None where the kernel lacks this call, or a sandbox forbids it."""
    try:
        return os.pidfd_open(pid)
    except OSError as exc:
        if exc.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise ProcessLookupError(errno.ESRCH, "no such process") from exc
