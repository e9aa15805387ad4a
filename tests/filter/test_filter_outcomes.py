"""The decision table of the design, as an SMTP client receives it."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from bridge.config.mail_server_profiles import PROFILES
from bridge.errors import StoreFull
from bridge.testing import TOKEN, RunningBridge, answer, free_port, result, running_bridge
from tests.filter.smtp_kit import MAIL, Client, Gate, counted, mail_lines, send, until

TENANT = "123e4567-e89b-12d3-a456-426614174000"
OTHER_TENANT = "123e4567-e89b-12d3-a456-426614174001"


def relayed(bridge: RunningBridge) -> list[bytes]:
    return [mail.content for mail in bridge.next_hop.mails]


OFF = {"late_decisions": {"store": "off"}}  # every test sends the same mail


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with running_bridge(tmp_path_factory.mktemp("bridge"), OFF) as running:
        yield running


@pytest.fixture
def hasty(tmp_path: Path) -> Any:
    """With a short deadline."""
    with running_bridge(tmp_path, OFF, deadline="2s") as running:
        yield running


@pytest.fixture(autouse=True)
def forget(request: pytest.FixtureRequest) -> None:
    """Tests share one bridge; each starts with a well-behaved scanner and next hop."""
    if "bridge" in request.fixturenames:
        request.getfixturevalue("bridge").forget()


def test_deliver_gives_the_next_hops_own_reply(bridge: RunningBridge) -> None:
    """250 means that the next hop replied 250; the client receives that reply."""
    assert send(bridge) == "250 2.0.0 Ok: queued as NEXT1"
    head, _, rest = relayed(bridge)[0].partition(b"Subject:")
    assert b"Subject:" + rest == MAIL
    assert head.startswith(b"Received: from client.example ([127.0.0.1])\r\n")
    assert b"\r\nX-Scan-Decision: deliver\r\nX-Scan-Verdict: test\r\nX-Scan-Tags: a:b\r\n" in head


def test_bounce_is_550_and_names_the_mail(bridge: RunningBridge) -> None:
    """Refused, with our id and the ggrid, and without the verdict."""
    bridge.scanner.reply = answer(200, result("bounce", verdict="phishing"))
    reply = send(bridge)
    assert reply.startswith("550 5.7.1 The message was refused (id=")
    assert "ggrid=11111111-2222-4333-8444-555555555555" in reply and "phishing" not in reply
    assert not relayed(bridge)


def test_drop_looks_accepted_and_goes_nowhere(bridge: RunningBridge) -> None:
    """The client receives 250; nothing is relayed or stored."""
    before = bridge.quarantined
    bridge.scanner.reply = answer(200, result("drop"))
    assert send(bridge).startswith("250 2.0.0 Ok: queued as ")
    assert not relayed(bridge) and bridge.quarantined == before


def test_quarantine_is_kept_and_looks_accepted(bridge: RunningBridge) -> None:
    """The complete mail is in our store, with its metadata."""
    before = set(bridge.quarantined)
    bridge.scanner.reply = answer(200, result("quarantine", verdict="virus"))
    reply = send(bridge)
    assert reply.startswith("250 2.0.0 Ok: queued as ")
    (kept,) = set(bridge.quarantined) - before
    assert kept.stem in reply and kept.read_bytes().endswith(MAIL)
    about = json.loads(kept.with_suffix(".json").read_text())
    assert about["sender"] == "a@example.org" and about["facts"]["verdict"] == "virus"
    assert not relayed(bridge)


@pytest.mark.parametrize("word", ["undecided", "DELIVER", "something new"])
def test_undecided_is_451(bridge: RunningBridge, word: str) -> None:
    """So is every unknown decision."""
    bridge.scanner.reply = answer(200, result(word))
    assert send(bridge).startswith("451 4.7.1 ")
    assert not relayed(bridge)


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(answer(200, result())[:40])
    writer.close()


FAILURES = {
    "500": (answer(500, b'{"error": "boom", "message": "at /srv/secret"}'), "451 4.3.0 ", "unavailable"),
    "503": (answer(503), "451 4.3.0 ", "unavailable"),
    "cut off": (cut, "451 4.3.0 ", "failed"),
    "html": (answer(200, b"<html>"), "451 4.3.0 ", "malformed"),
    "list": (answer(200, b"[]"), "451 4.3.0 ", "malformed"),
    "no decision": (answer(200, b"{}"), "451 4.3.0 ", "malformed"),
    "307": (answer(307, b"", "Location: http://127.0.0.1:1/"), "451 4.3.0 ", "malformed"),
    "hangs": (hang, "451 4.4.7 ", "deadline"),
    "401": (answer(401, b'{"error": "bad_token"}'), "451 4.3.5 ", "refused"),
    "403": (answer(403), "451 4.3.5 ", "refused"),
    "400": (answer(400), "451 4.3.5 ", "refused"),
    "413": (answer(413), "552 5.3.4 ", "too_large"),
    "429": (answer(429), "451 4.3.2 ", "saturated"),
    "503 later": (answer(503, b"", "Retry-After: 1"), "451 4.3.2 ", "saturated"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_of_the_scanner_has_its_reply(
    request: pytest.FixtureRequest, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Temporary unless the mail itself is too large, counted by its reason, and without the scanner's words."""
    bridge: RunningBridge = request.getfixturevalue("hasty" if name == "hangs" else "bridge")
    bridge.forget()
    bridge.scanner.reply, start, reason = FAILURES[name]
    before = counted(bridge, "failures_total", reason=reason)
    with mail_lines() as lines, caplog.at_level(logging.DEBUG, "bridge"):
        reply = send(bridge)
    assert reply.startswith(start) and "(id=" in reply
    assert "secret" not in reply and "127.0.0.1" not in reply and TOKEN not in caplog.text
    assert counted(bridge, "failures_total", reason=reason) == before + 1
    assert [line["error"] for line in lines] == [reason]
    assert not relayed(bridge)
    if reason == "refused":
        assert any(record.levelno >= logging.ERROR for record in caplog.records)
    if name == "500":
        assert "boom at /srv/secret" in lines[0]["why"]


