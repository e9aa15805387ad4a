"""IP addresses as they are compared and counted.

A dual-stack socket writes an IPv4 client as IPv6 (`::ffff:192.0.2.1`), and a zone (`fe80::1%eth0`) means something on
one machine only. If some part took these for other addresses, a client would escape a list, a limit or a trust.
"""

from __future__ import annotations

import ipaddress

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

_CLIENT_BITS = 64  # of an IPv6 address: every customer gets at least a /64 network
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052 2.1: all IPv4 clients, in one /64 network


def parse_ip(text: str) -> Ip:
    """Without a zone; an IPv4-mapped IPv6 address is IPv4. Raises ValueError."""
    address, zone, _ = text.partition("%")
    if zone and ":" not in address:
        raise ValueError("only an IPv6 address has a zone")
    ip = ipaddress.ip_address(address)
    return ip.ipv4_mapped or ip if isinstance(ip, ipaddress.IPv6Address) else ip


def ip_or_none(text: str) -> Ip | None:
    try:
        return parse_ip(text)
    except ValueError:
        return None


def client_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or the network of an IPv6 address, all of which its owner can use.

    An IPv4 client that a translator (NAT64, SIIT) shows as IPv6 is its IPv4 address. Any other text stands for itself.
    """
    ip = ip_or_none(address)
    if isinstance(ip, ipaddress.IPv6Address) and ip in _TRANSLATED:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((ip, _CLIENT_BITS), strict=False))
    return address if ip is None else str(ip)
