"""Listening sockets: bound here, or handed to us by systemd.

They are held for as long as the configuration names them, and lent to whoever accepts: a server
that ends (or a worker that dies) takes its copy along and leaves the queue of waiting clients alone.
"""

from __future__ import annotations

import logging
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path

from bridge.daemon.socket_activation import Given
from bridge.errors import ConfigError
from bridge.runtime.endpoints import Address
from bridge.runtime.listening_socket import CannotListen, bind

log = logging.getLogger(__name__)


class Sockets:
    """All we listen on, by address."""

    def __init__(self) -> None:
        self._held: dict[str, list[socket.socket]] = {}
        self._lent: set[str] = set()
        self._given = Given()

    def hold(self, name: str, address: Address, unix_mode: str = "0660", unix_owner: str | None = None) -> str:
        """Open the sockets of this address if they are not open. Raises as `open_listening`."""
        key = _key(name, address)
        if any(sock.fileno() < 0 for sock in self._held.get(key, [])):  # whoever had borrowed them has closed them
            del self._held[key]
        if key not in self._held:
            self._lent.discard(key)
            self._held[key] = self._given.find(address) or open_listening(address, unix_mode, unix_owner)
            for sock in self._held[key]:
                sock.setblocking(False)  # for good: a copy would make it blocking again, for all processes
        return key

    def open(
        self, name: str, address: Address, unix_mode: str = "0660", unix_owner: str | None = None
    ) -> list[socket.socket]:
        """The sockets of this address for one server, which closes them; for the next one, copies."""
        key = self.hold(name, address, unix_mode, unix_owner)
        if key in self._lent:
            return [sock.dup() for sock in self._held[key]]
        self._lent.add(key)
        return list(self._held[key])

    def warn_of_idle(self) -> None:
        """Once everything is open."""
        for place in self._given.idle():
            log.warning("systemd listens on %s, the configuration does not: clients there wait in vain", place)

    def keep_only(self, wanted: Iterable[tuple[str, Address]]) -> None:
        """Close the others."""
        keys = {_key(name, address) for name, address in wanted}
        for key in set(self._held) - keys:
            for sock in self._held.pop(key):
                sock.close()


def _key(name: str, address: Address) -> str:
    """A listener that is renamed keeps its socket; port 0 is another one each time."""
    return name if address.host and not address.port else str(address)


def open_listening(address: Address, unix_mode: str = "0660", unix_owner: str | None = None) -> list[socket.socket]:
    """New sockets for one address. Raises CannotListen, which may pass, or ConfigError, with what to do."""
    try:
        sock = bind(address)
    except CannotListen as exc:
        raise CannotListen(f"{exc}; is another program, or another scanbridge, using it?") from exc
    if address.path:
        Path(address.path).chmod(int(unix_mode, 8))
        if unix_owner:
            _give(sock, address.path, unix_owner)
    return [sock]


def _give(sock: socket.socket, path: str, owner: str) -> None:
    user, _, group = owner.partition(":")
    try:
        shutil.chown(path, user, group or None)
    except (LookupError, OSError) as exc:
        sock.close()
        reason = exc.strerror if isinstance(exc, OSError) else "there is no such user or group"
        raise ConfigError(f"unix_owner: {path} cannot be given to {owner}: {reason}") from exc
