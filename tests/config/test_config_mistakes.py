"""How the mistakes of a configuration file are reported: all together, each with its line."""

from __future__ import annotations

import re

import pytest

from tests.config.config_kit import SMALL, TENANT, mistakes
from tests.processor_time import fair_cpu_s

OWN_LINE = f"uid: {TENANT}\n    recipient_domains: [x]"
AT_9 = "bridge.yml:9: "


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
        ("- a\n- b\n", "bridge.yml:1: the file: expected keys and values"),
        ("just text", "bridge.yml:1: the file: expected keys and values"),
        ("a: [1, 2", "bridge.yml:1: not YAML: the file ends in the middle of a value; ',' or ']' is missing"),
        ("a: [1,", "bridge.yml:1: not YAML: the file ends in the middle of a value; close its bracket"),
        ("a: 'b", "bridge.yml:1: not YAML: the file ends in the middle of a value; close its quote"),
        ("a: 1\nb c\nd: 2\n", "bridge.yml:2: not YAML: a word without a colon; write `key: value`"),
        ("a:\n\t- b\n", "bridge.yml:2: not YAML: a tab; indent with spaces"),
        ("a: 1\n---\nb: 2\n", "bridge.yml:2: not YAML: but found another document"),
        ("a: \x00\n", "bridge.yml:1: not YAML: a character that is not allowed"),
        ("[" * 600, "bridge.yml:1: nested too deeply"),
        (SMALL + "policy:\n", "bridge.yml:9: policy: expected keys and values"),
        (SMALL + "policy: []\n", "bridge.yml:9: policy: expected keys and values"),
        (SMALL + "tenants: {}\n", "bridge.yml:9: tenants: expected a list"),
        (SMALL + f"tenants:\n  - {OWN_LINE}\n    relay: {{nexthop: x}}\n", "bridge.yml:12: tenants.0.relay.nexthop"),
        (SMALL + f"tenants:\n  - {OWN_LINE}\n    relay:\n      next_hop: 7\n", "bridge.yml:13: tenants.0.relay.next"),
        (SMALL + "trusted_clients: []\n", AT_9 + "trusted_clients: unknown key; did you mean listeners[].trusted"),
        (SMALL + "log.level: info\n", AT_9 + '"log.level": unknown key; write `log:`, and `level:` indented below it'),
        (
            SMALL + f"tenants:\n  - {OWN_LINE}\n    domains: [b]\n",
            "bridge.yml:12: tenants.0.domains: unknown key; did you mean recipient_domains?",
        ),
        (
            SMALL + f"tenants:\n  - {OWN_LINE}\n  - {OWN_LINE.replace('x', 'y')}\n",
            "bridge.yml:12: tenants.1.uid: two tenants have the same uid, tenants.0 and this one: list all",
        ),
        (SMALL + "hostname: 5\n", "bridge.yml:9: hostname: expected text"),
        (SMALL + "hostname: {a: 1, a: 2}\n", "bridge.yml:9: hostname.a: this key appears twice, first on line 9"),
        (SMALL + "? [a]\n: 1\n", "bridge.yml:9: the file: a key must be a word"),
        (SMALL + "\"odd key\\e\": 1\n", 'bridge.yml:9: "odd key\\u001b": unknown key'),
        (SMALL + "<<: {log: {level: debug}}\n", 'bridge.yml:9: "<<": unknown key'),
        (
            SMALL + "log: &log {level: debug}\nadmin: *nolog\n",
            "bridge.yml:10: not YAML: no anchor (&) has this name; if this is text",
        ),
        (SMALL + "log: &a {level: *a}\n", "bridge.yml:9: log.level: an alias must not contain itself"),
        (SMALL + "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
        ), "bridge.yml:1: too many values; each use of an alias counts"),
        (SMALL + "workers: " + "9" * 5000 + "\n", "bridge.yml:9: workers: expected a number from 1 to 64"),
        (SMALL + "workers: 65\n", "bridge.yml:9: workers: expected a number from 1 to 64, or `auto`"),
    ],
)  # fmt: skip
def test_each_kind_of_mistake_is_reported_with_its_line(text: str, expected: str) -> None:
    """Including files that are not valid YAML, and hostile ones."""
    assert any(line.startswith(expected) for line in mistakes(text)), mistakes(text)


def test_many_unknown_keys_took_a_tenth_of_a_second_each() -> None:
    """A section in the wrong place, or the file of another program, is reported at once."""
    text = SMALL + "".join(f"unknown{number}: x\n" for number in range(200))
    found: list[str] = []
    assert fair_cpu_s(lambda: found.extend(mistakes(text))) < 5
    assert len(found) == 200
