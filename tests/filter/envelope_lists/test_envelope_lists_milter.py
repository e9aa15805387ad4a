"""Envelope lists behind a real Postfix that uses us as a milter."""

from __future__ import annotations

import smtplib

import pytest

from tests.chain import Destination
from tests.filter.envelope_lists.envelope_lists_kit import BLOCK, door
from tests.filter.smtp_kit import mail_lines
from tests.intake.milter.mta_kit import Postfix
from tests.requirements import need


@pytest.fixture(scope="module")
def postfix(service, tmp_path_factory):
    need("postfix", root=True)
    lists = {"block": BLOCK, "block_recipients": ["closed-mailboxes"], "skip_scan": ["allowed-networks"]}
    with (
        Destination() as destination,
        door(tmp_path_factory.mktemp("milter"), service, lists, protocol="milter") as bridge,
        Postfix({"mx": f"  -o smtpd_milters=inet:127.0.0.1:{bridge.port}\n"}, destination) as postfix,
    ):
        yield postfix.port("mx"), bridge, destination


def session(port: int, address: str = "198.51.100.99") -> smtplib.SMTP:
    client = smtplib.SMTP("127.0.0.1", port, timeout=60)
    client.ehlo("client.example")
    client.docmd("XCLIENT", f"ADDR={address} NAME=[UNAVAILABLE]")
    client.ehlo("client.example")
    return client


def test_blocked_senders_and_clients_are_refused(postfix):
    """Postfix passes our reply to its client; the session continues."""
    port, _, _ = postfix
    with mail_lines() as lines, session(port) as client:
        for sender in ("bad@sender.example", "x@sub.evil.example"):
            client.docmd(f"MAIL FROM:<{sender}>")
            code, text = client.docmd("RCPT TO:<b@example.net>")
            assert (code, text.startswith(b"5.7.1 Refused by the lists of this server (id=")) == (550, True)
            client.docmd("RSET")
        assert client.docmd("MAIL FROM:<good@sender.example>")[0] == 250
    with session(port, "192.0.2.5") as client:
        client.docmd("MAIL FROM:<good@sender.example>")
        assert client.docmd("RCPT TO:<b@example.net>")[0] == 550
    to = "<b@example.net>"
    found = [(line["at"], line["list"], line["to"]) for line in lines]
    assert found == [("rcpt", "blocked-senders", to), ("rcpt", "blocked-domains", to)]


def test_one_recipient_is_refused_and_the_mail_goes_to_the_other(postfix):
    """At RCPT; the delivered mail was scanned."""
    port, bridge, destination = postfix
    before = len(bridge.scanner.submissions)
    with session(port) as client:
        client.docmd("MAIL FROM:<good@sender.example>")
        assert client.docmd("RCPT TO:<gone@example.net>")[0] == 550
        assert client.docmd("RCPT TO:<b@example.net>")[0] == 250
        assert client.data(b"Subject: doormilter1\r\n\r\nhello\r\n")[0] == 250
    assert destination.arrived("doormilter1").fields("X-Scan-Decision") == ["deliver"]
    assert len(bridge.scanner.submissions) == before + 1


def test_an_allowed_client_is_not_scanned(postfix):
    """A milter always learns the client's address; Postfix adds the field."""
    port, bridge, destination = postfix
    before = len(bridge.scanner.submissions)
    with session(port, "203.0.113.77") as client:
        client.sendmail("good@sender.example", ["b@example.net"], b"Subject: doormilter2\r\n\r\nhello\r\n")
    assert destination.arrived("doormilter2").fields("X-Scan-Unscanned") == ["list allowed-networks"]
    assert len(bridge.scanner.submissions) == before
