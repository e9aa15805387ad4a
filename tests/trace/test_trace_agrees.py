"""A trace says what a running bridge does: the same reply, the same rule, the same next hop, for every case."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import Decision
from bridge.cli.trace.command import CASES
from bridge.filter.policy import Case
from bridge.testing import FakeScanner, RunningBridge, answer, result, running_bridge
from tests.trace.trace_kit import MAIL, Traces

UID = "0b8e4567-e89b-12d3-a456-426614174000"
OTHER = "1b8e4567-e89b-12d3-a456-426614174000"
POLICY = {
    "quarantine": {"action": "reject", "code": 554, "text": "Not here"},
    "bounce": {"action": "reject", "text": "No, thanks"},
    "unreachable": "relay",
    "nonsense": "quarantine",
}


def test_the_command_knows_every_case() -> None:
    """`--decision` takes the cases of the policy, no more and no fewer."""
    assert list(CASES) == [case.value for case in Case]


def play(scanner: FakeScanner, case: Case) -> None:
    """Make a real scanner behave so that this case occurs."""

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    replies: dict[Case, Any] = {
        Case.FAILED: answer(500),
        Case.SLOW: hang,
        Case.REFUSED: answer(404),
        Case.NONSENSE: answer(200, b"nonsense"),
        Case.SATURATED: answer(429),
        Case.TOO_LARGE: answer(413),
    }
    if case.value in list(Decision):
        scanner.reply = answer(200, result(case.value))
    elif case is Case.FAILED or case is Case.SLOW:
        scanner.reply_to = {b"hello": replies[case]}  # other mail is decided
    else:
        scanner.reply = replies[case]


PLAYABLE = [case for case in Case if case not in (Case.UNAVAILABLE, Case.UNREACHABLE, Case.DEADLINE)]


def sent(bridge: RunningBridge) -> str:
    with bridge.client() as client:
        client.open()
        return client.mail(MAIL).decode()


def plain(reply: str) -> str:
    """Without the ids: ours, and the scanner's, which a supposed decision does not have."""
    return re.sub(r"id=\w+( ggrid=[\w-]+)?", "id=ID", re.sub(r"queued as \w+", "queued as ID", reply))


