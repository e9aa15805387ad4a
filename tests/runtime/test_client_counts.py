"""Who counts as one client of a server."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.runtime.client_counts import ClientCounts, client_behind


@pytest.mark.parametrize(
    ("peername", "client"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("::ffff:192.0.2.1", 5, 0, 0), "192.0.2.1"),
        (("2001:db8:1:2:3::4", 5, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("", None),
        (None, None),
    ],
)
def test_a_client_is_an_address_or_a_network(peername: Any, client: str | None) -> None:
    """A client with one IPv6 address has a whole network of them, and could use each of them once."""
    assert client_behind(peername) == client


def test_clients_that_are_gone_are_forgotten() -> None:
    """Otherwise the counts grow with every client that was ever here."""
    counts = ClientCounts()
    for client in ("192.0.2.1", "192.0.2.1", None):
        counts.add(client)
    assert (counts.of("192.0.2.1"), counts.of(None), counts.of("192.0.2.2")) == (2, 0, 0)
    for client in ("192.0.2.1", "192.0.2.1", None):
        counts.remove(client)
    assert not counts._open
