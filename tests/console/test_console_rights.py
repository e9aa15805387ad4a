"""The rights of people of a provider, after the configuration was changed and the console restarted."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bridge.console.guard import SESSION_COOKIE
from bridge.console.roles import Person, Role, Tenants
from bridge.console.sessions import SessionLimits, Sessions
from bridge.testing import free_port
from tests.console.console_kit import TENANT_A, TENANT_B, TENANTS, ConsoleProcess, console_process
from tests.daemon.process_kit import write_config
from tests.requirements import library

ISSUER = "https://login.example.org"
ROLES: list[dict[str, Any]] = [
    {"group": "admins", "role": "admin"},
    {"group": "desk", "role": "viewer", "tenants": [TENANT_B, TENANT_A.upper()]},
]
BOTH = frozenset({TENANT_A, TENANT_B})


def answer(console: ConsoleProcess, role: Role, tenants: Tenants, issuer: str) -> int:
    """To somebody whose session began before the restart."""
    of_provider = ("s1", "admins" if role is Role.ADMIN else "desk") if issuer else ("", "")
    person, browser = Person("ann", role, tenants, issuer, *of_provider), console.browser()
    with closing(console.store) as store:
        browser.cookies[SESSION_COOKIE] = Sessions(store, SessionLimits(3600, 43200)).begin(person, "127.0.0.1", "x")
    return browser.get("/sessions").status


@pytest.mark.parametrize("is_on", [True, False])
def test_people_kept_rights_that_the_configuration_no_longer_gives(tmp_path: Path, is_on: bool) -> None:
    """A group with a lower role, fewer tenants, another provider, or none: sessions had the old rights for hours."""
    for name in ("argon2", "authlib", "jinja2", "nh3", "pyzipper"):
        library(name, "console")
    port = free_port()
    section: dict[str, Any] = {"address": f"127.0.0.1:{port}"}
    section |= {"oidc": {"issuer": ISSUER, "client_id": "x", "roles": ROLES}} if is_on else {}
    config, _, _ = write_config(
        tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:2", console=section, tenants=TENANTS
    )  # fmt: skip
    with console_process(config, port) as console:
        assert answer(console, Role.ADMIN, None, ISSUER) == (200 if is_on else 303)
        assert answer(console, Role.VIEWER, BOTH, ISSUER) == (200 if is_on else 303)
        assert answer(console, Role.VIEWER, BOTH, "") == 200  # a local user
        for role, tenants in ((Role.RELEASER, None), (Role.VIEWER, None), (Role.VIEWER, frozenset({TENANT_A}))):
            assert answer(console, role, tenants, ISSUER) == 303, role
        assert answer(console, Role.ADMIN, None, "https://other.example.org") == 303