@pytest.mark.parametrize("case", PLAYABLE, ids=str)
@pytest.mark.parametrize("policy", [{}, POLICY], ids=["default", "own"])
def test_every_case_ends_as_it_does_for_real(
    tmp_path: Path, case: Case, policy: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The bridge gets a mail, and its scanner behaves so; the trace of the same mail has the same reply and rule."""
    config = {"policy": policy, "late_decisions": {"store": "off"}}
    with running_bridge(tmp_path, config, deadline="3s") as bridge:
        traces = Traces(tmp_path, bridge, config, deadline="3s")
        play(bridge.scanner, case)
        with caplog.at_level(logging.INFO, "scanbridge.mail"):
            reply = sent(bridge)
        (rule,) = re.findall(r" rule=(\S+)", caplog.text)
        steps = traces.steps("--from", "a@client.example", "--to", "b@example.org", "--decision", case.value)
    told = steps["reply"][0]["reply"]
    if steps["rule"][0]["action"] == "relay":
        assert reply.startswith("250") and told == "the next hop's own reply"
    else:
        assert plain(reply) == told
    assert steps["rule"][0]["rule"] == rule


@pytest.mark.parametrize("case", [Case.DELIVER, Case.BOUNCE, Case.QUARANTINE], ids=str)
@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_tenants_and_routes(tmp_path: Path, case: Case, protocol: str) -> None:
    """Each recipient's tenant, policy and next hop; over SMTP, a second transaction for those who cannot share one."""
    config = {
        "tenants": [
            {"uid": UID, "recipient_domains": ["one.example"], "policy": {"bounce": "quarantine"}},
            {"uid": OTHER, "recipient_domains": ["two.example"], "relay": {"next_hop": "smtp://127.0.0.1:9"}},
        ],
        "relay": {"routes": [{"recipient_domains": ["three.example"], "next_hop": "lmtp://127.0.0.1:10"}]},
    }
    with running_bridge(tmp_path, config, protocol=protocol) as bridge:
        traces = Traces(tmp_path, bridge, config, protocol=protocol)
        to = [f"u@{name}.example" for name in ("one", "two", "three", "four")]
        steps = traces.steps(*(word for address in to for word in ("--to", address)), "--decision", case.value)
        general = bridge.next_hop.url
    assert [step["tenant"] for step in steps["tenant"]] == [UID, OTHER, None, None]
    assert [step["why"] for step in steps["tenant"]] == ["tenants[0]", "tenants[1]", None, None]
    asked = {tuple(step["recipients"]): step["tenant"] for step in steps["scanner"]}
    assert asked[to[0],] == UID and asked[to[1],] == OTHER
    refused = [(step["recipient"], step["transaction"]) for step in steps.get("rcpt", [])]
    if protocol == "smtp":
        assert refused == [(to[1], 1), (to[2], 1), (to[3], 1), (to[2], 2), (to[3], 2), (to[3], 3)]
        assert all(step["reply"].startswith("452 4.5.3") for step in steps["rcpt"])
    else:
        assert refused == [] and asked[to[2], to[3]] is None
    if case is Case.DELIVER:
        found = {step["recipient"]: (step["next_hop"], step["why"]) for step in steps["next_hop"]}
        assert found == {
            to[0]: (general, "relay.next_hop"),
            to[1]: ("smtp://127.0.0.1:9", "tenants[1].relay"),
            to[2]: ("lmtp://127.0.0.1:10", "relay.routes"),
            to[3]: (general, "relay.next_hop"),
        }
    if case is Case.BOUNCE:
        rules = {step["rule"]: step["action"] for step in steps["rule"]}
        assert rules == {f"tenants.{UID}.policy.bounce": "quarantine", "policy.bounce": "reject"}


def test_without_a_decision_the_whole_policy_is_shown(tmp_path: Path) -> None:
    """One line for each case, with its rule, action and reply."""
    config = {"policy": POLICY}
    with running_bridge(tmp_path, config) as bridge:
        traces = Traces(tmp_path, bridge, config)
        done = traces.run("--to", "b@example.org")
        data = json.loads(traces.run("--to", "b@example.org", "--json").stdout)
    rows = {row["case"]: row for row in data["policy"]}
    assert list(rows) == list(CASES)
    assert rows["quarantine"]["reply"] == "554 5.7.1 Not here (id=ID)"
    assert (rows["nonsense"]["action"], rows["nonsense"]["rule"]) == ("quarantine", "policy.nonsense")
    assert (rows["deadline"]["action"], rows["deadline"]["rule"]) == ("tempfail", "policy.unavailable")
    assert [line.split("\t")[0] for line in done.stdout.splitlines() if "\t" in line] == ["CASE", *CASES]
    assert "b@example.org goes to the next hop" in done.stdout and "X-Scan-Decision: deliver" in done.stdout


def test_header_fields_are_those_that_are_added(tmp_path: Path) -> None:
    """As they stand in the mail that arrives, but for ids and times; forged ones are removed."""
    forged = b"X-Scan-Decision: deliver\r\n" + MAIL
    with running_bridge(tmp_path) as bridge:
        bridge.scanner.reply = answer(200, result("deliver", verdict="clean", tags=["a:b", "c:d"]))
        with bridge.client() as client:
            client.open(b"EHLO mx.client.example")
            client.mail(forged)
        arrived = bridge.next_hop.mails[0].content.decode()
        traces = Traces(tmp_path, bridge)
        steps = traces.steps("--to", "b@example.org", "--helo", "mx.client.example", "--scan", content=forged)
    added = [line for line in arrived.split("\r\n\r\n")[0].replace("\r\n\t", " ").split("\r\n") if "X-Scan-" in line]
    told = [line for line in steps["header"][0]["fields"] if "X-Scan-" in line]
    assert [line for line in added if "-Id" not in line] == [line for line in told if "-Id" not in line]
    assert steps["header"][0]["fields"][0].startswith("Received: from mx.client.example")
    assert steps["forged"][0]["count"] == 1


@pytest.mark.parametrize(
    ("content", "limits", "rule", "reply"),
    [
        (b"Received: x\r\n" * 11 + MAIL, {"max_received": 10}, "limits.max_received", "554 5.4.6"),
        (b" continued\r\n" + MAIL, {}, "content.first_line", "550 5.6.0"),
        (MAIL + b"bare\nline feed\r\n", {}, "content.line_ends", "550 5.5.2"),
        (MAIL + b"x" * 5000, {"max_message_size": "4KiB"}, "limits.max_message_size", "552 5.3.4"),
    ],
    ids=["loop", "first line", "line ends", "size"],
)
def test_content_that_is_refused_is_refused_in_the_trace(
    tmp_path: Path, content: bytes, limits: dict[str, Any], rule: str, reply: str
) -> None:
    """Before the scan, with the rule and the reply of the real listener."""
    config = {"limits": limits}
    with running_bridge(tmp_path, config) as bridge:
        with bridge.client() as client:
            client.open()
            replies = client.say(b"MAIL FROM:<a@client.example> SIZE=%d" % len(content))
            if replies[0].startswith(b"250"):
                client.say(b"RCPT TO:<b@example.org>", b"DATA")
                replies = client.say(content + b"\r\n.")
        traces = Traces(tmp_path, bridge, config)
        steps = traces.steps("--from", "a@client.example", "--to", "b@example.org", content=content)
        assert bridge.scanner.submissions == []
    found = steps.get("mail", steps.get("reply", []))[0]
    assert plain(replies[0].decode()) == found["reply"] and found["reply"].startswith(reply)
    assert steps.get("rule", steps.get("mail", []))[0]["rule"] == rule
    assert not any(step["asked"] for step in steps.get("scanner", []))


def test_ambiguous_mail_is_refused_where_the_listener_says_so(tmp_path: Path) -> None:
    """With the reasons."""
    content = b"Content-Type: multipart/mixed; boundary=a\r\nContent-Type: text/plain\r\n\r\n--a\r\n\r\nx\r\n--a--\r\n"
    with running_bridge(tmp_path, refuse_ambiguous_mime=True) as bridge:
        traces = Traces(tmp_path, bridge, refuse_ambiguous_mime=True)
        steps = traces.steps("--to", "b@example.org", content=content)
    assert steps["rule"][0]["rule"] == "listeners.test.refuse_ambiguous_mime" and steps["rule"][0]["ambiguous"]
    assert steps["reply"][0]["reply"].startswith("554 5.6.0")


def test_shadow_mode_says_what_would_have_happened(tmp_path: Path) -> None:
    """The mail is handed on, whatever the rule."""
    with running_bridge(tmp_path, mode="shadow") as bridge:
        steps = Traces(tmp_path, bridge, mode="shadow").steps("--to", "b@example.org", "--decision", "bounce")
    assert steps["rule"][0]["would"] == "reject" and steps["rule"][0]["action"] == "relay"
    assert steps["next_hop"][0]["next_hop"] == bridge.next_hop.url and "shadow" in steps


@pytest.mark.parametrize(
    ("profile", "case", "action", "told"),
    [
        ("postfix-milter", "quarantine", "hold", "the mail server's own reply"),
        ("postfix-milter", "deliver", "relay", "the mail server's own reply"),
        ("postfix-milter", "bounce", "reject", "550 5.7.1 The message was refused (id=ID)"),
        ("stalwart-milter", "deliver", "relay", "the mail server's own reply"),
        ("haraka-hooks", "deliver", "relay", "the mail server's own reply"),
        ("mta-hooks", "bounce", "reject", "550 5.7.1 The message was refused (id=ID)"),
        ("stalwart-milter", "undecided", "tempfail", "451 4.7.1 The scan came to no decision, try again later (id=ID)"),
    ],
)
def test_a_listener_whose_mail_server_delivers(tmp_path: Path, profile: str, case: str, action: str, told: str) -> None:
    """Its own protocol, with the client that the mail server names; the mail server delivers."""
    given: dict[str, Any] = {"protocol": "milter", "profile": profile}
    if profile.endswith("hooks"):
        given |= {"protocol": "mta-hooks", "hooks": {"token_file": "token"}}
    with running_bridge(tmp_path, **given) as bridge:
        options = ("--to", "b@example.org", "--remote-address", "2001:db8::7", "--helo", "mx.client.example")
        steps = Traces(tmp_path, bridge, **given).steps(*options, "--decision", case)
    assert steps["scanner"][0]["remote_address"] == "2001:db8::7" and steps["scanner"][0]["helo"] == "mx.client.example"
    assert steps["rule"][0]["action"] == action and steps["reply"][0]["reply"] == told
    if action in ("relay", "hold"):
        assert f"X-Scan-Decision: {case}" in steps["header"][0]["fields"]


def test_a_trace_ended_silently_after_a_hundred_transactions(tmp_path: Path) -> None:
    """It says how many recipients it has left out."""
    numbers = range(103)
    tenants = [
        {"uid": f"{number:08x}-e89b-12d3-a456-426614174000", "recipient_domains": [f"d{number}.example"]}
        for number in numbers
    ]
    to = [f"u@d{number}.example" for number in numbers]
    with running_bridge(tmp_path) as bridge:
        traces = Traces(tmp_path, bridge, {"tenants": tenants})
        given = [word for address in to for word in ("--to", address)]
        steps = traces.steps(*given, "--decision", "deliver")
    [left] = steps["left_out"]
    assert left["count"] == 3 and left["recipients"] == to[100:] and len(steps["scanner"]) == 100
    assert "stops after 100 transactions. The mail server would send the mail to the other 3 recipients" in left["text"]


def test_a_mailbox_was_traced_as_one_mail(tmp_path: Path) -> None:
    """What it says would have been about none of its mails."""
    separator = b"From a@client.example Thu Jan  1 00:00:00 2026\r\n"
    with running_bridge(tmp_path) as bridge:
        done = Traces(tmp_path, bridge).run(content=separator + MAIL + b"\r\n" + separator + MAIL)
    assert done.returncode == 1 and "mail.eml: it is a mailbox (mbox) with several mails" in done.stderr
