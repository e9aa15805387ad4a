"""The sockets that systemd hands us, found by their name or by the address they are bound to.

A listener may say `systemd:NAME`. It may as well say where it listens: if systemd has a socket open at
that very address, it is this one. So the same configuration works with socket units and without.
They stay ours for as long as we live, because systemd goes on listening in any case; who serves
one gets a copy.
"""

from __future__ import annotations

import os
import socket

from bridge.errors import ConfigError
from bridge.runtime.endpoints import Address

_FIRST_FD = 3  # SD_LISTEN_FDS_START


class Given:
    """Taken once, when the process starts: later the numbers may be somebody else's."""

    def __init__(self) -> None:
        self._sockets = _take()
        self._used: set[int] = set()

    def find(self, address: Address) -> list[socket.socket]:
        """Copies of those for this address; none if it is ours to open. Raises ConfigError."""
        places = _places(address)
        found = [
            one
            for one, (name, sock) in enumerate(self._sockets)
            if (name == address.systemd if address.systemd else _place(sock) in places)
        ]
        if address.systemd and not found:
            name = address.systemd
            raise ConfigError(f"systemd:{name}: systemd gave us no socket of that name; set FileDescriptorName={name}")
        self._used.update(found)
        return [self._sockets[one][1].dup() for one in found]

    def idle(self) -> list[str]:
        """Those that nobody has asked for: a client that connects there waits in vain."""
        left = [sock for one, (_, sock) in enumerate(self._sockets) if one not in self._used]
        return [_shown(sock) for sock in left]


def _take() -> list[tuple[str, socket.socket]]:
    if os.environ.get("LISTEN_PID") != str(os.getpid()):  # not meant for us
        return []
    count = int(os.environ.get("LISTEN_FDS") or 0)
    names = [*os.environ.get("LISTEN_FDNAMES", "").split(":"), *[""] * count]
    taken: list[tuple[str, socket.socket]] = []
    for name, fd in zip(names, range(_FIRST_FD, _FIRST_FD + count), strict=False):
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
        if not _is_listening(sock):
            raise ConfigError(f"systemd: the socket {name} is no listening one; use ListenStream= and Accept=no")
        taken.append((name, sock))
    return taken


def _is_listening(sock: socket.socket) -> bool:
    return sock.type == socket.SOCK_STREAM and bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _place(sock: socket.socket) -> object:
    name = sock.getsockname()
    return name if sock.family == socket.AF_UNIX else tuple(name[:2])


def _places(address: Address) -> list[object]:
    """As a socket bound there would name itself."""
    if address.path:
        return [address.path]
    if not address.host:
        return []
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError:  # opening it will say so
        return []
    return [tuple(place[:2]) for *_, place in found]


def _shown(sock: socket.socket) -> str:
    name = sock.getsockname()
    match name:
        case bytes():  # in the abstract namespace
            return "@" + name[1:].decode(errors="replace")
        case str():
            return str(Address(path=name))
        case _:
            return str(Address(host=name[0], port=name[1]))
