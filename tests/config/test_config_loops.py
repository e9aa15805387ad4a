"""Domains in two places, and next hops that are our own listeners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.config.model import Config
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from tests.config.config_kit import OWN, TENANT, changed, load, mistakes


def test_a_domain_in_two_places_is_reported_at_the_second_one(tmp_path: Path) -> None:
    """The line was that of `tenants:`, whichever entry was wrong."""
    text = "\n".join(
        [
            *(
                "scanner: {urls: ['http://127.0.0.1:1'], token_file: t}",
                "listeners: [{name: a, address: '127.0.0.1:1'}]",
            ),
            *("relay: {next_hop: '127.0.0.1:2'}", "tenants:", f"- uid: {TENANT}", "  recipient_domains:"),
            *("  - a.example", "  - b.example", f"- uid: {TENANT[:-1]}9", "  recipient_domains:", "  - c.example"),
            *("  - B.EXAMPLE.", "  - '[192.0.2.1]'", "  - b\u00fccher.example", "  - localhost", "  - a_b.example", ""),
        ]
    )
    with pytest.raises(ConfigError) as caught:
        yaml_file.load(tmp_path / "bridge.yml", Config, text)
    places = "in two places: tenants.0.recipient_domains.1 and here; remove one of them"
    expected = f"tenants.1.recipient_domains.1: b.example and B.EXAMPLE. are the same domain, {places}"
    assert str(caught.value) == f"{tmp_path}/bridge.yml:12: {expected}"


def own(address: str, hop: str, **more: Any) -> str:
    return changed(listeners=[{"name": "mx", "address": address, "trusted_clients": ["127.0.0.1"]}],
                   relay={"next_hop": hop, **more})  # fmt: skip


@pytest.mark.parametrize(
    ("address", "hop"),
    [
        ("127.0.0.1:10025", "smtp://127.0.0.1:10025"),
        ("127.0.0.1:10025", "lmtp://LocalHost.:10025"),
        ("localhost:10025", "[::1]:10025"),
        ("[::1]:10025", "smtp://[0:0::1]:10025"),
        ("0.0.0.0:10025", "smtp://127.0.0.53:10025"),
        ("0.0.0.0:10025", "smtp://localhost:10025"),
        ("[::]:10025", "smtp://localhost:10025"),
        ("[::]:10025", "[::1]:10025"),
        ("127.0.0.1:10025", "[::ffff:127.0.0.1]:10025"),
        ("127.0.0.1:10025", "127.1:10025"),
        ("127.0.0.1:10025", "0.0.0.0:10025"),
        ("192.0.2.1:25", "192.0.2.1:25"),
        ("mx.example.org:25", "smtp://MX.example.org:25"),
        ("unix:/run/mx.sock", "lmtp+unix:/run/mx.sock"),
    ],
)
def test_a_next_hop_that_is_our_own_listener_is_refused(address: str, hop: str) -> None:
    """Every mail would loop until it had too many hops, and be rejected."""
    (mistake,) = mistakes(own(address, hop))
    assert "relay.next_hop: this is the bridge's own listener mx (" in mistake, mistake
    assert "every mail would loop" in mistake, mistake


def test_a_loop_is_found_in_every_list_of_next_hops() -> None:
    """In `next_hops`, routes and tenants: each at its own place, all at once."""
    route = {"recipient_domains": ["r.example"], "next_hops": ["h:1", "127.0.0.1:10025"]}
    tenant = {**OWN, "relay": {"next_hop": "127.0.0.1:10025"}}
    both = {"next_hop": "127.0.0.1:10025", "next_hops": ["127.0.0.1:10025", "h:1"], "routes": [route]}
    text = changed(relay=both, tenants=[tenant])
    said = ": this is the bridge's own listener mx"
    found = sorted(mistake.partition(said)[0].split()[-1] for mistake in mistakes(text))
    assert found == ["relay.next_hops.0", "relay.routes.0.next_hops.1", "tenants.0.relay.next_hop"]


@pytest.mark.parametrize(
    ("address", "hop"),
    [
        ("127.0.0.1:10025", "127.0.0.1:10026"),
        ("127.0.0.1:25", "127.0.0.2:25"),
        ("127.0.0.1:25", "[::1]:25"),
        ("0.0.0.0:25", "mail.example.org:25"),
        ("0.0.0.0:25", "[::1]:25"),
        ("[::]:25", "127.0.0.1:25"),
        ("192.0.2.1:25", "127.0.0.1:25"),
        ("systemd:mx", "127.0.0.1:25"),
        ("unix:/run/mx.sock", "maildir:/run/mx.sock"),
    ],
)
def test_a_next_hop_at_another_place_is_accepted(address: str, hop: str) -> None:
    """The same port on another address is another server."""
    assert str(load(own(address, hop)).listeners[0].address) == address
