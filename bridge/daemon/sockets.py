"""Listening sockets: bound here, or passed by systemd.

They stay open as long as the configuration names them, and servers use copies. A server that stops (or
a worker that dies) closes its copy only, and the clients waiting in the socket's queue are not lost.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Iterable
from itertools import chain

from bridge.daemon.socket_activation import ActivatedSockets
from bridge.errors import ConfigError
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.listening_socket import bind

log = logging.getLogger(__name__)


class Sockets:
    """All listening sockets, by address."""

    def __init__(self) -> None:
        self._held: dict[str, list[list[socket.socket]]] = {}  # the first ones, then the copies of later servers
        self._lent: set[str] = set()
        self._activated = ActivatedSockets()

    def hold(self, name: str, address: Endpoint, unix_mode: str = "0660", unix_owner: str | None = None) -> str:
        """Open the sockets of this address unless they are open. Raises what `open_listening` raises.

        `name`: the key of the configuration that holds the address, for people.
        """
        key = _key(name, address)
        # Without those that were closed by the servers that used them.
        held = [sockets for sockets in self._held.pop(key, []) if all(sock.fileno() >= 0 for sock in sockets)]
        if not held:
            self._lent.discard(key)
            held = [self._activated.find(address) or open_listening(address, unix_mode, unix_owner, name)]
            for sock in held[0]:
                sock.setblocking(False)  # now: making a copy non-blocking later would affect all processes
        self._held[key] = held
        return key

    def open(
        self, name: str, address: Endpoint, unix_mode: str = "0660", unix_owner: str | None = None
    ) -> list[socket.socket]:
        """The sockets of this address for one server, which closes them; later servers get copies."""
        key = self.hold(name, address, unix_mode, unix_owner)
        held = self._held[key]
        if key in self._lent:
            held.append([sock.dup() for sock in held[-1]])
        self._lent.add(key)
        return list(held[-1])

    def warn_of_idle(self) -> None:
        """Call it once all listeners are open."""
        for address in self._activated.idle():
            log.warning(
                "systemd listens on %s, but no listener in the configuration does: clients that connect there get "
                "no answer",
                address,
            )

    def keep_only(self, wanted: Iterable[tuple[str, Endpoint]]) -> None:
        """Close all other sockets."""
        keys = {_key(name, address) for name, address in wanted}
        for key in set(self._held) - keys:
            for sock in chain.from_iterable(self._held.pop(key)):
                sock.close()


def _key(name: str, address: Endpoint) -> str:
    """The address, so that a renamed listener keeps its socket; the name for port 0, which is a new port each time."""
    return name if address.host and not address.port else str(address)


def open_listening(
    address: Endpoint, unix_mode: str = "0660", unix_owner: str | None = None, key: str = ""
) -> list[socket.socket]:
    """New sockets for the address that this key holds. Raises CannotListen (which may be temporary) or ConfigError."""
    sock = bind(address, key, int(unix_mode, 8))
    if address.path and unix_owner:
        _set_owner(sock, address.path, unix_owner)
    return [sock]


def _set_owner(sock: socket.socket, path: str, owner: str) -> None:
    user, _, group = owner.partition(":")
    try:
        shutil.chown(path, user, group or None)
    except (LookupError, OSError) as exc:
        sock.close()
        reason = exc.strerror if isinstance(exc, OSError) else "no such user or group; create it, or correct the name"
        raise ConfigError(f"unix_owner: cannot change the owner of {path} to {owner}: {reason}") from exc