def test_a_scanner_that_fails_on_every_mail_is_unavailable_when_it_hangs_up(bridge: RunningBridge) -> None:
    """A mail that ends the scanner's process is its own failure; a host that was broken before is the host's."""
    bridge.scanner.reply = answer(500)
    send(bridge)
    bridge.scanner.reply = cut
    before = counted(bridge, "failures_total", reason="unavailable")
    assert send(bridge).startswith("451 4.3.0 ")
    assert counted(bridge, "failures_total", reason="unavailable") == before + 1
    assert not relayed(bridge)


def test_an_unreachable_scanner_is_451(tmp_path: Path) -> None:
    """Nothing listens on that port."""
    config = {"scanner": {"urls": [f"http://127.0.0.1:{free_port()}"]}}
    with running_bridge(tmp_path, config) as bridge:
        assert send(bridge).startswith("451 4.3.0 ")
        assert bridge.daemon.admission.in_processing == 0 and bridge.daemon.spool.in_use == 0


@pytest.mark.parametrize(
    ("verb", "says", "start"),
    [
        (b"MAIL", b"450 4.1.8 Not now", "450 4.1.8 Not now"),
        (b"RCPT", b"550 5.1.1 No such user", "550 5.1.1 No such user"),
        (b".", b"554 5.6.0 Do not like it", "554 5.6.0 Do not like it"),
        (b".", b"452 4.2.2 Mailbox full", "452 4.2.2 Mailbox full"),
        (b".", b"", "451 4.4.2 "),
    ],
)
def test_the_next_hops_refusal_is_passed_on(bridge: RunningBridge, verb: bytes, says: bytes, start: str) -> None:
    """In its own words; if the connection is lost before its reply, the result is unknown: 451.

    Mail that the next hop did not take was logged as relayed.
    """
    bridge.next_hop.replies[verb] = says
    with mail_lines() as lines:
        assert send(bridge).startswith(start)
    assert (lines[0]["error"], lines[0]["rule"], lines[0]["decision"]) == ("next_hop", "next_hop", "deliver")
    assert lines[0]["action"] == ("reject" if start.startswith("5") else "tempfail")
    assert ("(id=" in lines[0]["reply"]) is (not says)  # our id in our words only


