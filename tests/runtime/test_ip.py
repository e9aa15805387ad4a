"""Which texts are the same IP address, and the same client."""

from __future__ import annotations

import pytest

from bridge.runtime.ip import client_of, ip_or_none


@pytest.mark.parametrize(
    ("text", "address", "client"),
    [
        ("192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1"),
        ("::FFFF:C000:201", "192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0:0::1", "2001:db8::1", "2001:db8::/64"),
        ("64:ff9b::192.0.2.1", "64:ff9b::c000:201", "192.0.2.1"),
        ("64:ff9b::c633:6409", "64:ff9b::c633:6409", "198.51.100.9"),
        ("64:ff9b:1::c000:201", "64:ff9b:1::c000:201", "64:ff9b:1::/64"),
        ("fe80::1%eth0", "fe80::1", "fe80::/64"),
        ("::ffff:127.0.0.1%lo", "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1%other.example", "None", "127.0.0.1%other.example"),
        ("local", "None", "local"),
        ("", "None", ""),
    ],
)
def test_one_address_has_one_spelling(text: str, address: str, client: str) -> None:
    """A client that is written in two ways would escape a list or a limit; an IPv4 address has no zone.

    Behind a translator (RFC 6052), all IPv4 clients of the world were one client: one of them used up everyone's limit.
    """
    assert (str(ip_or_none(text)), client_of(text)) == (address, client)
