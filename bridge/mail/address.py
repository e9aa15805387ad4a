"""The domain of a mail address, in the one spelling in which domains are compared.

Tenants, routes and the milter all choose by domain. If two of them spelled the same domain differently,
a mail would get one tenant's policy and another tenant's next hop.
"""

from __future__ import annotations


def domain_of(address: str) -> str:
    """The part behind the last @, ready to be compared; an address without @ is all domain."""
    return comparable_domain(address.rpartition("@")[2])


def comparable_domain(domain: str) -> str:
    """A domain as written in the configuration or in an address, spelled the way `domain_of` spells it."""
    return domain.lower()
