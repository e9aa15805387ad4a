"""The configuration file: what it may contain, and how its mistakes are reported."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from bridge.api.scanning import MAX_MESSAGE_BYTES
from bridge.cli.config import json_schema
from bridge.config import model
from bridge.config.effective import effective
from bridge.config.model import Config
from bridge.errors import ConfigError
from bridge.mail.action import Action
from bridge.runtime import yaml_file

# The example of the design, key by key.
EXAMPLE = """\
scanner:
  urls: [https://scan.example.org:9081]     # several: least busy first, with failover
  token_file: api-token                     # relative to $CREDENTIALS_DIRECTORY, else to this file
  tenant_uid: null
  ca_file: null                             # client_cert_file, client_key_file for mutual TLS
  status_interval: 5s
listeners:
  - name: mx                                # the name in logs and metrics
    protocol: smtp                          # smtp | lmtp | milter
    address: 127.0.0.1:10025                # host:port, [::1]:port, unix:/path, systemd:NAME
    profile: postfix-proxy                  # defaults of deadline and policy for that mail server
    deadline: 90s                           # end of data to our reply; default: the profile's
    trusted_clients: [127.0.0.0/8, "::1"]   # may connect; their XFORWARD and XCLIENT are trusted
    tls: null                               # cert_file, key_file, required
    proxy_protocol: false
    policy: {}                              # overrides of the policy below
  - {name: milter, protocol: milter, address: 127.0.0.1:10027, profile: postfix-milter}
admission:
  max_in_processing: 20                     # the service's maxGuardRequestsInProcessing
  throttle_threshold: 20                    # guardRequestThrottleThreshold: linear delay from here ...
  throttle_max_delay: 5s                    # ... up to this at the limit
  max_bytes_in_processing: 1GiB
policy:
  deliver: relay
  quarantine: quarantine
  bounce: reject
  drop: discard
  undecided: tempfail
  unavailable: tempfail                     # no answer from the service
  too_large: reject
tenants:
  - {uid: 0b8e4567-e89b-12d3-a456-426614174000, recipient_domains: [example.org], policy: {}}
relay:
  next_hop: 127.0.0.1:10026                 # smtp://host:port, lmtp://..., lmtp+unix:/path, maildir:/path
quarantine: {directory: quarantine, retention: 30d}
headers: {prefix: X-Scan-, received: true}
lists: {url: https://scan.example.org:9081, api_key_file: api-key}
admin: {address: 127.0.0.1:9082}
workers: 1                                  # processes; the limits above apply to all together
log: {format: keyvalue, level: info}        # or json
"""
TENANT = "0b8e4567-e89b-12d3-a456-426614174000"
OWN = {"uid": TENANT, "recipient_domains": ["x"]}
OWN_LINE = f"uid: {TENANT}\n    recipient_domains: [x]"
SMALL = """\
scanner:
  urls: [http://127.0.0.1:9081]
  token_file: token
listeners:
  - name: mx
    address: 127.0.0.1:10025
relay:
  next_hop: 127.0.0.1:10026
"""


def load(text: str) -> Config:
    return yaml_file.load(Path("bridge.yml"), Config, text)


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        load(text)
    return str(raised.value).split("\n")


def changed(**sections: Any) -> str:
    """The small configuration with these sections merged over it."""
    data: dict[str, Any] = {
        "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:10025"}],
        "relay": {"next_hop": "127.0.0.1:10026"},
    }
    for name, value in sections.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return yaml_file.dump(data)


def listener(**keys: Any) -> str:
    return changed(listeners=[{"name": "mx", "address": "127.0.0.1:10025", **keys}])


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


def test_all_mistakes_are_reported_together_with_file_and_line() -> None:
    """The operator edits the file once, not ten times."""
    text = """\
scanner:
  urls: [ftp://scan.example.org]
  tokenfile: x
listeners:
  - name: MX
    address: nowhere
    prot: smtp
    deadline: 90
  - name: two
    address: 0.0.0.0:25
admission:
  max_in_processing: many
policy:
  bounce: refuse
relay:
  next_hop: 127.0.0.1:10026
  next_hop: 127.0.0.1:10027
nonsense: 1
"""
    places = [re.match(r"bridge\.yml:(\d+): ([\w.]+): ", line) for line in mistakes(text)]
    assert [(int(place[1]), place[2]) for place in places if place] == [
        (1, "scanner.token_file"),
        (2, "scanner.urls"),
        (3, "scanner.tokenfile"),
        (5, "listeners.0.name"),
        (6, "listeners.0.address"),
        (7, "listeners.0.prot"),
        (8, "listeners.0.deadline"),
        (9, "listeners.1.trusted_clients"),
        (12, "admission.max_in_processing"),
        (14, "policy.bounce"),
        (17, "relay.next_hop"),
        (18, "nonsense"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "bridge.yml:1: scanner: this key is required"),
        ("- a\n- b\n", "bridge.yml:1: the file: keys and values are expected here"),
        ("just text", "bridge.yml:1: the file: keys and values are expected here"),
        ("a: [1, 2", "bridge.yml:1: not YAML: the file ends in the middle of a value; ',' or ']' is missing"),
        ("a: [1,", "bridge.yml:1: not YAML: the file ends in the middle of a value; close its bracket"),
        ("a: 'b", "bridge.yml:1: not YAML: the file ends in the middle of a value; close its quote"),
        ("a:\n\t- b\n", "bridge.yml:2: not YAML: a tab; indent with spaces"),
        ("a: 1\n---\nb: 2\n", "bridge.yml:2: not YAML: but found another document"),
        ("a: \x00\n", "bridge.yml:1: not YAML: a character that is not allowed"),
        ("[" * 600, "bridge.yml:1: nested too deeply"),
        (SMALL + "policy:\n", "bridge.yml:9: policy: keys and values are expected here"),
        (SMALL + "policy: []\n", "bridge.yml:9: policy: keys and values are expected here"),
        (SMALL + "tenants: {}\n", "bridge.yml:9: tenants: a list is expected here"),
        (SMALL + f"tenants:\n  - {OWN_LINE}\n    relay: {{nexthop: x}}\n", "bridge.yml:12: tenants.0.relay.nexthop"),
        (SMALL + f"tenants:\n  - {OWN_LINE}\n    relay:\n      next_hop: 7\n", "bridge.yml:13: tenants.0.relay.next"),
        (SMALL + "hostname: 5\n", "bridge.yml:9: hostname: text is expected here"),
        (SMALL + "hostname: {a: 1, a: 2}\n", "bridge.yml:9: hostname.a: this key appears twice, first in line 9"),
        (SMALL + "? [a]\n: 1\n", "bridge.yml:9: the file: a key must be a word"),
        (SMALL + "\"odd key\\e\": 1\n", 'bridge.yml:9: "odd key\\u001b": unknown key'),
        (SMALL + "<<: {log: {level: debug}}\n", 'bridge.yml:9: "<<": unknown key'),
        (
            SMALL + "log: &log {level: debug}\nadmin: *nolog\n",
            "bridge.yml:10: not YAML: no anchor (&) of this name; if it is text",
        ),
        (SMALL + "log: &a {level: *a}\n", "bridge.yml:9: log.level: an alias must not contain itself"),
        (SMALL + "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
        ), "bridge.yml:1: too many values, counting each use of an alias"),
        (SMALL + "workers: " + "9" * 5000 + "\n", "bridge.yml:9: workers: a number from 1 to 64 is expected"),
        (SMALL + "workers: 65\n", "bridge.yml:9: workers: a number from 1 to 64 is expected here, or `auto`"),
    ],
)  # fmt: skip
def test_each_kind_of_mistake_is_reported_with_its_line(text: str, expected: str) -> None:
    """Including files that are not valid YAML, and hostile ones."""
    assert any(line.startswith(expected) for line in mistakes(text)), mistakes(text)


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (changed(scanner={"urls": ["file:///etc/passwd"]}), "https://host:port"),
        (changed(scanner={"urls": ["https://u:p@scan.example.org"]}), "user name or password"),
        (changed(scanner={"urls": ["http://scan.example.org:9081"]}), "allow_plain_http"),
        (changed(scanner={"urls": ["https://h:1/?a=b"]}), "must not have a query"),
        (changed(scanner={"urls": ["https://h:99999"]}), "https://host:port"),
        (changed(scanner={"urls": ["https://h\r\nX: y"]}), "https://host:port"),
        (changed(scanner={"urls": []}), "entries expected here: at least 1"),
        (changed(scanner={"client_cert_file": "c.pem"}), "must be set together"),
        (changed(scanner={"tenant_uid": "17"}), "for a new tenant, `uuidgen` prints one"),
        (changed(scanner={"status_interval": "0s"}), "at least 0.1 is expected here"),
        (changed(scanner={"connect_timeout": "0s"}), "a number above 0"),
        (listener(address="0.0.0.0:25"), "name the mail servers that may use it, or listen on 127.0.0.1"),
        (listener(address="[::]:25"), "can be reached from other machines"),
        (listener(address="mail.example.org:25"), "can be reached from other machines"),
        (listener(trusted_clients=["10.0.0.1/8"]), "write 10.0.0.0/8, or the address alone"),
        (listener(profile="qmail"), "available profiles: postfix-proxy"),
        (listener(profile="postfix-milter"), "is a profile for milter, but this listener speaks smtp"),
        (listener(protocol="milter", proxy_protocol=True), "a milter listener cannot have tls, proxy_protocol"),
        (listener(protocol="milter", tls={"cert_file": "c", "key_file": "k"}), "cannot have tls, proxy_protocol"),
        (listener(protocol="mta-hooks"), "an mta-hooks listener needs a token: set hooks.token_file"),
        (listener(protocol="mta-hooks", hooks={}), "token_file"),
        (listener(hooks={"token_file": "t"}), "only an mta-hooks listener has hooks"),
        (listener(protocol="mta-hooks", hooks={"token_file": "t"}, proxy_protocol=True), "cannot have proxy_protocol"),
        (listener(protocol="mta-hooks", hooks={"token_file": "t"}, profile="haraka"), "is a profile for smtp"),
        (
            listener(
                protocol="mta-hooks",
                hooks={"token_file": "t"},
                address="192.0.2.1:80",
                trusted_clients=["192.0.2.2"],
            ),
            "so the token and the mail need tls",
        ),
        (listener(deadline="500ms"), "at least 1s"),
        (listener(unix_mode="660"), "pattern"),
        (changed(listeners=[{"name": "a", "address": "127.0.0.1:1"}] * 2), "two listeners are named a"),
        (
            changed(listeners=[{"name": name, "address": "127.0.0.1:1"} for name in "ab"]),
            "a and b have the same address, 127.0.0.1:1",
        ),
        (changed(admin={"address": "127.0.0.1:10025"}), "the listener mx has the same address"),
        (changed(listeners=[]), "entries expected here: at least 1"),
        (changed(relay=None), "set relay.next_hop"),
        (changed(relay={"next_hop": "maildir:relative"}), "a next hop must be"),
        (changed(relay={"next_hop": "127.0.0.1:0"}), "a port must be a number from 1 to 65535"),
        (changed(relay={"next_hop": "smtp://systemd:x"}), "a next hop must be"),
        (changed(limits={"max_message_size": "51MiB"}), "at most 50 MiB"),
        (changed(limits={"max_message_size": 1000}), "a size needs a number and a unit"),
        (changed(policy={"too_large": "relay"}), "use reject or tempfail"),
        (changed(policy={"bounce": {"action": "reject", "code": 450}}), "5xx"),
        (changed(policy={"bounce": {"action": "reject", "code": 521}}), "which close the connection"),
        (changed(policy={"undecided": {"action": "tempfail", "code": 421}}), "which close the connection"),
        (changed(policy={"drop": {"action": "discard", "code": 550}}), "reject (5xx) and tempfail (4xx) only"),
        (changed(policy={"bounce": {"action": "reject", "text": "a\nb"}}), "printable ASCII"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["A", "a"]}]), "in two places: tenants.0.rec"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["*.example.com"]}]), "no `*` and no dot in front"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": [".example.com"]}]), "no `*` and no dot in front"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["http://x.example"]}]), "not a URL"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["a@x.example"]}]), "the part after the @ only"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["a..b"]}]), "separated by single dots"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["-x.example"]}]), "letters, digits and hyphens"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["x" * 64]}]), "letters, digits and hyphens"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": ["a b"]}]), "letters, digits and hyphens"),
        (changed(tenants=[{"uid": TENANT, "recipient_domains": [d]} for d in "ab"]), "same uid"),
        (listener(client_header="Received"), "client_header"),
        (listener(client_header="X-Client:"), "client_header"),
        (listener(client_header="x-scan-client"), "mx.client_header starts with our prefix X-Scan-"),
        (listener(client_header="X-C", protocol="milter", profile="postfix-milter"), "client_header or hide_"),
        (listener(hide_extensions=["PIPELINING"]), "hide_extensions"),
        (listener(hide_extensions=["DSN"], protocol="milter", profile="postfix-milter"), "listener cannot have tls"),
        (changed(tenants=[{**OWN, "relay": {}}]), "next_hop"),
        (changed(tenants=[{**OWN, "relay": {"next_hop": "http://x"}}]), "next_hop"),
        (changed(tenants=[{**OWN, "relay": {"next_hops": ["h:1", "h:1"]}}]), "twice"),
        (changed(tenants=[{**OWN, "relay": {"next_hop": "h:1", "tls": "required"}}]), "tls"),
        (
            changed(
                listeners=[{"name": "m", "protocol": "milter", "address": "127.0.0.1:1"}],
                relay=None,
                tenants=[{**OWN, "relay": {"next_hop": "h:1"}}],
            ),
            "a tenant has its own next hop",
        ),
        (changed(lists={"url": "http://scan.example.org", "api_key_file": "k"}), "allow_plain_http"),
        (changed(lists={"url": "file:///x", "api_key_file": "k"}), "https://host:port"),
        (changed(state_database="mysql://h/x"), "postgresql://user@host:port/name"),
        (changed(state_database="postgresql://h"), "postgresql://user@host:port/name"),
        (changed(state_database="sqlite://file"), "sqlite:///file"),
        (changed(state_database="postgresql://u:p@h/x"), "state_database_password_file"),
        (changed(state_database_password_file="p"), "only a PostgreSQL database has a password"),
        (changed(quarantine={"s3": {"bucket": "a/b"}}), "pattern"),
        (changed(quarantine={"s3": {"bucket": "abc", "prefix": "/x"}}), "pattern"),
        (changed(quarantine={"s3": {"bucket": "abc", "endpoint": "http://s3.example.org"}}), "allow_plain_http"),
        (changed(quarantine={"s3": {"bucket": "abc", "access_key_file": "a"}}), "must be set together"),
        (changed(drain_timeout="soon"), "a time needs a number and a unit"),
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_refused_with_the_next_step(text: str, words: str) -> None:
    """When it is loaded, not at the first mail."""
    assert any(words in line for line in mistakes(text)), mistakes(text)


@pytest.mark.parametrize(
    "text",
    [
        changed(scanner={"urls": ["http://scan.example.org:9081"], "allow_plain_http": True}),
        changed(scanner={"urls": ["http://localhost:1", "http://[::1]:1", "https://h/prefix/"]}),
        listener(address="0.0.0.0:25", trusted_clients=["192.0.2.1"]),
        listener(address="unix:/run/scanbridge/smtp.sock"),
        listener(address="systemd:smtp"),
        listener(protocol="lmtp", profile="exim-queue"),
        changed(relay={"next_hop": "lmtp+unix:/run/dovecot/lmtp"}),
        changed(relay={"next_hop": "lmtp://[::1]:24"}),
        changed(tenants=[{**OWN, "relay": {"next_hop": "lmtp+unix:/run/lmtp"}}]),
        changed(tenants=[{**OWN, "relay": {"next_hops": ["a.example:25", "b.example:25"]}}]),
        changed(state_database="postgresql://u@h:5432/x?sslmode=require", state_database_password_file="p"),
        changed(state_database="sqlite:////var/lib/x.sqlite"),
        changed(quarantine={"s3": {"bucket": "abc"}}),
        changed(quarantine={"s3": {"bucket": "abc", "endpoint": "https://s3.example.org", "prefix": "a/b"}}),
        changed(listeners=[{"name": "m", "protocol": "milter", "address": "127.0.0.1:1"}], relay=None),
    ],
)
def test_a_documented_form_is_accepted(text: str) -> None:
    """All forms that the documentation names."""
    assert len(load(text).listeners) == 1


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


COPIED = {"action": "relay", "keep_copy": True}
ROUND_TRIPS = {
    "small": SMALL,
    "example": EXAMPLE,
    "embedded": model.EMBEDDED.format(state="/tmp/a b"),
    "rich": changed(
        listeners=[
            {"name": "a", "address": "127.0.0.1:1", "profile": "exim-queue", "deadline": "1.5h"},
            {"name": "b", "address": "unix:/x y", "protocol": "lmtp", "policy": {"drop": COPIED}},
            {"name": "c", "address": "systemd:m", "protocol": "milter", "trusted_clients": ["::1"]},
        ],
        policy={"bounce": {"action": "reject", "code": 554, "text": "no: not # here"}},
        tenants=[{"uid": TENANT, "recipient_domains": ["x"], "policy": {"drop": "relay"}}],
        quarantine={"retention": "1.1d"},
        scanner={"status_interval": "0.1015s", "urls": ["https://h:1/", "https://i"]},
        spool={"memory_per_mail": "1001B"},
    ),
}  # fmt: skip


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


def test_the_schema_is_draft_7_and_agrees_with_the_loader() -> None:
    """Editors accept what the daemon accepts, and underline what it refuses."""
    schema = json_schema()
    jsonschema_rs.meta.validate(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in json.dumps(schema)
    validator = jsonschema_rs.Draft7Validator(schema)
    for text in ROUND_TRIPS.values():
        validator.validate(yaml_file.Tree(Path("x")).read(text))
        validator.validate(effective(load(text)))
    for wrong in (
        changed(nonsense={}),
        changed(drain_timeout=5),
        changed(policy={"bounce": "refuse"}),
        listener(protocol="ftp"),
        changed(scanner={"urls": []}),
    ):
        assert not validator.is_valid(yaml_file.Tree(Path("x")).read(wrong))


def test_the_schema_shows_defaults_as_one_would_write_them() -> None:
    """`5s`, not 5.0; and none if it depends on another key."""
    schema = json_schema()
    assert schema["definitions"]["Scanner"]["properties"]["status_interval"]["default"] == "5s"
    assert schema["properties"]["drain_timeout"]["default"] == "1m"
    assert schema["definitions"]["Policy"]["properties"]["bounce"]["default"] == "reject"
    assert "default" not in schema["definitions"]["Listener"]["properties"]["deadline"]
    validator = jsonschema_rs.Draft7Validator(schema)
    for name, section in schema["definitions"].items():
        for key, about in section.get("properties", {}).items():
            if "default" in about:
                part = {**about, "definitions": schema["definitions"]}
                assert jsonschema_rs.Draft7Validator(part).is_valid(about["default"]), f"{name}.{key}"
    assert validator is not None


def test_every_key_has_a_description() -> None:
    """The reference is generated from the models, so a key without a description would be undocumented."""
    for name, section in json_schema()["definitions"].items():
        for key, about in section.get("properties", {}).items():
            assert about.get("description", "").endswith("."), f"{name}.{key}"


def test_the_embedded_default_works_in_any_directory(tmp_path: Path) -> None:
    """Spaces, quotes and hash signs in a home directory do not break the YAML."""
    odd = tmp_path / 'a b #c: "d" {e}'
    conf = model.embedded(odd)
    assert conf.scanner.token_file == f"{odd}/api-token" and conf.state_directory == str(odd)
    assert str(conf.relay.next_hop) == f"maildir:{odd}/Maildir"  # type: ignore[union-attr]


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """It is missing, a directory, or not text."""
    (tmp_path / "latin.yml").write_bytes(b"hostname: \xff\n")
    for name, why in (("none.yml", "No such file"), ("", "Is a directory"), ("latin.yml", "not UTF-8")):
        with pytest.raises(ConfigError, match=why):
            model.load(tmp_path / name)


def test_the_limit_of_the_api_is_the_default() -> None:
    """50 MiB, the limit of the service."""
    assert load(SMALL).limits.max_message_size == MAX_MESSAGE_BYTES


def test_a_domain_in_two_places_is_reported_at_the_second_one(tmp_path: Path) -> None:
    """The line was that of `tenants:`, whichever entry was wrong."""
    text = "\n".join(
        [
            *(
                "scanner: {urls: ['http://127.0.0.1:1'], token_file: t}",
                "listeners: [{name: a, address: '127.0.0.1:1'}]",
            ),
            *("relay: {next_hop: '127.0.0.1:2'}", "tenants:", f"- uid: {TENANT}", "  recipient_domains:"),
            *("  - a.example", "  - b.example", f"- uid: {TENANT[:-1]}9", "  recipient_domains:", "  - c.example"),
            *("  - B.EXAMPLE.", "  - '[192.0.2.1]'", "  - b\u00fccher.example", "  - localhost", "  - a_b.example", ""),
        ]
    )
    with pytest.raises(ConfigError) as caught:
        yaml_file.load(tmp_path / "bridge.yml", Config, text)
    places = "in two places: tenants.0.recipient_domains.1 and here; remove one of them"
    expected = f"tenants.1.recipient_domains.1: b.example and B.EXAMPLE. are the same domain, {places}"
    assert str(caught.value) == f"{tmp_path}/bridge.yml:12: {expected}"


def own(address: str, hop: str, **more: Any) -> str:
    return changed(listeners=[{"name": "mx", "address": address, "trusted_clients": ["127.0.0.1"]}],
                   relay={"next_hop": hop, **more})  # fmt: skip


@pytest.mark.parametrize(
    ("address", "hop"),
    [
        ("127.0.0.1:10025", "smtp://127.0.0.1:10025"),
        ("127.0.0.1:10025", "lmtp://LocalHost.:10025"),
        ("localhost:10025", "[::1]:10025"),
        ("[::1]:10025", "smtp://[0:0::1]:10025"),
        ("0.0.0.0:10025", "smtp://127.0.0.53:10025"),
        ("0.0.0.0:10025", "smtp://localhost:10025"),
        ("[::]:10025", "smtp://localhost:10025"),
        ("[::]:10025", "[::1]:10025"),
        ("127.0.0.1:10025", "[::ffff:127.0.0.1]:10025"),
        ("127.0.0.1:10025", "127.1:10025"),
        ("127.0.0.1:10025", "0.0.0.0:10025"),
        ("192.0.2.1:25", "192.0.2.1:25"),
        ("mx.example.org:25", "smtp://MX.example.org:25"),
        ("unix:/run/mx.sock", "lmtp+unix:/run/mx.sock"),
    ],
)
def test_a_next_hop_that_is_our_own_listener_is_refused(address: str, hop: str) -> None:
    """Every mail would loop until it had too many hops, and be rejected."""
    (mistake,) = mistakes(own(address, hop))
    assert "relay.next_hop: this is our own listener mx (" in mistake and "every mail would loop" in mistake, mistake


def test_a_loop_is_found_in_every_list_of_next_hops() -> None:
    """In `next_hops`, routes and tenants: each at its own place, all at once."""
    route = {"recipient_domains": ["r.example"], "next_hops": ["h:1", "127.0.0.1:10025"]}
    tenant = {**OWN, "relay": {"next_hop": "127.0.0.1:10025"}}
    both = {"next_hop": "127.0.0.1:10025", "next_hops": ["127.0.0.1:10025", "h:1"], "routes": [route]}
    text = changed(relay=both, tenants=[tenant])
    found = sorted(mistake.partition(": this is our own listener mx")[0].split()[-1] for mistake in mistakes(text))
    assert found == ["relay.next_hops.0", "relay.routes.0.next_hops.1", "tenants.0.relay.next_hop"]


@pytest.mark.parametrize(
    ("address", "hop"),
    [
        ("127.0.0.1:10025", "127.0.0.1:10026"),
        ("127.0.0.1:25", "127.0.0.2:25"),
        ("127.0.0.1:25", "[::1]:25"),
        ("0.0.0.0:25", "mail.example.org:25"),
        ("0.0.0.0:25", "[::1]:25"),
        ("[::]:25", "127.0.0.1:25"),
        ("192.0.2.1:25", "127.0.0.1:25"),
        ("systemd:mx", "127.0.0.1:25"),
        ("unix:/run/mx.sock", "maildir:/run/mx.sock"),
    ],
)
def test_a_next_hop_at_another_place_is_accepted(address: str, hop: str) -> None:
    """The same port on another address is another server."""
    assert str(load(own(address, hop)).listeners[0].address) == address
