"""Sending SIGHUP to the daemon or the service that listens at an address, and to nothing else.

An answer from a port names a process, and any user may listen on a port: a command that runs as root must not signal
whatever such an answer names, because SIGHUP ends most programs. So the process must have the listening socket itself,
and be one that can be ours.
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


def hang_up(pid: int, address: Endpoint) -> None:
    """Raises NotOurs; PermissionError if it is another user's; ProcessLookupError if there is no such process here."""
    handle = _handle(pid)  # from now on, the number cannot come to mean another process
    try:
        if os.geteuid() not in (0, Path(f"/proc/{pid}").stat().st_uid):
            raise PermissionError(errno.EPERM, "belongs to another user")
        if not may_be_ours(pid) or pid not in port_owner.owners(address):
            raise NotOurs(f"process {pid} ({port_owner.name(pid)}) does not listen at {address}")
        if handle is None:
            os.kill(pid, signal.SIGHUP)
        else:
            signal.pidfd_send_signal(handle, signal.SIGHUP)
    except FileNotFoundError:
        raise ProcessLookupError(errno.ESRCH, "no such process") from None
    finally:
        if handle is not None:
            os.close(handle)


def _handle(pid: int) -> int | None:
    """None where the kernel or a sandbox has no such call."""
    try:
        return os.pidfd_open(pid)
    except OSError as exc:
        if exc.errno in (errno.ENOSYS, errno.EPERM):
            return None
        raise ProcessLookupError(errno.ESRCH, "no such process") from exc
