"""Refuses a next hop that is one of our own listeners: every mail would return to us until it had too many hops.

Checked when the configuration is loaded, from its text alone: nothing is resolved or connected to, except that
`localhost` is always this machine. A loop through another server is not found here.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from bridge.config.fields import Place
from bridge.config.relay import NextHops, Relay
from bridge.runtime.endpoints import Endpoint, NextHop
from bridge.runtime.ip import ip_or_none

_LOOPBACK = frozenset({"127.0.0.1", "::1"})
_LOCAL_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"})


class _Listener(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def address(self) -> Endpoint: ...


def refuse_own_listeners(section: str, hops: Iterable[tuple[Place, NextHop]], listeners: Sequence[_Listener]) -> None:
    """Raises a ValidationError at each next hop that is one of the listeners. Each place is a path below `section`."""
    mistakes = []
    for place, hop in hops:
        own = next((listener for listener in listeners if _reaches(hop, listener.address)), None)
        if own is None:
            continue
        problem = (
            f"this is the bridge's own listener {own.name} ({own.address}), so every mail would loop and be "
            "rejected; set this to the server that accepts mail from scanbridge"
        )
        error = PydanticCustomError("own_listener", "{problem}", {"problem": problem})
        mistakes.append(InitErrorDetails(type=error, loc=place, input=None))
    if mistakes:
        raise ValidationError.from_exception_data(section, mistakes)


def hop_places(entry: NextHops, *above: int | str) -> Iterator[tuple[Place, NextHop]]:
    """Each next hop with its path in the configuration."""
    if not entry.next_hops:
        yield (*above, "next_hop"), entry.next_hop
    for number, hop in enumerate(entry.next_hops):
        yield (*above, "next_hops", number), hop


def relay_places(relay: Relay) -> Iterator[tuple[Place, NextHop]]:
    yield from hop_places(relay)
    for number, route in enumerate(relay.routes):
        yield from hop_places(route, "routes", number)


def _reaches(hop: NextHop, listener: Endpoint) -> bool:
    if hop.protocol == "maildir" or listener.systemd:
        return False
    if hop.address.path or listener.path:
        return hop.address.path == listener.path
    if hop.address.port != listener.port:
        return False
    targets, bound = _addresses(hop.address.host), _addresses(listener.host)
    if not listener.is_any:
        return bool(targets & bound)
    version = ":" in listener.host  # our IPv6 sockets accept no IPv4 connections
    return any(_is_loopback(target) and (":" in target) == version for target in targets)


def _addresses(host: str) -> frozenset[str]:
    """The addresses that a connection to this host can reach on this machine, or its name if it is another machine."""
    name = host.lower().rstrip(".")
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return _LOOPBACK
    ip = ip_or_none(name)
    if ip is None:
        return frozenset({_short_form(name)})
    if ip.is_unspecified:  # connecting to it reaches loopback
        return frozenset({"127.0.0.1" if ip.version == 4 else "::1"})
    return frozenset({str(ip)})


def _short_form(name: str) -> str:
    """`127.1` as 127.0.0.1, which is where a connection to it goes; any other name unchanged."""
    if not name.replace(".", "").isdigit():
        return name
    try:
        return socket.inet_ntoa(socket.inet_aton(name))
    except OSError:
        return name


def _is_loopback(text: str) -> bool:
    ip = ip_or_none(text)
    return ip is not None and ip.is_loopback
