"""The domain of an address: the spelling in which tenants, routes and the configuration are compared."""

from __future__ import annotations

import pytest

from bridge.mail.address import comparable_domain, domain_of


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("user@example.org", "example.org"),
        ("User@Example.ORG", "example.org"),
        ('"a@b"@example.org', "example.org"),
        ("user@[192.0.2.1]", "[192.0.2.1]"),
        ("user@B\u00fccher.example", "b\u00fccher.example"),
        ("user@example.org.", "example.org."),
        ("postmaster", "postmaster"),
        ("", ""),
    ],
)
def test_the_domain_follows_the_last_at_sign(address: str, domain: str) -> None:
    """Letter case does not matter; everything else does."""
    assert domain_of(address) == domain


def test_a_configured_domain_equals_the_domain_of_an_address() -> None:
    """`Example.ORG` in the configuration is the domain of user@example.org."""
    assert comparable_domain("Example.ORG") == domain_of("user@example.org")
