"""What happens without a decision: one policy key for each reason, per listener and tenant."""

from __future__ import annotations

import asyncio
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import Decision, QueueStatus
from bridge.config.model import Config
from bridge.daemon import wiring
from bridge.filter.policy import Case
from bridge.mail.action import Action
from bridge.runtime.yaml_file import ConfigError, load
from bridge.testing import answer, free_port, result, running_bridge
from tests.daemon.process_kit import ROOT, environment, parts, start, write_config
from tests.filter.smtp_kit import Client, Gate, mail_lines, say, send

TENANT = "123e4567-e89b-12d3-a456-426614174000"

CONFIG = """
scanner: {{urls: ["http://127.0.0.1:1"], token_file: token}}
listeners: [{{name: mx, address: "127.0.0.1:1", policy: {{{listener}}}}}]
relay: {{next_hop: "127.0.0.1:2"}}
policy: {{{general}}}
tenants: [{{uid: {tenant}, recipient_domains: [example.org], policy: {{{of_tenant}}}}}]
"""


def rules(general: str = "", listener: str = "", tenant: str = "") -> tuple[dict[str, str], dict[str, str]]:
    """Case and action of the listener's policy and of the tenant's."""
    text = CONFIG.format(general=general, listener=listener, tenant=TENANT, of_tenant=tenant)
    conf = load(Path("bridge.yml"), Config, text)
    settings = wiring.filter_settings(conf, conf.listeners[0])
    both = (settings.policy, settings.tenant_policies[TENANT])
    first, second = ({case.value: rule.action.value for case, rule in policy.items()} for policy in both)
    return first, second


BAD = b"Subject: bad\r\n\r\nbad\r\n"

REASONS = ("unreachable", "deadline", "refused", "nonsense")


def test_unavailable_alone_applies_to_every_reason() -> None:
    """As in configurations without the newer keys; saturation is still a tempfail."""
    policy, _ = rules()
    assert {policy[reason] for reason in REASONS} == {"tempfail"}
    policy, _ = rules("unavailable: relay")
    assert {policy[reason] for reason in (*REASONS, "unavailable")} == {"relay"}
    assert policy["saturated"] == "tempfail"


def test_a_reason_has_its_own_outcome_per_listener_and_tenant() -> None:
    """General, listener, tenant: the last one that sets a key wins."""
    policy, of_tenant = rules("deadline: relay", "refused: quarantine, saturated: relay", "deadline: reject")
    assert (policy["deadline"], policy["refused"], policy["saturated"]) == ("relay", "quarantine", "relay")
    assert (of_tenant["deadline"], of_tenant["refused"], of_tenant["saturated"]) == ("reject", "quarantine", "relay")
    assert policy["unreachable"] == of_tenant["nonsense"] == "tempfail"


@pytest.mark.parametrize("reason", [*REASONS, "saturated", "failed", "unavailable", "undecided"])
def test_unscanned_mail_cannot_be_discarded(reason: str) -> None:
    """`discard` is allowed only for decisions of the service."""
    with pytest.raises(ConfigError, match="unscanned mail must not be discarded"):
        rules(f"{reason}: discard")


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


ANSWERS: dict[str, Any] = {
    "unreachable": answer(500),
    "deadline": hang,
    "refused": answer(401),
    "nonsense": answer(200, b"<html>"),
    "saturated": answer(429),
}
ACTIONS = {"relay": "250 2.0.0 Ok: queued as NEXT1", "quarantine": "250 2.0.0 Ok: queued as ", "reject": "550 5.7.1 "}


@pytest.mark.parametrize("action", ACTIONS)
def test_each_reason_is_carried_out(tmp_path: Path, action: str) -> None:
    """A header field of relayed or stored mail says why it was not scanned."""
    policy = dict.fromkeys(ANSWERS, action)
    with running_bridge(tmp_path, {"policy": policy}, deadline="2s") as bridge, mail_lines() as lines:
        for reason, reply in ANSWERS.items():
            bridge.scanner.reply = reply
            assert send(bridge).startswith(ACTIONS[action])
            assert lines[-1]["action"] == action
            if action == "relay":
                assert f"X-Scan-Unscanned: {reason}\r\n".encode() in bridge.next_hop.mails[-1].content
        kept = b"".join(path.read_bytes() for path in bridge.quarantined)
        assert [f"X-Scan-Unscanned: {reason}".encode() in kept for reason in ANSWERS] == [action == "quarantine"] * 5


