"""The configuration file: what it may contain, and how its mistakes are reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.config import model
from bridge.config.effective import effective
from bridge.errors import ConfigError
from bridge.mail.action import Action
from bridge.runtime import yaml_file
from tests.config.config_kit import EXAMPLE, ROUND_TRIPS, SMALL, TENANT, changed, load, mistakes


def test_the_documented_example_loads() -> None:
    """Every key of the design exists and has the documented meaning."""
    conf = load(EXAMPLE)
    assert conf.scanner.urls == ["https://scan.example.org:9081"]
    assert [listener.deadline for listener in conf.listeners] == [90.0, 240.0]
    assert conf.listeners[0].trusted_clients == ["127.0.0.0/8", "::1"]
    assert conf.admission.max_bytes_in_processing == 2**30
    assert conf.quarantine.retention == 30 * 86400
    assert str(conf.relay.next_hop) == "smtp://127.0.0.1:10026"  # type: ignore[union-attr]


def test_the_example_shows_the_defaults() -> None:
    """Except for addresses and names, its values are the defaults."""
    short, full = effective(load(SMALL)), effective(load(EXAMPLE))
    for section in ("admission", "policy", "quarantine", "headers", "admin", "workers", "log"):
        assert short[section] == full[section], section


def test_anchors_and_aliases_work() -> None:
    """One policy for two listeners is written once."""
    text = """\
scanner: {urls: ["http://127.0.0.1:1"], token_file: t}
listeners:
  - {name: a, address: "127.0.0.1:1", policy: &strict {undecided: reject}}
  - {name: b, address: "127.0.0.1:2", policy: *strict}
