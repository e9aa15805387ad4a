"""IP addresses as they are compared and counted.

A dual-stack socket writes an IPv4 client as IPv6 (`::ffff:192.0.2.1`), and a zone (`fe80::1%eth0`) means something on
one machine only. If any code took these for other addresses, a client would escape a list or a limit, or lose trust.
"""

from __future__ import annotations

import ipaddress
import re

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address

_NUMBER = r"(?:0x[0-9a-f]*|[0-9]+)"
_NUMBERS = re.compile(rf"0x[0-9a-f]+|[0-9]{{8,}}|{_NUMBER}(?:\.{_NUMBER}){{1,3}}")
_MAX_DIGITS = 12  # without leading zeros, in any base: a number with more is not an address
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


def ip_in_link(host: str) -> str | None:
    """The address that browsers read in the host of a link: 3221226219, 0xc0.0.0x2eb and 0300.0.2.0353 are one.

    `host` is in lower case and without brackets. None if it does not look like an address; "" if it only looks so.
    """
    if ":" not in host and not _NUMBERS.fullmatch(host):
        return None
    try:
        if ":" in host:
            ip = ipaddress.IPv6Address(host)
            return "" if ip.scope_id else str(ip.ipv4_mapped or ip)
        *first, last = [_number(part) for part in host.split(".")]
        number = last + sum(byte << (24 - 8 * place) for place, byte in enumerate(first))
        fits = len(first) < 4 and all(byte < 256 for byte in first) and last < 256 ** (4 - len(first))
        return str(ipaddress.IPv4Address(number)) if fits else ""
    except ValueError:
        return ""


def _number(part: str) -> int:
    base = 16 if part.startswith("0x") else 8 if part.startswith("0") else 10
    digits = part.removeprefix("0x").lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS:
        raise ValueError
    return int(digits, base)


def client_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or an IPv6 network, whose owner can use all its addresses.

    An IPv4 client that a translator (NAT64, SIIT) shows as IPv6 is its IPv4 address. Any other text stands for itself.
    """
    ip = ip_or_none(address)
    if isinstance(ip, ipaddress.IPv6Address) and ip in _TRANSLATED:
        ip = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((ip, _CLIENT_BITS), strict=False))
    return address if ip is None else str(ip)
