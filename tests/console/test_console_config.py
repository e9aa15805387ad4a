"""The keys of the console: what is accepted, what is refused and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.config.console import Console
from bridge.config.model import Config
from bridge.errors import ConfigError
from bridge.runtime import yaml_file

BASE: dict[str, Any] = {
    "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "token"},
    "listeners": [{"name": "mx", "address": "127.0.0.1:10025"}],
    "relay": {"next_hop": "smtp://127.0.0.1:10026"},
}
OIDC = {"issuer": "https://login.example.org", "client_id": "x", "roles": [{"group": "g", "role": "admin"}]}
PUBLIC = "https://mail.example.org/scanbridge/"


def loaded(console: dict[str, Any] | None) -> Config:
    return yaml_file.load(Path("bridge.yml"), Config, yaml_file.dump({**BASE, "console": console}))


def section(**keys: Any) -> Console:
    found = loaded(keys).console
    assert found is not None
    return found


def test_it_is_off_by_default() -> None:
    """Without its key there is none."""
    assert loaded(None).console is None


@pytest.mark.parametrize(
    ("keys", "origins", "root"),
    [
        ({}, {"http://127.0.0.1:9083", "http://localhost:9083"}, ""),
        ({"address": "[::1]:9083"}, {"http://[::1]:9083", "http://localhost:9083"}, ""),
        ({"public_url": PUBLIC}, {"https://mail.example.org"}, "/scanbridge"),
        ({"public_url": "https://Mail.Example.org:443"}, {"https://mail.example.org"}, ""),
        ({"public_url": "https://mail.example.org:8443/a/b/"}, {"https://mail.example.org:8443"}, "/a/b"),
        ({"address": "unix:/run/x.sock", "public_url": PUBLIC}, {"https://mail.example.org"}, "/scanbridge"),
    ],
)  # fmt: skip
def test_the_address_decides_origin_and_path(keys: dict[str, Any], origins: set[str], root: str) -> None:
    """As browsers write them: in lower case, without the usual port."""
    assert (section(**keys).origins, section(**keys).root_path) == (origins, root)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"address": "0.0.0.0:9083"}, "can be reached from other machines"),
        ({"address": "192.0.2.1:9083"}, "put a reverse proxy with TLS in front"),
        ({"address": "unix:/run/x.sock"}, "is for a reverse proxy"),
        ({"address": "systemd:console"}, "is for a reverse proxy"),
        ({"address": "127.0.0.1:10025"}, "the listener mx has the same address"),
        ({"address": "127.0.0.1:9082"}, "the admin page has the same address"),
        ({"public_url": "http://mail.example.org/"}, "unencrypted"),
        ({"public_url": "https://user:secret@mail.example.org/"}, "must not contain a user name or password"),
        ({"public_url": "https://mail.example.org/?x=1"}, "must not have a query"),
        ({"session_idle": "5s"}, "session_idle"),
        ({"oidc": {**OIDC, "issuer": "http://login.example.org"}}, "unencrypted"),
        ({"oidc": {**OIDC, "roles": []}}, "roles"),
        ({"oidc": {**OIDC, "roles": [{"group": "g", "role": "king"}]}}, "role"),
        ({"oidc": {**OIDC, "roles": [{"group": "g", "role": "admin", "tenants": ["x"]}]}}, "a tenant must be a UUID"),
        ({"oidc": {**OIDC, "client_secret_file": "0123456789abcdef" * 4}}, "this looks like the secret itself"),
        ({"password": "x"}, "unknown key"),
    ],
)
def test_mistakes_are_refused(keys: dict[str, Any], said: str) -> None:
    """Each says what is expected."""
    with pytest.raises(ConfigError, match=said) as found:
        loaded(keys)
    assert "secret@" not in str(found.value) and "0123456789abcdef" not in str(found.value)


def test_openid_is_always_asked_for() -> None:
    """Otherwise there would be no ID token."""
    oidc = section(oidc={**OIDC, "scopes": ["groups"]}).oidc
    assert oidc is not None and oidc.scopes == ["openid", "groups"]
