"""Which process listens on a port of this machine, as far as /proc shows it to this user.

For messages, and to find a process that must be signalled: only root sees the processes of other users.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from bridge.runtime.endpoints import Endpoint

_LISTENING = "0A"  # TCP_LISTEN in the kernel's net/tcp_states.h
_ACCEPTING = "00010000"  # __SO_ACCEPTCON in the flags of a unix socket
_TABLES = Path("/proc/self/net")  # /proc/net is missing in a unit with ProcSubset=pid


def can_see_sockets() -> bool:
    """False where /proc does not show the sockets of this machine, as in some sandboxes."""
    return os.access(_TABLES / "tcp", os.R_OK)


def owners(address: Endpoint) -> list[int]:
    """The ids of the processes that have the listening socket, the oldest first. Empty if they cannot be seen."""
    links = {f"socket:[{inode}]" for inode in _sockets(address)}
    return [pid for pid in sorted(_processes()) if links and not links.isdisjoint(_open_files(pid))]


def listener(address: Endpoint) -> str:
    """Who listens there: `process 12 (nginx)`, or `a process of another user`; empty if nobody does."""
    for pid in owners(address):
        return f"process {pid} ({name(pid)})"
    return "a process of another user" if any(True for _ in _sockets(address)) else ""


def name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def parent(pid: int) -> int:
    """0 if the process has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    return 0


def _sockets(address: Endpoint) -> Iterable[str]:
    """The inodes of the sockets that listen there, whichever process has opened them."""
    return _unix(address.path) if address.path else _tcp(address)


def _tcp(address: Endpoint) -> list[str]:
    """The sockets of exactly this address, or else those that are in its way."""
    found = []
    for table in ("tcp", "tcp6"):
        for fields in _rows(table, 10):
            host, _, port = fields[1].partition(":")
            if fields[3] == _LISTENING and int(port, 16) == address.port:
                found.append((_host(host), fields[9]))
    exact = [inode for bound, inode in found if str(bound) == address.host]
    return exact or [inode for bound, inode in found if _overlaps(bound, address)]


def _host(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints words of 32 bits, in its own byte order."""
    words = (int(text[place : place + 8], 16) for place in range(0, len(text), 8))
    return ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))


def _overlaps(bound: ipaddress.IPv4Address | ipaddress.IPv6Address, address: Endpoint) -> bool:
    """Whether both cannot be bound at the same time, or may not: a host name may stand for any address."""
    try:
        return bound.is_unspecified or address.is_any or bound == ipaddress.ip_address(address.host)
    except ValueError:
        return True


def _unix(path: str) -> Iterator[str]:
    for fields in _rows("unix", 8):
        if fields[3] == _ACCEPTING and fields[7:] == [path]:
            yield fields[6]


def _rows(table: str, least: int) -> Iterator[list[str]]:
    """The lines with at least `least` fields. The name of a unix socket may contain any byte, even a line end."""
    with suppress(OSError):
        lines = (_TABLES / table).read_text(errors="replace").split("\n")[1:]
        yield from (fields for fields in map(str.split, lines) if len(fields) >= least)


def _processes() -> Iterator[int]:
    with suppress(OSError):
        yield from (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):  # it has ended, or belongs to another user
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                found.add(str(entry.readlink()))
    return found
