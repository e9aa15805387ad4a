"""MTA Hooks: our own client against our own listener, every decision, and what a request becomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.api.scanning import AnalysisRequest, BorderMtaData, Decision
from bridge.errors import MessageTooLarge, Saturated
from bridge.mail.message import Message, Spool
from bridge.scanner.client import Scanner, ScannerSettings
from bridge.scanner.dialects.allowed_changes import KINDS
from bridge.scanner.dialects.mta_hooks import HooksSettings, MtaHooks
from bridge.testing import RunningBridge, answer, result, until
from tests.filter.test_filter_personal import Personal
from tests.hostile.hostile_kit import Hanging
from tests.intake.hooks.hooks_kit import MAIL, TOKEN, MailServer, facts, hooks_bridge

_BODIES = {
    "plain": MAIL,
    "bytes": b"X: y\r\n\r\n" + bytes(range(256)) * 1000 + b"\r\n.\r\n",
    "no body": b"Subject: x\r\n\r\n",
    "empty": b"",
    "one": b"x",
    "two": b"xy",
}


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    config: dict[str, Any] = {
        "limits": {"max_message_size": "2MiB"},
        "tenants": [{"uid": "11111111-1111-4111-8111-111111111111", "recipient_domains": ["tenant.example"]}],
    }
    with hooks_bridge(tmp_path_factory.mktemp("hooks"), config) as running:
        yield running


async def _by_our_client(port: int, content: bytes) -> Any:
    def make(url: str, token: str) -> MtaHooks:
        return MtaHooks(url, token, HooksSettings(allowed=frozenset(KINDS), prefix="X-Other-"))

    scanner = Scanner(ScannerSettings((f"http://127.0.0.1:{port}",), TOKEN, dialect=make))
    message = Message(Spool(1 << 30))
    message.write(content)
    border = BorderMtaData("a@example.com", ("b@example.org",), "192.0.2.1", "far.example")
    try:
        until_ = asyncio.get_running_loop().time() + 20
        return await scanner.submit(AnalysisRequest(border, mail_id="Q1"), message, until_)
    finally:
        message.close()
        scanner.close()
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("decision", "seen"),
    [
        ("deliver", Decision.DELIVER),
        ("bounce", Decision.BOUNCE),
        ("undecided", Decision.UNDECIDED),
        ("drop", Decision.DROP),
        ("quarantine", Decision.DROP),  # the mail is in the quarantine of the bridge that was asked
    ],
)
async def test_our_client_understands_every_decision(
    bridge: RunningBridge, server: MailServer, decision: str, seen: Decision
) -> None:
    """One bridge behind another, with MTA Hooks between them."""
    bridge.scanner.reply = answer(200, result(decision))
    before = len(list((bridge.directory / "state" / "quarantine").rglob("*.eml")))
    found = await _by_our_client(bridge.port, MAIL)
    assert found.decision is seen
    stored = len(list((bridge.directory / "state" / "quarantine").rglob("*.eml"))) - before
    assert stored == (decision == "quarantine")
    if decision == "deliver":
        assert dict(found.changes.add)["X-Scan-Decision"] == "deliver"


@pytest.mark.parametrize("content", _BODIES.values(), ids=_BODIES)
async def test_no_byte_is_changed(bridge: RunningBridge, server: MailServer, content: bytes) -> None:
    """What the mail server has is what is scanned."""
    await _by_our_client(bridge.port, content)
    assert bridge.scanner.submissions[-1].email == content


async def test_a_mail_that_is_too_large_is_refused(bridge: RunningBridge, server: MailServer) -> None:
    """Our client does not send it; another one that does reads 552 in its answer."""
    large = MAIL + b"x" * 78 * 30_000
    with pytest.raises(MessageTooLarge):
        await _by_our_client(bridge.port, large)
    assert server.action(facts(large)) == ("reject", (552, "5.3.4"))


async def test_saturation_is_a_451_inside_a_200(bridge: RunningBridge, server: MailServer) -> None:
    """An HTTP error would make the mail server try again at once."""
    bridge.scanner.reply = answer(429, b"{}", "Retry-After: 1")
    with pytest.raises(Saturated):
        await _by_our_client(bridge.port, MAIL)
    for stage, content in (("mail", None), ("data", MAIL)):  # it is known for a second
        assert server.action(facts(content, stage)) == ("reject", (451, "4.3.2"))
    bridge.scanner.reply = answer(200, result())
    until(lambda: server.action(facts())[0] == "accept", "the end of the saturation")


def test_the_whole_request_is_used(bridge: RunningBridge, server: MailServer) -> None:
    """Client, envelope, queue id, TLS and login reach the scanner and the log."""
    sent = facts(
        envelope={
            "from": {"address": None, "parameters": {"SIZE": "30", "SMTPUTF8": None}},
            "to": [{"address": "ü@example.org"}, {"address": '"a b"@example.org', "parameters": {"NOTIFY": "NEVER"}}],
        },
        client={"ip": "::ffff:192.0.2.7", "port": 1234, "ehlo": "far\u202e.example", "ptr": "host.example"},
        tls={"version": "TLSv1.3", "cipher": "AES"},
        auth={"login": "someone", "method": "PLAIN"},
        unknown={"more": [1, 2.5, {"x": None}]},
    )
    assert server.action(sent)[0] == "accept"
    told = bridge.scanner.submissions[-1].parameters["borderMtaData"]
    assert told["envelopeFrom"] == ""
    assert told["envelopeRecipients"] == ["ü@example.org", '"a b"@example.org']
    assert (told["remoteAddress"], told["senderHelo"]) == ("192.0.2.7", "far\u202e.example")


def test_forged_fields_are_deleted_by_their_place(bridge: RunningBridge, server: MailServer) -> None:
    """From the last to the first; where readers disagree about the fields, the mail is refused."""
    forged = b"A: 1\r\nx-scan-id: 1\r\nB: 2\r\n folded\r\nX-SCAN-Other : 3\r\n" + MAIL
    _, found = server.ask(facts(forged))
    assert found["delete"] == [{"path": "/message/headers/3"}, {"path": "/message/headers/1"}]
    assert server.action(facts(b"A: 1\r\nno field\r\nX-Scan-Id: 1\r\n\r\nx\r\n")) == ("reject", (550, "5.6.0"))


def test_recipients_of_two_tenants(bridge: RunningBridge, server: MailServer) -> None:
    """At RCPT the second one is deferred; without that stage, the whole mail is."""
    to = [{"address": "b@tenant.example"}, {"address": "b@example.org"}]
    envelope = {"from": {"address": "a@example.com"}, "to": to}
    assert server.action(facts(None, "rcpt", envelope=envelope)) == ("reject", (452, "4.5.3"))
    assert server.action(facts(None, "rcpt", envelope={**envelope, "to": to[:1]}))[0] == "accept"
    assert server.action(facts(envelope=envelope)) == ("reject", (452, "4.5.3"))


def test_early_stages(bridge: RunningBridge, server: MailServer) -> None:
    """An address that cannot be passed on is refused where it is given."""
    bad = {"from": {"address": "a\r\nb@example.com"}, "to": []}
    assert server.action(facts(None, "mail")) == ("accept", None)
    assert server.action(facts(None, "mail", envelope=bad)) == ("reject", (553, "5.1.3"))
    large = {"from": {"address": "a@example.com", "parameters": {"SIZE": "9999999999"}}, "to": []}
    assert server.action(facts(None, "mail", envelope=large)) == ("reject", (552, "5.3.4"))
    assert server.action(facts(envelope={"from": {"address": "a@example.com"}, "to": []})) == ("reject", (451, "4.5.0"))


def test_the_same_request_is_decided_once(bridge: RunningBridge, server: MailServer) -> None:
    """A mail server that lost our answer gets it again; another mail under the same id is refused."""
    bridge.scanner.reply = answer(200, result("quarantine"))
    sent = facts(MAIL + b"once\r\n")
    count = len(bridge.scanner.submissions)
    answers = [server.ask(sent, "same") for _ in range(3)]
    assert answers[0] == answers[1] == answers[2] and answers[0][1]["set"][0]["value"] == "discard"
    assert len(bridge.scanner.submissions) == count + 1
    status, error = server.ask(facts(MAIL + b"another\r\n"), "same")
    assert (status, error["error"]["code"]) == (409, "REQUEST_ID_REUSED")
    with MailServer(bridge.port) as other:
        assert other.action(facts(MAIL + b"another\r\n"), "same")[0] == "discard"  # another registration


def test_a_deferred_mail_is_decided_again(bridge: RunningBridge, server: MailServer) -> None:
    """The same request id does not keep a mail from being scanned later."""
    bridge.scanner.reply = answer(200, result("undecided"))
    assert server.action(facts(), "later") == ("reject", (451, "4.7.1"))
    bridge.scanner.reply = answer(200, result())
    assert server.action(facts(), "later") == ("accept", None)


def test_a_running_request_is_joined(bridge: RunningBridge, server: MailServer) -> None:
    """The first client is gone, the second one gets the decision of the one scan."""
    release = asyncio.Event()

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        writer.write(answer(200, result("bounce")))

    sent = json.dumps(facts(MAIL + b"joined\r\n")).encode()
    bridge.scanner.reply_to = {b"joined": slowly}
    count = len(bridge.scanner.submissions)
    server.register()
    with MailServer(bridge.port) as second:
        ids = {
            "Authorization": f"Bearer {TOKEN}",
            "X-MTA-Hooks-Registration": server.registration,
            "X-MTA-Hooks-Request-Id": "joined",
        }
        server.http.request("POST", "/mta-hooks/hook", sent, ids)
        until(lambda: len(bridge.scanner.submissions) > count, "the scan")
        second.http.request("POST", "/mta-hooks/hook", sent, ids)
        until(lambda: _waiting(bridge) == 2, "the second request")
        server.http.close()
        until(lambda: _waiting(bridge) == 1, "the end of the first request")
        bridge.background.loop.call_soon_threadsafe(release.set)
        found = json.loads(second.http.getresponse().read())
    assert found["set"][1]["value"]["code"] == 550
    assert len(bridge.scanner.submissions) == count + 1


def _waiting(bridge: RunningBridge) -> int:
    server: Any = bridge.daemon.servers[0]
    return sum(entry.waiting for entry in server.context.replays._running.values())


def test_a_late_decision_answers_the_next_attempt(bridge: RunningBridge, server: MailServer) -> None:
    """The mail server's own patience is the deadline; what the scanner says later is used when the mail comes again."""
    hanging = Hanging()
    bridge.scanner.reply_to = {b"late": hanging}
    server.register(timeoutMs=2500)
    sent = facts(MAIL + b"late\r\n")
    count = len(bridge.scanner.submissions)
    assert server.action(sent, "late") == ("reject", (451, "4.4.7"))
    assert server.action(sent, "late") == ("reject", (451, "4.4.7"))
    bridge.background.loop.call_soon_threadsafe(hanging.release.set)
    until(lambda: server.action(sent, "late")[0] == "accept", "the late decision")
    assert len(bridge.scanner.submissions) == count + 1


def test_hold_and_personal_lists(tmp_path: Path) -> None:
    """`hold` asks the mail server to keep the mail; a recipient who blocks the sender is removed from it."""
    config: dict[str, Any] = {"personal_lists": {"allow_by": "users"}, "policy": {"quarantine": "hold"}}
    to = [{"address": f"{name}@example.org"} for name in ("anna", "ben", "cleo")]
    sent = facts(envelope={"from": {"address": "news@shop.example"}, "to": to})
    with hooks_bridge(tmp_path, config) as bridge, MailServer(bridge.port) as server:
        bridge.scanner.reply = answer(200, result("quarantine"))
        assert server.action(facts()) == ("quarantine", None)
        bridge.scanner.reply = answer(200, result())
        personal = Personal(bridge)
        personal.add("block", "anna@example.org", "news@shop.example")
        personal.add("block", "cleo@example.org", "news@shop.example")
        _, found = server.ask(sent)
        assert found["delete"] == [{"path": "/envelope/to/2"}, {"path": "/envelope/to/0"}]
        assert found["set"] == [{"path": "/action", "value": "accept"}]
        assert len(bridge.quarantined) == 1
        personal.remove_all()
