"""The real service on loopback, and the private PostgreSQL server that the service's tests use, too."""

from __future__ import annotations

import pytest

from tests.lists.lists_kit import Service, running_service
from tests.postgresql import fresh_database


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Service:
    """One service, shared by the tests of a module."""
    with running_service(tmp_path_factory.mktemp("shared")) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Service:
    """The shared service, with all its lists empty."""
    shared.clear()
    return shared


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def on_each_database(request, tmp_path_factory) -> Service:
    """A service on SQLite, then another one on PostgreSQL."""
    database = "sqlite:///service.sqlite"
    if request.param == "postgresql":
        database = fresh_database(request.getfixturevalue("postgresql"))
    with running_service(tmp_path_factory.mktemp(request.param), database) as service:
        yield service
