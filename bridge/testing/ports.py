"""Free ports, even for tests that run in several processes at the same time."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice

_PORTS = range(12_000, 32_000)  # below the range the kernel uses for outgoing connections
_SHARE = 500


def free_port() -> int:
    """A port on which nothing listens, and which no other process that calls this gets."""
    for port in islice(_own_ports(os.getpid()).numbers, _SHARE):
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")


@dataclass(frozen=True)
class _Share:
    """The ports of one process. Binding an abstract socket claims them; the kernel drops the claim with the process."""

    numbers: Iterator[int]
    claim: socket.socket


@cache
def _own_ports(pid: int) -> _Share:
    """A share for this process; a forked process gets a different one."""
    for first in _PORTS[::_SHARE]:
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0scanbridge-test-ports-{first}")
        except OSError:
            claim.close()
        else:
            atexit.register(claim.close)
            return _Share(cycle(range(first, first + _SHARE)), claim)
    raise OSError("other test runs have taken all ports")
