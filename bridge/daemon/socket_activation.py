"""Sockets passed by systemd, found by their name or by the address they are bound to.

A listener may name one (`systemd:NAME`). It may also give an ordinary address: if systemd has
opened a socket at that address, that socket is used. So the same configuration works with and without
socket units. The sockets stay open as long as the process runs, because systemd keeps listening in
any case; each server gets a copy.
"""

from __future__ import annotations

import os
import socket

from bridge.errors import ConfigError
from bridge.runtime.endpoints import Endpoint

_FIRST_FD = 3  # SD_LISTEN_FDS_START


class ActivatedSockets:
    """Taken once, when the process starts: later the same descriptor numbers may belong to other files."""

    def __init__(self) -> None:
        self._sockets = _take()
        self._used: set[int] = set()

    def find(self, address: Endpoint) -> list[socket.socket]:
        """Copies of the sockets for this address; none if we have to open it ourselves. Raises ConfigError."""
        bindings = _bindings(address)
        found = [
            index
            for index, (name, sock) in enumerate(self._sockets)
            if (name == address.systemd if address.systemd else _binding(sock) in bindings)
        ]
        if address.systemd and not found:
            name = address.systemd
            raise ConfigError(
                f"systemd:{name}: systemd passed no socket with this name; set FileDescriptorName={name} in the unit"
            )
        self._used.update(found)
        return [self._sockets[index][1].dup() for index in found]

    def idle(self) -> list[str]:
        """The sockets that no listener uses: clients that connect there are never served."""
        unused = [sock for index, (_, sock) in enumerate(self._sockets) if index not in self._used]
        return [_shown(sock) for sock in unused]


def _take() -> list[tuple[str, socket.socket]]:
    if os.environ.get("LISTEN_PID") != str(os.getpid()):  # meant for another process
        return []
    count = int(os.environ.get("LISTEN_FDS") or 0)
    names = [*os.environ.get("LISTEN_FDNAMES", "").split(":"), *[""] * count]
    taken: list[tuple[str, socket.socket]] = []
    for name, fd in zip(names, range(_FIRST_FD, _FIRST_FD + count), strict=False):
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
        if not _is_listening(sock):
            raise ConfigError(f"systemd: {name} is not a listening socket; use ListenStream= and Accept=no")
        taken.append((name, sock))
    return taken


def _is_listening(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _binding(sock: socket.socket) -> object:
    name = sock.getsockname()
    return name if sock.family == socket.AF_UNIX else tuple(name[:2])


def _bindings(address: Endpoint) -> list[object]:
    """What `_binding` returns for a socket bound to this address."""
    if address.path:
        return [address.path]
    if not address.host:
        return []
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:  # opening it will report the error
        return []
    return [tuple(binding[:2]) for *_, binding in found]


def _shown(sock: socket.socket) -> str:
    name = sock.getsockname()
    match name:
        case bytes():  # in the abstract namespace
            return "@" + name[1:].decode(errors="replace")
        case str():
            return str(Endpoint(path=name))
        case _:
            return str(Endpoint(host=name[0], port=name[1]))