def test_an_unreachable_next_hop_is_451(tmp_path: Path) -> None:
    """The mail server keeps the mail."""
    with running_bridge(tmp_path, {"relay": {"next_hop": f"127.0.0.1:{free_port()}"}}) as bridge:
        reply = send(bridge)
        assert reply.startswith("451 4.4.1 ") and "(id=" in reply


class Failing:
    """Stands in for a component and raises this error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def keep(self, *_: object) -> None:
        raise self.error

    async def deliver(self, *_: object) -> None:
        raise self.error


def filter_of(bridge: RunningBridge) -> Any:
    return bridge.daemon.servers[0]._filter


def test_a_full_quarantine_is_452(bridge: RunningBridge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mail that is not stored never gets 250."""
    monkeypatch.setattr(filter_of(bridge)._actions, "_quarantine", Failing(StoreFull("/var/secret: no space")))
    bridge.scanner.reply = answer(200, result("quarantine"))
    reply = send(bridge)
    assert reply.startswith("452 4.3.1 ") and "secret" not in reply


def test_a_broken_quarantine_is_451(tmp_path: Path) -> None:
    """Its directory has become a file: nothing can be stored, so the mail is deferred."""
    with running_bridge(tmp_path) as bridge:
        (tmp_path / "state" / "quarantine").rmdir()
        (tmp_path / "state" / "quarantine").write_text("in the way")
        bridge.scanner.reply = answer(200, result("quarantine"))
        assert send(bridge).startswith("451 4.3.0 ")


