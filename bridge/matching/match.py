"""Whether a sender or client is on a list, independent of how the entries are stored.

A domain, also in a sender list (`@example.org`), matches its subdomains; a network is looked up once
for each prefix length in use. So a look-up costs the same in a list of ten entries and of a million.
Input is converted to the canonical spelling of entries first; input that has none matches nothing.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Container, Iterable, Iterator
from functools import lru_cache

from bridge.matching import spelling

SENDER, DOMAIN, NETWORK = "sender", "domain", "network"

Length = tuple[int, int]  # IP version and prefix length


def address(text: str) -> str:
    """An address in the canonical spelling of entries; "" if it has none (the null sender, a bare name).

    An unusual local part that no entry could have (quoted, with odd characters) must not hide the domain.
    """
    local, at, host = text.rpartition("@")
    try:
        return spelling.address(text)
    except ValueError:
        pass
    try:
        return f"{local.lower()}@{spelling.domain(host)}" if at else ""
    except ValueError:
        return ""


def find_address(category: str, words: Container[str], text: str) -> str | None:
    """The entry of a `sender` or `domain` list that matches; `text` is the result of `address`."""
    if not text:
        return None
    names = upwards(text.rpartition("@")[2])
    if category == DOMAIN:
        return next((name for name in names if name in words), None)
    if text in words:
        return text
    return next((rule for name in names if (rule := "@" + name) in words), None)


def find_network(lengths: Iterable[Length], has: Callable[[int, int, int], bool], client: str) -> str | None:
    """The entry of a `network` list that contains this client; `has` takes version, length and number."""
    ip = _ip(client)
    number, bits, of = int(ip), ip.max_prefixlen, ip.version
    for version, length in lengths:
        if version == of:
            first = number >> (bits - length) << (bits - length)
            if has(version, length, first):
                return f"{type(ip)(first)}/{length}"
    return None


@lru_cache(1024)  # the same clients send again and again
def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """An IPv4-mapped IPv6 address counts as IPv4. Raises ValueError."""
    ip = ipaddress.ip_address(text)
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def upwards(name: str) -> Iterator[str]:
    """a.b.c, b.c, c"""
    while name:
        yield name
        name = name.partition(".")[2]
