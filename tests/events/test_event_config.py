"""The configuration of sinks: mistakes are named, secrets are not quoted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.cli.check.local import check_event_sinks
from bridge.config.effective import effective
from bridge.config.model import Config
from bridge.daemon.event_wiring import event_plans
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from tests.events.events_kit import SECRET

HOOK = {"name": "s", "type": "webhook", "url": "https://siem.example/hook", "secret_file": "secret"}
SYSLOG = {"name": "s", "type": "syslog", "address": "logs.example:6514"}
NATS = {"name": "s", "type": "nats", "servers": ["nats://127.0.0.1:4222"]}


def load(directory: Path, *sinks: dict[str, Any]) -> Config:
    data: dict[str, Any] = {
        "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:10025"}],
        "relay": {"next_hop": "smtp://127.0.0.1:10026"},
        "events": list(sinks),
        "state_directory": str(directory),
    }
    return yaml_file.load(directory / "bridge.yml", Config, yaml_file.dump(data))


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        ({"name": "s", "type": "file"}, "needs path"),
        ({**HOOK, "secret_file": None}, "needs secret_file"),
        ({"name": "s", "type": "webhook"}, "needs secret_file and url"),
        ({"name": "s", "type": "syslog"}, "needs address"),
        ({"name": "s", "type": "nats"}, "needs servers"),
        ({**HOOK, "path": "x"}, "a sink of type webhook does not take path"),
        ({**SYSLOG, "url": "https://hunter2.example/"}, "a sink of type syslog does not take url"),
        ({**HOOK, "url": "http://siem.example/hook"}, "unencrypted"),
        ({**HOOK, "url": "ftp://siem.example/hook"}, "a URL must be"),
        ({**HOOK, "url": "https://u:hunter2@siem.example/"}, "must not contain a user name or password"),
        ({**HOOK, "types": []}, "1 or more"),
        ({**HOOK, "types": ["mail.eaten"]}, "mail.decided"),
        ({**HOOK, "name": "Bad Name"}, "name"),
        ({**HOOK, "max_attempts": 1}, "2"),
        ({**HOOK, "secret": "hunter2"}, "unknown key"),
        ({**SYSLOG, "address": "unix:/run/log"}, "host:port"),
        ({**SYSLOG, "ca_file": "ca.pem"}, "without tls: true"),
        ({**SYSLOG, "facility": "kern"}, "facility"),
        ({**NATS, "servers": ["nats://u:hunter2@h:4222"]}, "without a user name or password"),
        ({**NATS, "subject": "a b"}, "subject"),
        ({**NATS, "credentials_file": "c", "token_file": "t"}, "not both"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, sink: dict[str, Any], problem: str) -> None:
    """With the file and the line, and without what may be a secret."""
    with pytest.raises(ConfigError) as error:
        load(tmp_path, {key: value for key, value in sink.items() if value is not None})
    assert problem in str(error.value) and "hunter2" not in str(error.value)
    assert "bridge.yml:" in str(error.value)


def test_two_sinks_need_two_names(tmp_path: Path) -> None:
    """They share an outbox."""
    with pytest.raises(ConfigError, match="two sinks are named s"):
        load(tmp_path, HOOK, SYSLOG)


def test_two_sinks_wrote_to_one_file(tmp_path: Path) -> None:
    """It had events twice, and a sink that failed could cut off the lines of the other."""
    first = {"name": "a", "type": "file", "path": "e.jsonl"}
    second = {"name": "b", "type": "file", "path": "./x/../e.jsonl"}
    with pytest.raises(ConfigError, match=r"bridge\.yml:\d+: events\.1\.path: the sink a writes to the same file"):
        load(tmp_path, first, second)
    load(tmp_path, first, {**second, "path": "other.jsonl"}, {**SYSLOG, "name": "c"})


@pytest.mark.parametrize(
    ("sink", "problem"),
    [
        (HOOK, "events: s: secret_file: .*secret cannot be read: No such file"),
        ({**HOOK, "secret_file": "bad"}, "whsec_ followed by base64"),
        ({**HOOK, "secret_file": "good", "ca_file": "missing"}, "events: s: ca_file"),
        ({**NATS, "token_file": "missing"}, "events: s: token_file"),
        ({**NATS, "credentials_file": "missing"}, "events: s: credentials_file"),
        ({"name": "s", "type": "file", "path": "no/such/file"}, "there is no directory"),
    ],
)
def test_a_file_that_cannot_be_used_is_found_at_the_start(tmp_path: Path, sink: dict[str, Any], problem: str) -> None:
    """Not when the first event is delivered."""
    (tmp_path / "bad").write_text("hunter2-hunter2-hunter2-hunter2!\n")
    (tmp_path / "good").write_text(SECRET)
    with pytest.raises(ConfigError, match=problem) as error:
        event_plans(load(tmp_path, sink), tmp_path)
    assert "hunter2" not in str(error.value)


def test_check_names_the_sinks(tmp_path: Path) -> None:
    """`scanbridge check` finds what would keep the daemon from starting, and a secret that everybody can read."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "secret").chmod(0o644)
    conf = load(tmp_path, HOOK, {**HOOK, "name": "t", "secret_file": "missing"}, {**SYSLOG, "name": "u"})
    first, second, third = check_event_sinks(conf)
    assert (first.what, first.state, second.state, str(third)) == (
        "event sink s", "warning", "problem",
        "event sink u: ok (syslog, not contacted: `scanbridge events test` sends it an event)",
    )  # fmt: skip


def test_every_kind_can_be_configured(tmp_path: Path) -> None:
    """With nothing but what it needs; and without sinks there is no plan."""
    (tmp_path / "secret").write_text(SECRET)
    sinks = [HOOK, {**SYSLOG, "name": "t", "tls": True}, {**NATS, "name": "u"}]
    sinks.append({"name": "v", "type": "file", "path": "events.jsonl"})
    plans = event_plans(load(tmp_path, *sinks), tmp_path)
    assert plans is not None and [plan.name for plan in plans.delivery.plans] == ["s", "t", "u", "v"]
    assert "hunter2" not in repr(plans) and SECRET not in repr(plans)
    assert all(plan.limit.events == 1_000_000 for plan in plans.recorder.plans)
    assert event_plans(load(tmp_path), tmp_path) is None


def test_the_parameters_of_a_url_are_hidden_and_not_lost_silently(tmp_path: Path) -> None:
    """`config show` printed a token in a URL. What it shows instead is refused when it is loaded."""
    conf = load(tmp_path, {**HOOK, "url": "https://siem.example/hook?token=hunter2"})
    (sink,) = effective(conf)["events"]
    assert sink["url"] == "https://siem.example/hook?…"
    with pytest.raises(ConfigError, match="a URL must be"):
        load(tmp_path, {**HOOK, "url": sink["url"]})
    assert effective(load(tmp_path, HOOK))["events"][0]["url"] == HOOK["url"]
    assert effective(conf, hides_paths=True)["events"][0]["url"] == "https://siem.example/…?…"
