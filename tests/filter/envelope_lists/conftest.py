"""The real service with its lists, and the kits of the tests beside these."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """One service for all: what its lists hold is in door_kit.LISTS, and tests add to lists of their own only."""
    from tests.filter.envelope_lists.envelope_lists_kit import fill
    from tests.lists.lists_kit import running_service

    with running_service(tmp_path_factory.mktemp("lists"), more=OWN) as service:
        fill(service)
        yield service


OWN = """  - {name: shunned, category: sender, maxSize: 1000000}
  - {name: closed-mailboxes, category: sender, maxSize: 1000000}
  - {name: changing, category: sender, maxSize: 1000000}
"""
