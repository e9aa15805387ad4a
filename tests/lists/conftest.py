"""The real service on loopback, and the PostgreSQL server that the service's own tests make."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from lists_kit import Service, running_service

_PLACE = Path(__file__).parents[1] / "service"
sys.path.append(str(_PLACE))  # its conftest has a kit beside it
_spec = importlib.util.spec_from_file_location("service_servers", _PLACE / "conftest.py")
_servers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_servers)
postgresql = _servers.postgresql


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Service:
    """One service for tests that use lists of their own."""
    with running_service(tmp_path_factory.mktemp("shared")) as service:
        yield service


@pytest.fixture
def service(shared: Service) -> Service:
    """The shared service, all its lists empty."""
    shared.clear()
    return shared


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def on_each_database(request, tmp_path_factory) -> Service:
    """A service on SQLite, then one on PostgreSQL."""
    database = "sqlite:///service.sqlite"
    if request.param == "postgresql":
        database = _servers.fresh_database(request.getfixturevalue("postgresql"))
    with running_service(tmp_path_factory.mktemp(request.param), database) as service:
        yield service