relay: {next_hop: "127.0.0.1:3"}
"""
    conf = load(text)
    assert conf.listeners[1].policy.undecided.action is Action.REJECT


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("010", 10),
        ("1_000", "1_000"),
        ("1e3", "1e3"),
        (".inf", ".inf"),
        ("2026-01-01", "2026-01-01"),
        ("!!binary aGk=", "aGk="),
        ("!!python/name:os.system x", "x"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'5'", "5"),
        ("5", 5),
        ("-5", -5),
        ("5.5", 5.5),
    ],
)
def test_only_plain_scalars_are_anything_but_text(written: str, read: object) -> None:
    """`no` is not False, `1:30` is not 90, and nothing is ever constructed."""
    assert yaml_file.Tree(Path("x")).read(f"key: {written}\n") == {"key": read}


def test_a_switch_accepts_true_and_false_only() -> None:
    """`proxy_protocol: no` is reported as a mistake, not guessed at."""
    assert "proxy_protocol" in mistakes(SMALL.replace("10025\n", "10025\n    proxy_protocol: maybe\n"))[0]


SECRET = "s3cr3t-s3cr3t-s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        SMALL.replace("token_file: token", f"token_file: {{token: {SECRET}}}"),
        SMALL.replace("http://127.0.0.1:9081", f"https://user:{SECRET}@host:1"),
        SMALL.replace("http://127.0.0.1:9081", SECRET),
        SMALL.replace("127.0.0.1:10025", SECRET),
        SMALL.replace("127.0.0.1:10026", SECRET),
        SMALL + f"workers: {SECRET}\n",
        SMALL + f"hostname: *{SECRET}\n",
        SMALL + f"log: {{level: {SECRET}}}\n",
        SMALL + f"drain_timeout: {SECRET}\n",
        SMALL + f"scanner: {SECRET}\n",
        SMALL + f"tenants: [{{uid: {SECRET}, recipient_domains: [{SECRET}@]}}]\n",
        SMALL + f"lists: {{url: 'http://{SECRET}@h:1', api_key_file: k}}\n",
        SMALL + f"policy: {{bounce: {SECRET}}}\n",
        SMALL + f"headers: {{prefix: {SECRET}}}\n",
        SMALL + f"state_database: {SECRET}\n",
        SMALL + f"state_database: postgresql://user:{SECRET}@host/name\n",
        SMALL + f"state_database: postgresql://host/name?password={SECRET}\n",
        SMALL.replace("    address: 127.0.0.1:10025", f"    address: 127.0.0.1:1\n    trusted_clients: [{SECRET}]"),
    ],
)
def test_a_value_is_never_printed(text: str) -> None:
    """It may be a token in the wrong place."""
    assert SECRET not in "\n".join(mistakes(text))


def test_a_profile_sets_the_deadline_and_the_policy() -> None:
    """The defaults, overridden by the profile, then by the general, listener and tenant policies."""
    conf = load(
        changed(
            listeners=[
                {"name": "a", "address": "127.0.0.1:1", "profile": "postfix-content-filter"},
                {"name": "b", "address": "127.0.0.1:2", "policy": {"drop": "quarantine"}},
                {"name": "c", "address": "127.0.0.1:3", "protocol": "milter"},
            ],
            policy={"undecided": "reject"},
            tenants=[
                {
                    "uid": TENANT,
                    "recipient_domains": ["x"],
                    "policy": {"undecided": "relay"},
                }
            ],
        )
    )
    a, b, c = conf.listeners
    assert (a.deadline, b.deadline, c.deadline) == (540.0, 90.0, 240.0)
    assert conf.policy_for(a).bounce.action is Action.QUARANTINE
    assert conf.policy_for(b).bounce.action is Action.REJECT
    assert conf.policy_for(b).drop.action is Action.QUARANTINE
    assert conf.policy_for(c).quarantine.action is Action.HOLD
    assert conf.policy_for(a).undecided.action is Action.REJECT
    assert conf.policy_for(a, conf.tenants[0]).undecided.action is Action.RELAY
    assert conf.policy_for(a, conf.tenants[0]).bounce.action is Action.QUARANTINE


@pytest.mark.parametrize("text", ROUND_TRIPS.values(), ids=ROUND_TRIPS)
@pytest.mark.parametrize("form", ["yaml", "json"])
def test_the_output_of_config_show_loads_again_and_is_equal(text: str, form: str) -> None:
    """An operator may start from it, and its meaning does not change."""
    first = load(text)
    shown = effective(first)
    second = load(yaml_file.dump(shown) if form == "yaml" else json.dumps(shown))
    assert effective(second) == shown
    for one, two in zip(first.listeners, second.listeners, strict=True):
        assert first.policy_for(one) == second.policy_for(two)
        for mine, other in zip(first.tenants, second.tenants, strict=True):
            assert first.policy_for(one, mine) == second.policy_for(two, other)
    drop = {"policy", "listeners", "tenants"}
    assert first.model_dump(exclude=drop) == second.model_dump(exclude=drop)
    ours = {"policy"}
    assert [listener.model_dump(exclude=ours) for listener in first.listeners] == [
        listener.model_dump(exclude=ours) for listener in second.listeners
    ]


def test_the_embedded_default_works_in_any_directory(tmp_path: Path) -> None:
    """Spaces, quotes and hash signs in a home directory do not break the YAML."""
    odd = tmp_path / 'a b #c: "d" {e}'
    conf = model.embedded(odd)
    assert conf.scanner.token_file == f"{odd}/api-token" and conf.state_directory == str(odd)
    assert str(conf.relay.next_hop) == f"maildir:{odd}/Maildir"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["../etc/bridge.yml", "{place}/etc/bridge.yml"])
def test_commands_in_another_directory_used_another_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """They found no quarantined mail there, and said so with exit code 0."""
    for each in ("etc", "elsewhere"):
        (tmp_path / each).mkdir()
    (tmp_path / "etc/bridge.yml").write_text(f"{SMALL}state_directory: state\nspool: {{directory: spool}}\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    conf = model.load(Path(name.format(place=tmp_path)))
    assert conf.state_directory is not None and conf.spool.directory is not None
    assert Path(conf.state_directory).resolve() == tmp_path / "etc/state"
    assert Path(conf.spool.directory).resolve() == tmp_path / "etc/spool"


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """It is missing, a directory, or not text."""
    (tmp_path / "latin.yml").write_bytes(b"hostname: \xff\n")
    for name, why in (("none.yml", "No such file"), ("", "Is a directory"), ("latin.yml", "not UTF-8")):
        with pytest.raises(ConfigError, match=why):
            model.load(tmp_path / name)


def test_the_limit_of_the_api_is_the_default() -> None:
    """50 MiB, the limit of the service."""
    assert load(SMALL).limits.max_message_size == MAX_MESSAGE_BYTES
