"""`scanner.dialect` and the keys that depend on it: each mistake is named with its file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.errors import ConfigError
from bridge.runtime import yaml_file

REST = """\
listeners: [{name: mx, address: "127.0.0.1:10025"}]
relay: {next_hop: "127.0.0.1:10026"}
"""


def load(scanner: str, rest: str = REST) -> Config:
    return yaml_file.load(Path("bridge.yml"), Config, f"scanner:\n{scanner}{rest}")


def test_the_default_is_the_email_scanning_api() -> None:
    """A configuration from before dialects means what it meant."""
    conf = load("  urls: [http://127.0.0.1:9081]\n  token_file: token\n")
    assert conf.scanner.dialect == "email-scanning" and conf.scanner.allow_changes is None
    assert wiring.scanner_settings(conf, "secret").dialect("http://127.0.0.1:9081", "secret").name == "email-scanning"


@pytest.mark.parametrize("dialect", ["rspamd", "mta-hooks"])
def test_each_dialect_is_made_from_its_settings(dialect: str) -> None:
    """rspamd needs no secret; the changes default to the subject."""
    token = "  token_file: token\n" if dialect != "rspamd" else ""
    conf = load(f"  dialect: {dialect}\n  urls: [http://127.0.0.1:11333/]\n{token}")
    assert wiring.scanner_settings(conf, "").dialect("http://127.0.0.1:11333", "").name == dialect
    if dialect == "rspamd":
        assert wiring.token(conf) == ""


MISTAKES = {
    "unknown": ("  dialect: spamd\n  urls: [http://127.0.0.1:1]\n  token_file: t\n", 2, "scanner.dialect"),
    "no token": ("  dialect: mta-hooks\n  urls: [http://127.0.0.1:1]\n", 1, "scanner.token_file"),
    "tenant": (
        "  dialect: rspamd\n  urls: [http://127.0.0.1:1]\n  tenant_uid: 123e4567-e89b-12d3-a456-426614174000\n",
        4, "scanner.tenant_uid",
    ),
    "size of the request": (
        "  dialect: rspamd\n  urls: [http://127.0.0.1:1]\n  size_limit_counts: request\n", 4,
        "scanner.size_limit_counts",
    ),
    "changes of the default dialect": (
        "  urls: [http://127.0.0.1:1]\n  token_file: t\n  allow_changes: [subject]\n", 4, "scanner.allow_changes",
    ),
    "an unknown change": (
        "  dialect: rspamd\n  urls: [http://127.0.0.1:1]\n  allow_changes:\n    - subject\n    - body\n",
        6, "scanner.allow_changes.1",
    ),
    "rspamd's settings elsewhere": (
        "  urls: [http://127.0.0.1:1]\n  token_file: t\n  rspamd: {settings_id: x}\n", 4, "scanner.rspamd",
    ),
    "an id with a line end": (
        '  dialect: rspamd\n  urls: [http://127.0.0.1:1]\n  rspamd:\n    settings_id: "a\\r\\nX: y"\n',
        5, "scanner.rspamd.settings_id",
    ),
    "a decision that is none": (
        "  dialect: rspamd\n  urls: [http://127.0.0.1:1]\n  rspamd:\n    actions:\n      greylist: accept\n",
        6, "scanner.rspamd.actions.greylist",
    ),
    "an action in capitals": (
        "  dialect: rspamd\n  urls: [http://127.0.0.1:1]\n  rspamd:\n    actions:\n      Greylist: deliver\n",
        5, "scanner.rspamd.actions",
    ),
    "an operation in the URL": ("  dialect: rspamd\n  urls: [http://127.0.0.1:1/checkv2]\n", 3, "scanner.urls"),
    "discovery of an address": (
        "  urls: [https://192.0.2.1]\n  discovery: {records: addresses}\n  token_file: t\n", 3, "scanner.discovery",
    ),
    "plain HTTP to whatever the DNS says": (
        "  urls: [http://localhost:9081]\n  discovery: {records: addresses}\n  token_file: t\n", 3, "scanner.discovery",
    ),
    "SRV records with a port": (
        "  urls: ['https://_s._tcp.example:1']\n  discovery: {records: srv}\n  token_file: t\n", 3, "scanner.discovery",
    ),
    "a name server without an address": (
        "  urls: [https://s.example]\n  discovery: {records: srv, nameservers: ['ns.example:53']}\n  token_file: t\n",
        3, "scanner.discovery.nameservers",
    ),
    "intervals in the wrong order": (
        "  urls: [https://s.example]\n  token_file: t\n"
        "  discovery: {records: srv, min_interval: 9s, max_interval: 8s}\n",
        4, "scanner.discovery.max_interval",
    ),
    "an interval longer than the default of the other": (
        "  urls: [https://s.example]\n  token_file: t\n  discovery: {records: srv, min_interval: 5m}\n",
        4, "scanner.discovery",
    ),
    "plain HTTP to another machine": ("  dialect: rspamd\n  urls: [http://192.0.2.1:11333]\n", 3, "scanner.urls"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_named_with_its_line(name: str) -> None:
    """The file, the line, the key, and what to write instead."""
    scanner, line, key = MISTAKES[name]
    with pytest.raises(ConfigError) as caught:
        load(scanner)
    places = re.findall(r"(?m)^bridge\.yml:(\d+): ([\w.]+): ", str(caught.value))
    assert places == [(str(line), key)], str(caught.value)


def test_the_embedded_service_speaks_its_own_dialect() -> None:
    """It is not rspamd."""
    with pytest.raises(ConfigError, match="embedded_service: the embedded service does not speak rspamd"):
        load("  dialect: rspamd\n  urls: [http://127.0.0.1:1]\n", f"{REST}embedded_service: true\n")


def test_the_embedded_service_is_not_looked_up() -> None:
    """It listens at the first URL, on this machine."""
    scanner = "  urls: [https://s.example]\n  discovery: {records: addresses}\n  token_file: t\n"
    with pytest.raises(ConfigError, match="embedded_service: the embedded service is on this machine"):
        load(scanner, f"{REST}embedded_service: true\n")