def test_a_listener_that_relays_when_saturated_lets_mail_in(tmp_path: Path) -> None:
    """Otherwise it would be refused at MAIL."""
    config = {"admission": {"max_in_processing": 1, "throttle_threshold": 1}, "policy": {"saturated": "relay"}}
    with running_bridge(tmp_path, config) as bridge:
        gate = Gate(bridge, answer(200, result()))
        with Client(bridge) as first:
            first.begin()
            first.say("DATA")
            first.content()
            gate.arrived()
            assert send(bridge) == "250 2.0.0 Ok: queued as NEXT1"
            assert b"X-Scan-Unscanned: saturated\r\n" in bridge.next_hop.mails[0].content
            gate.open()
            assert first.read().startswith("250 ")
        assert bridge.scanner.max_in_flight == 1


def test_saturation_uses_the_configured_reply(tmp_path: Path) -> None:
    """The policy's code and text are also used at MAIL."""
    policy = {"saturated": {"action": "tempfail", "code": 450, "text": "Busy"}}
    with running_bridge(tmp_path, {"policy": policy, "scanner": {"status_interval": "100ms"}}) as bridge:
        say(bridge, QueueStatus.RED)
        with Client(bridge) as client:
            client.say("EHLO x")
            assert client.say("MAIL FROM:<a@b>") == "450 4.3.2 Busy"


def test_a_yellow_scanner_starts_the_throttle(tmp_path: Path) -> None:
    """Mail is delayed a little, although the count is far below the threshold, and is delivered."""
    for threshold, expected in ((5, 200), (10, 100)):
        admission = {"max_in_processing": 10, "throttle_threshold": threshold, "throttle_max_delay": "1s"}
        config = {"admission": admission, "scanner": {"status_interval": "100ms"}}
        with running_bridge(tmp_path, config) as bridge, mail_lines() as lines:
            assert send(bridge).startswith("250 ")
            say(bridge, QueueStatus.YELLOW)
            assert send(bridge).startswith("250 ")
            before, after = (line["wait_ms"] for line in lines)
            assert before == 0 and expected - 5 <= after < 30_000


def test_an_unreachable_scanner_answers_fast(tmp_path: Path) -> None:
    """After the first refused connection no mail waits; each reads 451."""
    config = {"scanner": {"urls": [f"http://127.0.0.1:{free_port()}"], "connect_timeout": "60s"}}
    with running_bridge(tmp_path, config) as bridge, mail_lines() as lines:
        for _ in range(3):
            assert send(bridge).startswith("451 4.3.0 ")
        assert all(line["scan_ms"] < 30_000 for line in lines)  # and not until the deadline
        assert all(line["error"] == "unavailable" for line in lines)


def test_every_case_has_a_rule() -> None:
    """A new case needs a key in the configuration."""
    policy, _ = rules()
    assert set(policy) == {case.value for case in Case}
    assert set(policy.values()) <= {action.value for action in Action}


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


