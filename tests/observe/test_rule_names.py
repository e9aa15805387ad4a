"""`rule=`: every value is documented, and every outcome of a mail has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.filter import rule_names
from bridge.filter.policy import Case
from bridge.runtime import yaml_file
from bridge.testing import answer, free_port, result, running_bridge
from tests.daemon.process_kit import running
from tests.filter.smtp_kit import counted, mail_lines, send

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "log.md"
TENANT = "0b8e4567-e89b-12d3-a456-426614174000"


def test_the_page_has_every_value() -> None:
    """Word for word as in the code, so that neither can be changed alone."""
    section = PAGE.read_text().partition("## Rules\n")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"(?m)^\| `([^`]+)` \| (.*) \|$", section))
    assert rows == rule_names.DOCUMENTED
    fixed = {value for name, value in vars(rule_names).items() if name.isupper() and isinstance(value, str)}
    assert fixed <= set(rows) | {rule_names.EXHAUSTED, rule_names.TOO_LARGE}  # which are limits.NAME


@pytest.mark.parametrize(
    ("sections", "listener", "case", "expected"),
    [
        ({}, {}, "quarantine", "policy.quarantine"),
        ({}, {}, "unreachable", "policy.unavailable"),
        ({}, {}, "slow", "policy.failed"),
        ({"policy": {"deadline": "relay"}}, {}, "slow", "policy.deadline"),
        ({"policy": {"bounce": "discard"}}, {}, "bounce", "policy.bounce"),
        ({"policy": {"bounce": "discard"}}, {"policy": {"bounce": "reject"}}, "bounce", "listeners.mx.policy.bounce"),
        ({}, {"policy": {"unavailable": "relay"}}, "refused", "listeners.mx.policy.unavailable"),
        ({}, {"profile": "postfix-content-filter"}, "bounce", "profiles.postfix-content-filter.bounce"),
        ({"policy": {"bounce": "reject"}}, {"profile": "postfix-content-filter"}, "bounce", "policy.bounce"),
    ],
)
def test_a_rule_is_named_by_its_place(
    sections: dict[str, Any], listener: dict[str, Any], case: str, expected: str
) -> None:
    """The key that decides, at the most specific place that sets it."""
    conf = config(sections, listener)
    assert wiring.filter_settings(conf, conf.listeners[0]).policy[Case(case)].name == expected


def test_a_tenants_rule_is_named_by_its_uid() -> None:
    tenant = {"uid": TENANT, "recipient_domains": ["b.example"], "policy": {"bounce": "quarantine"}}
    conf = config({"tenants": [tenant]}, {"policy": {"bounce": "discard"}})
    policy = wiring.filter_settings(conf, conf.listeners[0]).tenant_policies[TENANT]
    assert policy[Case.BOUNCE].name == f"tenants.{TENANT}.policy.bounce"
    assert policy[Case.DROP].name == "policy.drop"


def config(sections: dict[str, Any], listener: dict[str, Any]) -> Config:
    data = {
        "scanner": {"urls": ["http://127.0.0.1:1"], "token_file": "token"},
        "listeners": [{"name": "mx", "address": "127.0.0.1:2500", **listener}],
        "relay": {"next_hop": "127.0.0.1:2"},
        **sections,
    }
    return yaml_file.load(Path("bridge.yml"), Config, yaml_file.dump(data))


@pytest.mark.parametrize(
    ("decision", "rule", "action"),
    [
        ("deliver", "policy.deliver", "relay"),
        ("bounce", "policy.bounce", "reject"),
        ("drop", "policy.drop", "discard"),
        ("quarantine", "policy.quarantine", "quarantine"),
        ("undecided", "policy.undecided", "tempfail"),
    ],
)
def test_the_line_of_a_mail_has_rule_and_tags(tmp_path: Path, decision: str, rule: str, action: str) -> None:
    """As the service sent them, in one value and printable; a tag with a space or a quote is quoted."""
    with running_bridge(tmp_path) as bridge, mail_lines() as lines:
        bridge.scanner.reply = answer(200, result(decision, tags=["spam:high", 'odd "tag"\n']))
        send(bridge)
        assert (lines[0]["rule"], lines[0]["action"]) == (rule, action)
        assert lines[0]["tags"] == 'spam:high,odd "tag"?'
        records = list((tmp_path / "state" / "quarantine").glob("*.json"))
        assert [f'"rule": "{rule}"' in path.read_text() for path in records] == [True] * (action == "quarantine")


@pytest.mark.parametrize(
    ("policy", "reply", "unscanned", "action"),
    [
        ({"unavailable": "relay"}, b"", "unreachable", "relay"),
        ({}, b"", None, "tempfail"),
        ({"refused": "relay"}, answer(401), "refused", "relay"),
    ],
)
def test_mail_that_is_delivered_unscanned_is_marked(
    tmp_path: Path, policy: dict[str, str], reply: bytes, unscanned: str | None, action: str
) -> None:
    """In its own line: with `level: warning`, it may be the only one."""
    url = {} if reply else {"scanner": {"urls": [f"http://127.0.0.1:{free_port()}"], "token_file": "token"}}
    with running_bridge(tmp_path, {"policy": policy, **url}) as bridge, mail_lines() as lines:
        bridge.scanner.reply = reply
        send(bridge)
        assert (lines[0].get("unscanned"), lines[0]["action"]) == (unscanned, action)


@pytest.mark.parametrize("code", [b"451 4.2.2 full", b"550 5.1.1 no such user"])
@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_mail_that_some_recipients_have_is_not_called_relayed(tmp_path: Path, protocol: str, code: bytes) -> None:
    """The action agrees with the reply; `accepted` says how many have it (LMTP)."""
    with running_bridge(tmp_path, protocol=protocol) as bridge, mail_lines() as lines, bridge.client() as client:
        bridge.next_hop.replies[b"RCPT <c@example.org>"] = code
        client.open(b"LHLO x" if protocol == "lmtp" else b"EHLO x")
        client.say(b"MAIL FROM:<a@b.example>", b"RCPT TO:<b@example.org>", b"RCPT TO:<c@example.org>", b"DATA")
        client.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
        replies = [client.reply() for _ in range(2 if protocol == "lmtp" else 1)]
        assert replies[-1].startswith(code[:3])
        assert lines[0]["action"] == ("tempfail" if code.startswith(b"4") else "reject")
        assert lines[0]["rule"] == "next_hop" and lines[0]["reply"].startswith(code[:3].decode())
        assert lines[0].get("accepted") == ("1" if protocol == "lmtp" else None)


def test_a_mail_that_is_announced_as_too_large_has_a_line(tmp_path: Path) -> None:
    """It was refused at MAIL and only counted; the client named no recipient."""
    with running_bridge(tmp_path) as bridge, mail_lines() as lines, bridge.client() as client:
        client.open()
        (reply,) = client.say(b"MAIL FROM:<a@b.example> SIZE=99999999999")
        assert reply.startswith(b"552 5.3.4 ") and b"(id=" in reply
        expected = ("mail", "limits.max_message_size", "reject", 99999999999.0, "<a@b.example>")
        assert tuple(lines[0][key] for key in ("at", "rule", "action", "size", "from")) == expected
        assert counted(bridge, "mail_bytes_total", listener="test") == 0  # announced, not received


def test_a_recipient_without_a_certain_domain_is_named(tmp_path: Path) -> None:
    tenants = [{"uid": TENANT, "recipient_domains": ["b.example"]}]
    with running_bridge(tmp_path, {"tenants": tenants}) as bridge, mail_lines() as lines, bridge.client() as client:
        client.open()
        reply = client.say(b"MAIL FROM:<a@b.example>", b"RCPT TO:<c%b.example@x.example>")[1]
        assert reply.startswith(b"553 5.1.3 ")
        found = tuple(lines[0][key] for key in ("at", "rule", "action", "to"))
        assert found == ("rcpt", "recipient_domain", "reject", "<c%b.example@x.example>")


@pytest.mark.parametrize("workers", [1, 2])
def test_each_line_may_begin_with_the_time(tmp_path: Path, workers: int) -> None:
    """With `log: {timestamp: true}`, also the lines of the supervisor."""
    with running(tmp_path, log={"timestamp": True}, workers=workers) as (bridge, _, _):
        assert bridge.send().startswith("250 ")
        bridge.signal()
        assert bridge.wait() == 0
        lines = bridge.log.splitlines()
        assert len(lines) > 2
        assert all(re.match(r"time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00 (id|level)=", line) for line in lines)
