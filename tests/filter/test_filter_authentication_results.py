"""Authentication-Results over SMTP and LMTP, and behind a real Postfix as a milter."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest

from bridge.intake.milter.mail import MAX_STRIPPED
from bridge.testing import RunningBridge, answer, result, running_bridge
from tests.chain import Destination
from tests.intake.milter.mta_kit import Postfix, send_on
from tests.requirements import need

CONFIG = {"headers": {"authserv_id": "mx.example.org"}, "late_decisions": {"store": "off"}}
TAGS = ["auth:spf-softfail", "auth:dkim-pass", "auth:dmarc-pass"]
WRITTEN = "mx.example.org; spf=softfail smtp.mailfrom=example.org; dmarc=pass; dkim=pass"
OTHER, INNER = "other.example; spf=fail", "(mx.example.org) list.example; dkim=pass"
FORGED = [
    "Authentication-Results: mx.example.org; forged=pass",
    f"Authentication-Results: {OTHER}",
    'authentication-results:\r\n (x)\r\n "MX.example.org" 1; forged=pass',
    f"AUTHENTICATION-RESULTS: {INNER}",
    "Authentication-Results: mx.example.org; forged=pass",
]
MAIL = "\r\n".join(["From: a@example.org", *FORGED, "Subject: x", "", "Authentication-Results: mx.example.org", ""])


def results(content: bytes) -> list[str]:
    """The values from the top, unfolded."""
    return [" ".join(value.split()) for value in message_from_bytes(content).get_all("Authentication-Results", [])]


@pytest.fixture(scope="module", params=["smtp", "lmtp"])
def bridge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("bridge"), CONFIG, protocol=request.param) as running:
        running.is_lmtp = request.param == "lmtp"
        yield running


def send(bridge: Any, content: str) -> str:
    with (smtplib.LMTP if bridge.is_lmtp else smtplib.SMTP)("127.0.0.1", bridge.port) as client:
        client.ehlo("client.example")
        client.mail("a@example.org")
        client.rcpt("b@example.net")
        try:
            code, text = client.data(content)
        except smtplib.SMTPResponseException as exc:
            code, text = exc.smtp_code, exc.smtp_error
    return f"{code} {text.decode()}"


def test_only_fields_with_our_name_are_replaced(bridge: RunningBridge) -> None:
    """The scanner gets the mail without them; the next hop gets our results above those of others."""
    bridge.forget()
    bridge.scanner.reply = answer(200, result("deliver", tags=TAGS))
    assert send(bridge, MAIL).startswith("250 ")
    assert results(bridge.scanner.submissions[0].email) == [OTHER, INNER]
    (mail,) = bridge.next_hop.mails
    assert results(mail.content) == [WRITTEN, OTHER, INNER]
    assert mail.content.endswith(b"\r\n\r\nAuthentication-Results: mx.example.org\r\n")


def test_without_results_the_field_says_none(bridge: RunningBridge) -> None:
    """A scanner that checks nothing must not leave a forged result standing."""
    bridge.forget()
    assert send(bridge, MAIL).startswith("250 ")
    assert results(bridge.next_hop.mails[0].content) == ["mx.example.org; none", OTHER, INNER]


def test_ten_thousand_forged_fields_are_removed(bridge: RunningBridge) -> None:
    """And the fields of others between them stay."""
    bridge.forget()
    assert send(bridge, f"{FORGED[0]}\r\n{FORGED[1]}\r\n" * 5_000 + MAIL).startswith("250 ")
    assert results(bridge.next_hop.mails[0].content) == ["mx.example.org; none", *[OTHER] * 5_001, INNER]


def test_a_field_behind_a_mebibyte_of_header_is_refused(bridge: RunningBridge) -> None:
    """A header above our limit cannot be stripped."""
    bridge.forget()
    long = "Subject: x\r\nB: " + ("y" * 95 + "\r\n ") * 15_000 + "y\r\n"
    assert send(bridge, f"{long}{FORGED[0]}\r\n\r\nhello\r\n").startswith("554 5.6.0 ")
    assert send(bridge, f"{long}To: a\r\n\r\nhello\r\n").startswith("250 ")


def test_quarantined_mail_has_our_results(bridge: RunningBridge) -> None:
    """They are there when it is released."""
    bridge.forget()
    before = set(bridge.quarantined)
    bridge.scanner.reply = answer(200, result("quarantine", tags=TAGS))
    assert send(bridge, MAIL).startswith("250 ")
    (kept,) = set(bridge.quarantined) - before
    assert results(kept.read_bytes()) == [WRITTEN, OTHER, INNER]


@pytest.mark.parametrize("rest", [b";dmarc=pass;dkim=pass", b"\xc3\xa9"])
def test_a_long_helo_writes_no_results(bridge: RunningBridge, rest: bytes) -> None:
    """Of a bounce, the HELO is written: the client must not add results to ours, or fail its mail."""
    bridge.forget()
    bridge.scanner.reply = answer(200, result("deliver", tags=["auth:spf-none"]))
    with (smtplib.LMTP if bridge.is_lmtp else smtplib.SMTP)("127.0.0.1", bridge.port) as client:
        client.send((b"LHLO " if bridge.is_lmtp else b"EHLO ") + b"a." * 126 + b"aa" + rest + b"\r\n")
        assert client.getreply()[0] == 250
        assert client.docmd("MAIL FROM:<>")[0] == client.docmd("RCPT TO:<b@example.net>")[0] == 250
        assert client.data("Subject: x\r\n\r\nx\r\n")[0] == 250
    assert results(bridge.next_hop.mails[0].content) == ["mx.example.org; spf=none"]


def test_off_by_default(tmp_path: Path) -> None:
    """Without a name, nothing is written and nothing removed."""
    with running_bridge(tmp_path) as running:
        running.is_lmtp = False
        running.scanner.reply = answer(200, result("deliver", tags=TAGS))
        assert send(running, MAIL).startswith("250 ")
        assert len(results(running.next_hop.mails[0].content)) == len(FORGED)


def test_postfix_deletes_only_our_fields_and_inserts_ours_on_top(tmp_path: Path) -> None:
    """The mail server is told their numbers; more forged fields than it can delete are refused."""
    need("postfix", root=True)
    with (
        Destination() as destination,
        running_bridge(tmp_path, CONFIG, protocol="milter") as running,
        Postfix({"mx": f"  -o smtpd_milters=inet:127.0.0.1:{running.port}\n"}, destination) as postfix,
        smtplib.SMTP("127.0.0.1", postfix.port("mx")) as client,
    ):
        running.scanner.reply = answer(200, result("deliver", tags=TAGS))
        assert send_on(client, "resultsmark", *FORGED).startswith("250")
        assert results(destination.arrived("resultsmark").content) == [WRITTEN, OTHER, INNER]
        assert results(running.scanner.submissions[0].email) == [OTHER, INNER]
        assert send_on(client, "manymark", *[FORGED[0]] * (MAX_STRIPPED + 1)).startswith("550 5.6.0 ")