FAILURES: dict[str, Any] = {
    "500": answer(500),
    "502": answer(502),
    "504": answer(504),
    "400": answer(400),
    "401": answer(401),
    "403": answer(403),
    "nonsense": answer(200, b"<html>"),
    "closed": close,
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_mail_that_breaks_the_scanner_was_delivered_unscanned(tmp_path: Path, name: str) -> None:
    """`unavailable: relay` is for outages: the mail is deferred each time, and other mail is still scanned."""
    policy = {"unavailable": "relay"}
    with running_bridge(tmp_path, {"policy": policy}) as bridge, mail_lines() as lines:
        bridge.scanner.reply_to[b"Subject: bad"] = FAILURES[name]
        for _ in range(5):
            assert send(bridge, BAD).startswith("451 4.3.0 The scanner failed on this mail")
            assert lines[-1]["error"] == "failed"
        assert send(bridge).startswith("250 ")
        assert [b"X-Scan-Unscanned" in mail.content for mail in bridge.next_hop.mails] == [False]


def test_a_mail_that_breaks_the_scanner_has_its_own_policy(tmp_path: Path) -> None:
    """An operator may keep such mail."""
    with running_bridge(tmp_path, {"policy": {"failed": "quarantine", "unavailable": "relay"}}) as bridge:
        bridge.scanner.reply_to[b"Subject: bad"] = answer(500)
        assert send(bridge, BAD).startswith("250 ")
        assert b"X-Scan-Unscanned: failed" in bridge.quarantined[0].read_bytes()
        assert not bridge.next_hop.mails


def test_unavailable_says_nothing_about_mail_that_is_itself_the_reason() -> None:
    """`failed` is a key of its own; a mail that is slow by itself follows `deadline` if that is set."""
    policy, _ = rules("unavailable: relay")
    assert (policy["failed"], policy["slow"], policy["deadline"]) == ("tempfail", "tempfail", "relay")
    policy, of_tenant = rules("deadline: relay", "", "failed: reject")
    assert (policy["slow"], of_tenant["slow"], of_tenant["failed"]) == ("relay", "relay", "reject")
    policy, _ = rules("failed: quarantine")
    assert policy["slow"] == "quarantine"


@pytest.mark.parametrize(("policy", "reply"), [({}, "451 4.4.7 "), ({"deadline": "relay"}, "250 ")])
def test_a_mail_that_is_slow_by_itself_was_delivered_unscanned(
    tmp_path: Path, policy: dict[str, str], reply: str
) -> None:
    """Other mail is answered meanwhile, so this is no outage; unless `deadline` says otherwise, it is deferred."""
    policy = {"unavailable": "relay", **policy}
    with running_bridge(tmp_path, {"policy": policy}, deadline="2s") as bridge:
        bridge.scanner.reply_to[b"Subject: bad"] = hang
        with Client(bridge) as slow:
            slow.begin()
            slow.say("DATA")
            slow.content(BAD)
            assert bridge.scanner.arrived.acquire(timeout=30)
            assert send(bridge).startswith("250 ")
            assert slow.read().startswith(reply)
            assert len(bridge.next_hop.mails) == 1 + (reply == "250 ")
            if reply == "250 ":
                assert b"X-Scan-Unscanned: deadline\r\n" in bridge.next_hop.mails[-1].content


def test_a_slow_mail_that_nobody_followed_was_delivered_unscanned(tmp_path: Path) -> None:
    """On a quiet host the bridge asks with a mail of its own; the late decision still counts."""
    gate = threading.Event()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(gate.wait, 120)
        writer.write(answer(200, result(Decision.BOUNCE)))

    with running_bridge(tmp_path, {"policy": {"unavailable": "relay"}}, deadline="2s") as bridge:
        bridge.scanner.reply_to[b"Subject: bad"] = late
        assert send(bridge, BAD).startswith("451 4.4.7 ")
        assert len(bridge.scanner.probes) == 1
        assert send(bridge, BAD).startswith("451 4.4.7 ")  # the scan is still running
        gate.set()
        until = time.monotonic() + 120
        while not (reply := send(bridge, BAD)).startswith("550 ") and time.monotonic() < until:
            time.sleep(0.1)
        assert reply.startswith("550 ")
        assert not bridge.next_hop.mails


def test_twenty_slow_mails_that_took_all_slots_were_delivered_unscanned(tmp_path: Path) -> None:
    """Everybody else reads 451 at MAIL meanwhile, so no other mail shows that the scanner works."""
    with running_bridge(tmp_path, {"policy": {"unavailable": "relay"}}, deadline="3s") as bridge:
        bridge.scanner.reply_to[b"Subject: bad"] = hang
        with ThreadPoolExecutor(20) as pool:
            replies = list(pool.map(lambda number: send(bridge, BAD + b"%d\r\n" % number), range(20)))
        assert {reply[:10] for reply in replies} <= {"451 4.4.7 ", "451 4.3.2 "}
        assert not bridge.next_hop.mails


def test_a_long_first_line_kept_a_forged_field(tmp_path: Path) -> None:
    """No line ends in the first mebibyte: the header section we looked at was a single byte."""
    with running_bridge(tmp_path) as bridge:
        reply = send(bridge, b"X-Scan-Decision: forged " + b"a" * (3 << 19) + b"\r\nSubject: x\r\n\r\nx\r\n")
        assert reply.startswith("554 5.6.0 ") and not bridge.next_hop.mails
        reply = send(bridge, b"X-Other: " + b"a" * (3 << 19) + b"\r\nSubject: x\r\n\r\nx\r\n")
        assert reply.startswith("250 ")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_mail_passed_unscanned_because_our_own_descriptors_were_used_up(tmp_path: Path, host: str) -> None:
    """The scanner could not be connected to, and was taken to be down. A lookup of its name even hid the reason."""
    with parts() as (_, scanner, next_hop):
        scanner.reply = answer(200, result(), "Connection: close")
        scanner.status = answer(200, b'{"messageQueueStatus": "GREEN"}', "Connection: close")
        url = scanner.url.replace("127.0.0.1", host)
        config, port, admin = write_config(tmp_path, url, next_hop.url, policy={"unavailable": "relay"})
        bridge = start(config, port, admin, environment(PYTHONPATH=str(ROOT)))
        try:
            with bridge.client() as client:
                assert client.mail().startswith(b"250 ")
                limits = resource.prlimit(bridge.process.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(bridge.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))  # all of them are in use
                assert client.mail().startswith(b"451 4.3.2 ")
                resource.prlimit(bridge.process.pid, resource.RLIMIT_NOFILE, limits)
                assert client.mail().startswith(b"250 ")
        finally:
            bridge.end()
        assert len(next_hop.mails) == len(scanner.submissions) == 2
