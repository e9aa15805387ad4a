"""The host names under which browsers on this machine may read pages that need no password: /status, /metrics, ...

A page of another site can make its name point at 127.0.0.1 (DNS rebinding), and then read what is served there: the
browser takes it for the same site. What gives it away is the Host field, which has that name. On a loopback address,
only names that no stranger can own are answered: addresses, names without a dot, this machine's name, and those in
the configuration. Other addresses can be reached by strangers in any case, or are protected by a firewall.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from typing import Any

from bridge.runtime.ip import ip_or_none


def wrong_host(key: str) -> str:
    """The text of a 421. `key`: where the configuration names hosts."""
    return f"this host name is not known here and may belong to another site: use the address, or add the name to {key}"


def has_known_host(scope: Mapping[str, Any], hosts: Collection[str]) -> bool:
    """Of an ASGI request: whether its Host field is one that this machine's browsers may use."""
    given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if not _is_loopback((scope.get("server") or ("",))[0]) or not given:
        return True
    return len(given) == 1 and _is_known(_name(given[0]), hosts)  # RFC 9112 3.2: exactly one


def _is_loopback(address: str) -> bool:
    ip = ip_or_none(address)
    return ip is not None and ip.is_loopback


def _is_known(name: str, hosts: Collection[str]) -> bool:
    if "%" in name:  # no browser sends the zone of an address
        return False
    if "." not in name or ip_or_none(name.strip("[]")) is not None:
        return True
    return name in {socket.gethostname().lower(), *(host.lower() for host in hosts)}


def _name(host: str) -> str:
    """Without the port, and without the dot at its end."""
    name, _, port = host.rpartition(":")
    if not name or not port.isdigit():
        name = host
    return name.strip().lower().removesuffix(".")
