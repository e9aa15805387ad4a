"""Where the nodes of a cluster on one machine are: each has its own address.

The files of this directory use the addresses of 192.0.2.0/24. On loopback, 192.0.2.21 becomes 127.77.N.21, so that each
node has its usual ports, and several clusters (N) run side by side. With `Namespaces` (root, Linux), each node has its
own network namespace at 10.77.N.x behind a virtual switch, and `cut` disconnects it.
"""

from __future__ import annotations

import socket
import subprocess
from contextlib import suppress

EXAMPLE = "192.0.2."
_NUMBERS = range(1, 250)


class Loopback:
    """All nodes on loopback: needs no privileges, but no node can be disconnected."""

    prefix = "127.77."

    def __init__(self) -> None:
        self._lock, self.number = _claim()

    @property
    def whole(self) -> str:
        """The network from which nodes connect: on loopback, the kernel chooses 127.0.0.1 as the source."""
        return "127.0.0.0/8"

    def address(self, host: int) -> str:
        return f"{self.prefix}{self.number}.{host}"

    def add(self, host: int) -> None:
        """Make the address usable for a node."""

    def host_address(self, host: int) -> None:
        """Make the address usable for programs outside the cluster."""

    def command(self, host: int, words: list[str]) -> list[str]:
        """The command that runs `words` at this address."""
        return words

    def close(self) -> None:
        self._lock.close()


class Namespaces(Loopback):
    """A network namespace for each node; a bridge device is the switch between them."""

    prefix = "10.77."

    def __init__(self) -> None:
        super().__init__()
        self._switch = f"sbc{self.number}"
        self._names: list[str] = []
        self._remove()  # left over from a killed run
        _ip("link", "add", self._switch, "type", "bridge")
        _ip("address", "add", f"{self.address(1)}/24", "dev", self._switch)
        _ip("link", "set", self._switch, "up")

    @property
    def whole(self) -> str:
        return f"{self.address(0)}/24"

    def add(self, host: int) -> None:
        name, cable = self._name(host), self._cable(host)
        _ip("netns", "add", name)
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("link", "set", cable, "up")
        self.join(host)

    def host_address(self, host: int) -> None:
        _ip("address", "add", f"{self.address(host)}/24", "dev", self._switch)

    def cut(self, host: int) -> None:
        """Drop all packets without notice, as when a cable is pulled."""
        _ip("link", "set", self._cable(host), "nomaster")

    def join(self, host: int) -> None:
        _ip("link", "set", self._cable(host), "master", self._switch)

    def command(self, host: int, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._name(host), *words]

    def close(self) -> None:
        self._remove()
        super().close()

    def _name(self, host: int) -> str:
        return f"{self._switch}-{host}"

    def _cable(self, host: int) -> str:
        return f"{self._switch}v{host}"

    def _remove(self) -> None:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        for line in listed.splitlines():
            name = line.split()[0]
            if name.startswith(f"{self._switch}-"):
                with suppress(subprocess.CalledProcessError):  # missing if the run was killed early
                    _ip("link", "del", f"{self._switch}v{name.rpartition('-')[2]}")
                _ip("netns", "del", name)
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._switch)


def _claim() -> tuple[socket.socket, int]:
    """A number that no other cluster of this machine uses, until the socket is closed or this process ends."""
    for number in _NUMBERS:
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0scanbridge-cluster-{number}")
        except OSError:
            lock.close()
            continue
        return lock, number
    raise SystemExit("too many clusters run on this machine")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
