"""The whole daemon as a milter of a real Postfix, with the same filter, policy and metrics as over SMTP."""

from __future__ import annotations

import itertools
import json
import re
import smtplib
import urllib.request
from types import SimpleNamespace

import pytest

from bridge.testing import answer, result, running_bridge, until
from tests.chain import Destination
from tests.intake.milter.mta_kit import Postfix, send, send_on
from tests.requirements import need

_NUMBERS = itertools.count(1)


@pytest.fixture
def marker():
    """A word that only one mail contains."""
    return f"daemark{next(_NUMBERS)}mark"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Postfix, the daemon with a milter listener, a scripted scanner, and a destination where mail arrives."""
    need("postfix", root=True)
    config = {"scanner": {"status_interval": "100ms"}}
    with (
        Destination() as destination,
        running_bridge(tmp_path_factory.mktemp("daemon"), config, protocol="milter") as bridge,
        Postfix({"mx": f"  -o smtpd_milters=inet:127.0.0.1:{bridge.port}\n"}, destination) as postfix,
    ):
        yield SimpleNamespace(destination=destination, bridge=bridge, postfix=postfix, port=postfix.port("mx"))


@pytest.fixture
def scanner(whole):
    """The scripted scanner; it answers deliver until the test changes that."""
    whole.bridge.forget()
    return whole.bridge.scanner


def metrics(whole) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{whole.bridge.admin_port}/metrics", timeout=60) as page:
        return page.read().decode()


def test_delivered_mail_is_scanned_and_stamped(whole, scanner, marker):
    """The service gets envelope, client, and the mail without forged fields; the recipient gets our fields."""
    with smtplib.SMTP("127.0.0.1", whole.port) as client:
        client.ehlo("first.example")
        client.docmd("XCLIENT", "ADDR=198.51.100.7")
        client.ehlo("mail.example.com")
        send_on(client, marker, "X-Scan-Verdict: forged")
    mail = whole.destination.arrived(marker)
    assert mail.fields("X-Scan-Verdict") == ["test"]
    assert mail.fields("X-Scan-Decision") == ["deliver"]
    submission = scanner.submissions[-1]
    assert submission.parameters["borderMtaData"] == {
        "envelopeFrom": "a@example.org",
        "envelopeRecipients": ["b@example.net"],
        "remoteAddress": "198.51.100.7",
        "senderHelo": "mail.example.com",
    }
    assert b"forged" not in submission.email
    assert submission.email.endswith(b"\r\n\r\nHello\r\n")
    assert re.search(r'mails_total\{action="relay",decision="deliver",listener="test"\} [1-9]', metrics(whole))


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        ("bounce", "550 5.7.1 "),
        ("undecided", "451 4.7.1 "),
        ("nonsense", "451 4.7.1 "),
        ("drop", "250 2.0.0 "),
        ("quarantine", "250 2.0.0 "),
    ],
)
def test_decision_is_carried_out(whole, scanner, marker, decision, expected):
    """Bounce and undecided are refused with our id, drop and quarantine look accepted; none is delivered."""
    scanner.reply = answer(200, result(decision))
    reply = send(whole.port, marker)
    assert reply.startswith(expected)
    if decision == "quarantine":
        assert re.search(rf"^{reply.split()[-1]}!", whole.postfix.run("postqueue", "-p"), re.MULTILINE)
    elif not expected.startswith("250"):
        assert "id=" in reply
    assert not whole.destination.find(marker)


@pytest.mark.parametrize(
    ("misbehaviour", "expected"),
    [
        (answer(500, b"oops"), "451 4.3.0 "),
        (answer(200, b"<html>"), "451 4.3.0 "),
        (answer(401, b"{}"), "451 4.3.5 "),
        (answer(413, b"{}"), "552 5.3.4 "),
        (answer(429, b"{}"), "451 4.3.2 "),
    ],
    ids=["500", "HTML", "401", "413", "429"],
)
def test_scanner_that_misbehaves_delivers_nothing(whole, scanner, marker, misbehaviour, expected):
    """Without a decision there is no delivery, and the reply reveals no internals."""
    scanner.reply = misbehaviour
    reply = send(whole.port, marker)
    assert reply.startswith(expected)
    assert "127.0.0.1" not in reply
    assert not whole.destination.find(marker)


def test_red_service_is_451_at_mail_and_green_lets_mail_in_again(whole, scanner, marker):
    """When the service reports a full queue, Postfix reads it before it sends any content."""

    def at_mail(code):
        with smtplib.SMTP("127.0.0.1", whole.port) as client:
            client.ehlo("client.example")
            return client.mail("a@example.org")[0] == code

    green = scanner.status
    scanner.status = answer(200, json.dumps({"messageQueueStatus": "RED"}).encode())
    try:
        until(lambda: at_mail(451), "451 at MAIL")
        assert re.search(r'saturated_replies_total\{listener="test",stage="mail"\}', metrics(whole))
    finally:
        scanner.status = green
    until(lambda: at_mail(250), "250 at MAIL")
    assert send(whole.port, marker).startswith("250")
    whole.destination.arrived(marker)


def test_own_quarantine_and_fail_open_are_a_matter_of_policy(marker, tmp_path):
    """`quarantine: quarantine` puts the mail into our quarantine; `unavailable: relay` lets it pass, marked."""
    need("postfix", root=True)
    config = {"policy": {"quarantine": "quarantine", "unavailable": "relay"}}
    with (
        Destination() as destination,
        running_bridge(tmp_path, config, protocol="milter") as bridge,
        Postfix({"mx": f"  -o smtpd_milters=inet:127.0.0.1:{bridge.port}\n"}, destination) as postfix,
    ):
        bridge.scanner.reply = answer(200, result("quarantine"))
        assert send(postfix.port("mx"), marker).startswith("250")
        (kept,) = bridge.quarantined
        assert marker.encode() in kept.read_bytes()
        bridge.scanner.reply = answer(500)
        assert send(postfix.port("mx"), marker + "open").startswith("250")
        assert destination.arrived(marker + "open").fields("X-Scan-Unscanned") == ["unreachable"]
        assert len(destination.find(marker)) == 1
