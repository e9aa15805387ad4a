"""The real service with its lists."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """One service for all tests. LISTS in the kit has its entries; tests add entries only to their own lists."""
    from tests.filter.envelope_lists.envelope_lists_kit import fill
    from tests.lists.lists_kit import running_service

    with running_service(tmp_path_factory.mktemp("lists"), more=OWN) as service:
        fill(service)
        yield service


OWN = """  - {name: shunned, category: sender, maxSize: 1000000}
  - {name: closed-mailboxes, category: sender, maxSize: 1000000}
  - {name: changing, category: sender, maxSize: 1000000}
"""