def test_our_own_exception_is_451_without_its_text(
    bridge: RunningBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Our own bug delays a mail but never loses it, and the reply reveals nothing."""
    monkeypatch.setattr(filter_of(bridge)._actions, "_relay", Failing(RuntimeError("secret /etc/path")))
    before = counted(bridge, "failures_total", reason="internal")
    reply = send(bridge)
    assert reply.startswith("451 4.3.0 Internal problem") and "secret" not in reply
    assert counted(bridge, "failures_total", reason="internal") == before + 1
    assert "unexpected error" in caplog.text
    assert bridge.daemon.admission.in_processing == 0 and bridge.daemon.spool.in_use == 0


def test_a_log_that_fails_does_not_change_the_mails_fate(
    bridge: RunningBridge, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next hop has the mail: the client must read 250, or the mail is delivered twice."""

    def fail(_: object) -> None:
        raise RuntimeError("no log today")

    monkeypatch.setattr(filter_of(bridge), "_report", fail)
    assert send(bridge) == "250 2.0.0 Ok: queued as NEXT1"
    assert "could not be logged" in caplog.text


def test_a_mail_in_a_loop_is_554(bridge: RunningBridge) -> None:
    """A hundred Received fields; ninety-nine pass."""
    assert send(bridge, b"Received: by x\r\n" * 99 + MAIL).startswith("250 ")
    assert send(bridge, b"Received: by x\r\n" * 100 + MAIL).startswith("554 5.4.6 ")


def test_forged_fields_reach_neither_scanner_nor_next_hop(bridge: RunningBridge) -> None:
    """Scanner and next hop get the same content, except for the added fields."""
    forged = b"From: a\r\nx-SCAN-verdict: clean,\r\n really\r\nSubject: hello\r\n\r\nX-Scan-Id: body stays\r\n"
    clean = b"From: a\r\nSubject: hello\r\n\r\nX-Scan-Id: body stays\r\n"
    assert send(bridge, forged).startswith("250 ")
    assert bridge.scanner.submissions[0].email == clean
    assert relayed(bridge)[0].endswith(clean)


@pytest.mark.parametrize("padding", [b"A: " + b"y" * 90 + b"\r\n", b"y" * 95])
def test_a_forged_field_behind_a_mebibyte_of_header_is_refused(bridge: RunningBridge, padding: bytes) -> None:
    """A header above our limit cannot be stripped; without a field with our prefix, the mail passes unchanged."""
    long = (b"Subject: x\r\nB: " + padding * 15_000).rstrip() + b"\r\n"
    assert send(bridge, long + b"x-scan-Verdict: clean\r\n\r\nhello\r\n").startswith("554 5.6.0 ")
    assert send(bridge, long + b"To: a\r\n\r\nX-Scan-Id: in the body\r\n").startswith("250 ")
    assert relayed(bridge)[0].endswith(b"To: a\r\n\r\nX-Scan-Id: in the body\r\n")
    assert send(bridge, b"Subject: x\r\n\r\n" + padding * 15_000 + b"\r\nX-Scan-Id: body\r\n").startswith("250 ")


@pytest.mark.parametrize("profile", [name for name, profile in PROFILES.items() if profile.protocol == "smtp"])
def test_our_own_client_is_the_sender_only_if_the_profile_says_so(tmp_path: Path, profile: str) -> None:
    """Nobody named a client: it is the mail server next to us, whose address would pass checks made for a sender's."""
    with running_bridge(tmp_path, profile=profile) as bridge:
        send(bridge, sender="", recipients=("b@example.org", "c@example.org"))
        seen = bridge.scanner.submissions[0].parameters["borderMtaData"]
    sender = {"remoteAddress": "127.0.0.1", "senderHelo": "client.example"} if profile == "direct" else {}
    assert seen == {"envelopeFrom": "", "envelopeRecipients": ["b@example.org", "c@example.org"], **sender}


@pytest.mark.parametrize("profile", ["postfix-content-filter", "exim-queue", "postfix-proxy", "direct"])
def test_the_next_hop_is_not_told_that_our_own_client_sent_the_mail(tmp_path: Path, profile: str) -> None:
    """XFORWARD named the mail server next to us as the sending host, and the next hop's log and lists believed it."""
    with running_bridge(tmp_path, profile=profile) as bridge:
        bridge.next_hop.extensions += ("XFORWARD NAME ADDR HELO",)
        with bridge.client() as client:
            client.open()
            client.mail(MAIL)
            client.say(b"XFORWARD ADDR=192.0.2.7 HELO=mx.sender.example")
            client.mail(MAIL)
        unnamed, named = ([line for line in mail.commands if b"XFORWARD" in line] for mail in bridge.next_hop.mails)
    own = b"ADDR=127.0.0.1 HELO=client.example"
    nobody = b"ADDR=[UNAVAILABLE] HELO=[UNAVAILABLE]"
    assert unnamed == [b"XFORWARD NAME=[UNAVAILABLE] " + (own if profile == "direct" else nobody)]
    assert named == [b"XFORWARD NAME=[UNAVAILABLE] ADDR=192.0.2.7 HELO=mx.sender.example"]


def test_one_line_per_mail_has_everything_an_operator_needs(bridge: RunningBridge) -> None:
    """The id comes first; unknown values are left out."""
    with mail_lines() as lines:
        reply = send(bridge)
    (line,) = lines
    assert next(iter(line)) == "id"
    assert {key: line[key] for key in ("listener", "client", "helo", "from", "to", "nrcpt", "size", "next_id")} == {
        "listener": "test",
        "client": "127.0.0.1",
        "helo": "client.example",
        "from": "<a@example.org>",
        "to": "<b@example.org>",
        "nrcpt": 1,
        "size": len(MAIL),
        "next_id": "NEXT1",
    }
    assert line["decision"] == "deliver" and line["action"] == "relay" and line["reply"] == reply
    assert line["ggrid"] == "11111111-2222-4333-8444-555555555555" and line["verdict"] == "test"
    assert line["scan_ms"] >= 0 and line["relay_ms"] >= 0 and line["session"]
    assert "error" not in line and "tenant" not in line


def test_each_mail_is_counted_once(bridge: RunningBridge) -> None:
    """By listener, decision and action, and by the first digit of its reply."""
    labels = {"listener": "test", "decision": "deliver", "action": "relay"}
    mails, replies = (
        counted(bridge, "mails_total", **labels),
        counted(bridge, "replies_total", listener="test", code="2xx"),
    )
    scans = counted(bridge, "scan_seconds_count", listener="test")
    send(bridge)
    assert counted(bridge, "mails_total", **labels) == mails + 1
    assert counted(bridge, "replies_total", listener="test", code="2xx") == replies + 1
    assert counted(bridge, "scan_seconds_count", listener="test") == scans + 1


def test_a_client_that_goes_away_frees_its_slot(bridge: RunningBridge) -> None:
    """Cancelled before the relay: nothing is relayed, no slot is held, and one log line says so."""
    gate = Gate(bridge, answer(200, result()))
    with mail_lines() as lines:
        client = Client(bridge)
        client.begin()
        client.say("DATA")
        client.content()
        gate.arrived()
        assert bridge.daemon.admission.in_processing == 1
        client.close()
        until(lambda: lines, "the line of the cancelled mail")
    assert lines[0]["action"] == "cancelled"
    assert bridge.daemon.admission.in_processing == 0
    until(lambda: bridge.daemon.spool.in_use == 0, "the content of the mail to be released, just after its line")
    assert bridge.daemon.scanner.in_flight == 0
    gate.open()
    assert not relayed(bridge)


def test_after_a_queue_bounce_is_quarantined(tmp_path: Path) -> None:
    """A 550 there would become a bounce to a forged sender."""
    with running_bridge(tmp_path, profile="postfix-content-filter") as bridge:
        bridge.scanner.reply = answer(200, result("bounce"))
        assert send(bridge).startswith("250 2.0.0 Ok: queued as ")
        assert len(bridge.quarantined) == 1


REFUSED_CONTENT = {
    "NUL": b"Subject: x\r\n\r\na\0b\r\n",
    "bare LF": b"Subject: x\r\n\r\na\n.\nMAIL FROM:<a@example.org>\r\n",
    "bare CR in a field": b"Subject: x\ry\r\n\r\n",
    "white space first": b" x\r\nSubject: x\r\n\r\n",
    "loop": b"Received: x\r\n" * 101 + b"\r\n",
    "long header": b"X: y\r\n" * 400_000 + b"X-Scan-Decision: deliver\r\n\r\n",
    "ambiguous": b"Content-Type: multipart/mixed; boundary=a; boundary=b\r\n\r\n--a\r\n\r\nx\r\n--b\r\n\r\ny\r\n",
}


@pytest.mark.parametrize("name", REFUSED_CONTENT)
def test_after_a_queue_content_that_we_refuse_is_quarantined(name: str, tmp_path: Path) -> None:
    """A bounce would bring it, unscanned, to a forged sender. It is kept as it came, and never relayed."""
    content = REFUSED_CONTENT[name]
    with running_bridge(tmp_path, profile="postfix-content-filter", refuse_ambiguous_mime=True) as bridge:
        assert send(bridge, content).startswith("250 2.0.0 Ok: queued as ")
        (kept,) = bridge.quarantined
        assert kept.read_bytes() == content
        assert json.loads(kept.with_suffix(".json").read_bytes())["facts"]["reason"] == "refused"
        assert not relayed(bridge) and not bridge.scanner.submissions


@pytest.mark.parametrize("name", REFUSED_CONTENT)
@pytest.mark.parametrize("settings", [{}, {"profile": "postfix-content-filter", "policy": {"bounce": "reject"}}])
def test_otherwise_content_that_we_refuse_is_rejected(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Before the queue, and where the operator wants bounces."""
    with running_bridge(tmp_path, refuse_ambiguous_mime=True, **settings) as bridge:
        assert send(bridge, REFUSED_CONTENT[name])[:3] in ("550", "554")
        assert not bridge.quarantined and not relayed(bridge)


def test_the_operators_policy_is_followed(tmp_path: Path) -> None:
    """Custom code and text, a stored copy, and `hold` as quarantine where the mail server has no hold queue."""
    policy = {
        "bounce": {"action": "reject", "code": 554, "text": "Not here", "keep_copy": True},
        "deliver": {"action": "relay", "keep_copy": True},
        "undecided": "hold",
        "drop": {"action": "tempfail", "code": 450},
    }
    with running_bridge(tmp_path, {"policy": policy}) as bridge:
        bridge.scanner.reply = answer(200, result("bounce"))
        assert send(bridge).startswith("554 5.7.1 Not here (id=")
        assert len(bridge.quarantined) == 1
        bridge.scanner.reply = answer(200, result("deliver"))
        assert send(bridge) == "250 2.0.0 Ok: queued as NEXT1"
        assert len(bridge.quarantined) == 2 and len(relayed(bridge)) == 1
        bridge.scanner.reply = answer(200, result("undecided"))
        assert send(bridge).startswith("250 2.0.0 Ok: queued as ")
        assert len(bridge.quarantined) == 3
        bridge.scanner.reply = answer(200, result("drop"))
        assert send(bridge).startswith("450 4.7.1 ")


def test_mail_over_the_size_limit_was_rejected_whatever_the_policy_said(tmp_path: Path) -> None:
    """By its announced size, and by its real one; the policy applied only to a scanner's 413. A tenant has its own."""
    config = {
        "limits": {"max_message_size": "10KiB"},
        "policy": {"too_large": {"action": "tempfail", "code": 452, "text": "Later"}},
        "tenants": [{"uid": TENANT, "recipient_domains": ["b.example"], "policy": {"too_large": "reject"}}],
    }
    large = b"Subject: x\r\n\r\n" + b"x\r\n" * 10_000
    with running_bridge(tmp_path, config) as bridge:
        assert send(bridge, large).startswith("452 4.3.0 Later (id=")
        assert send(bridge, large, recipients=("b@b.example",)).startswith("552 5.3.4 ")
        with Client(bridge) as client:
            client.say("EHLO client.example")
            assert client.say("MAIL FROM:<a@example.org> SIZE=99999").startswith("452 4.3.0 Later (id=")


def test_a_copy_that_cannot_be_kept_stops_the_mail(tmp_path: Path) -> None:
    """An operator who wants a copy gets one, or the mail is deferred."""
    with running_bridge(tmp_path, {"policy": {"deliver": {"action": "relay", "keep_copy": True}}}) as bridge:
        filter_of(bridge)._actions._quarantine = Failing(StoreFull("full"))
        assert send(bridge).startswith("452 4.3.1 ")
        assert not relayed(bridge)


def test_a_spool_that_cannot_be_written_has_a_reason_in_log_and_metrics(tmp_path: Path) -> None:
    """Only mail that does not fit into memory is deferred: without a logged reason, the cause would be hard to find."""
    spool = tmp_path / "spool"
    spool.mkdir()
    config = {"spool": {"memory_per_mail": "1KiB", "directory": str(spool)}}
    with running_bridge(tmp_path, config) as bridge, mail_lines() as lines:
        spool.rmdir()
        assert send(bridge, b"Subject: x\r\n\r\n" + b"x" * 5000 + b"\r\n").startswith("452 4.3.1 ")
        assert (lines[0]["error"], lines[0]["action"]) == ("spool", "tempfail")
        assert counted(bridge, "failures_total", reason="spool") == 1
        assert send(bridge).startswith("250 ")


def test_fail_open_relays_with_an_unscanned_header(tmp_path: Path) -> None:
    """The operator's choice; a header field shows it. A mail above the size limit is still refused."""
    with running_bridge(tmp_path, {"policy": {"unavailable": "relay"}}) as bridge:
        bridge.scanner.reply = answer(500)
        with mail_lines() as lines:
            assert send(bridge) == "250 2.0.0 Ok: queued as NEXT1"
        assert b"\r\nX-Scan-Unscanned: unreachable\r\n" in relayed(bridge)[0]
        assert b"X-Scan-Decision" not in relayed(bridge)[0]
        assert lines[0]["error"] == "unavailable" and lines[0]["action"] == "relay"
        bridge.scanner.reply = answer(413)
        assert send(bridge).startswith("552 5.3.4 ")
        bridge.scanner.reply = answer(429)
        assert send(bridge).startswith("451 4.3.2 ")


def test_mail_belongs_to_the_tenant_of_its_recipients(tmp_path: Path) -> None:
    """tenantUid and policy follow the recipient's domain; other domains belong to the default tenant."""
    config = {
        "scanner": {"tenant_uid": OTHER_TENANT},
        "tenants": [{"uid": TENANT, "recipient_domains": ["Example.ORG"], "policy": {"bounce": "discard"}}],
    }
    with running_bridge(tmp_path, config) as bridge:
        bridge.scanner.reply = answer(200, result("bounce"))
        with mail_lines() as lines:
            assert send(bridge, recipients=("b@EXAMPLE.org",)).startswith("250 ")
            assert send(bridge, recipients=("b@example.net",)).startswith("550 ")
        tenants = [submission.parameters["tenantUid"] for submission in bridge.scanner.submissions]
        assert tenants == [TENANT, OTHER_TENANT]
        assert [line["tenant"] for line in lines] == [TENANT, OTHER_TENANT]
        assert send(bridge, recipients=("b@example.net", "b@example.org")).startswith("452 4.5.3 ")
