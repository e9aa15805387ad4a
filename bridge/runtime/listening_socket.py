"""Bound, listening sockets: TCP and unix.

We bind them ourselves, so an address that is taken is an exception with a clear text, raised
before anything accepts. Knows nothing of what is served on them. If this is wrong, a second
process shares a port unnoticed, or a socket file left by a crash prevents the next start.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from bridge.errors import BridgeError
from bridge.runtime import port_owner
from bridge.runtime.endpoints import Endpoint

BACKLOG = 4096  # a client that finds the queue full retries only after a second
_LOCK_TIMEOUT_S = 5.0
_LOCK_RETRY_S = 0.02


class CannotListen(BridgeError):
    """An address is in use, or is not one of this machine's; the text says which address."""


def bind(address: Endpoint, key: str = "", unix_mode: int = 0o660) -> socket.socket:
    """A listening socket for `address`, which this key of the configuration holds. Raises CannotListen."""
    try:
        return _bind_unix(address.path, unix_mode) if address.path else _bind_tcp(address)
    except OSError as exc:
        reason = exc.strerror or str(exc) or type(exc).__name__
        where = f"{key}: " if key else ""
        raise CannotListen(f"{where}cannot listen on {address}: {reason}{_next_step(exc, address)}") from exc


def _next_step(exc: OSError, address: Endpoint) -> str:
    match exc.errno:
        case errno.EADDRINUSE if address.path and not Path(address.path).is_socket():
            return "; a file with this name exists and is not a socket: remove it, or choose another path"
        case errno.EADDRINUSE:
            return _used_by(address)
        case errno.EADDRNOTAVAIL | socket.EAI_NONAME:
            return "; use an address of this machine, or 127.0.0.1 for local clients only"
        case errno.EACCES | errno.EPERM if not address.path:
            return "; ports below 1024 are reserved for root (or CAP_NET_BIND_SERVICE): choose a higher one"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "; choose a directory in which this user may create files"
        case errno.ENOENT:
            return "; create the directory first"
    return "; choose a path of at most 107 bytes" if "too long" in str(exc) else ""


def _used_by(address: Endpoint) -> str:
    """The program that is in the way, if this user may see it."""
    if found := port_owner.listener(address):
        return f" by {found}; stop it, or choose another address"
    return "; is another program or another scanbridge using it?"


def address_of(sock: socket.socket) -> Endpoint:
    """Where a socket listens, with the actual port if it was bound to port 0."""
    name = sock.getsockname()
    return Endpoint(path=name) if isinstance(name, str) else Endpoint(host=name[0], port=name[1])


def _bind_tcp(address: Endpoint) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, sockaddr = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(sockaddr)
        sock.listen(BACKLOG)  # now, so that a second server on this port fails here and not later
    except OSError:
        sock.close()
        raise
    return sock


def _bind_unix(path: str, mode: int) -> socket.socket:
    with _directory_locked(Path(path).parent):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(Path(path).stat().st_mode) and _is_abandoned(path):
                os.unlink(path)  # left behind by a process that is gone
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(path)
            Path(path).chmod(mode)
            sock.listen(BACKLOG)  # only now can anyone connect
        except OSError:
            sock.close()
            raise
    return sock


@contextlib.contextmanager
def _directory_locked(directory: Path) -> Iterator[None]:
    """Lets only one of our processes at a time replace a socket there.

    Until a new socket listens, it looks abandoned: two processes that start at the same time would remove each other's.
    Another program may hold the lock, so after a while we go on without it.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # it may be used, but not read; or it is missing, which `bind` reports
        yield
        return
    try:
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while not _lock(fd) and time.monotonic() < until:
            time.sleep(_LOCK_RETRY_S)
        yield
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # not every file system has locks
        return True
    return True


def _is_abandoned(path: str) -> bool:
    """Whether no process listens there. One that does may have a full queue (EAGAIN), or refuse us (EACCES)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED
