"""The milter intake behind a real Postfix: what only Postfix can do. `test_milter_mail_servers.py` has the rest."""

from __future__ import annotations

import concurrent.futures
import itertools
import re
import smtplib
import ssl
import threading
from types import SimpleNamespace

import pytest
import trustme

from bridge.testing import free_port, until
from tests.chain import Destination
from tests.intake.milter.mta_kit import Bridge, BridgeProcess, Postfix, send, send_on
from tests.requirements import need

_NUMBERS = itertools.count(1)


@pytest.fixture
def marker():
    """A word that only one mail contains."""
    return f"mark{next(_NUMBERS)}mark"


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Postfix with listeners that speak old versions of the protocol, one with TLS, and one whose bridge is killed."""
    need("postfix", root=True)
    directory = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    cert = ca.issue_cert("front.example")
    cert.private_key_and_cert_chain_pem.write_to_path(str(directory / "cert.pem"))
    dead = free_port()
    with Destination() as destination, Bridge() as bridge:
        milter = f"  -o smtpd_milters=inet:127.0.0.1:{bridge.port}\n"
        services = {
            "mx": milter + f"  -o smtpd_tls_security_level=may -o smtpd_tls_chain_files={directory}/cert.pem\n",
            "version 2": milter + "  -o milter_protocol=2\n",
            "version 4": milter + "  -o milter_protocol=4\n",
            "dead": f"  -o smtpd_milters=inet:127.0.0.1:{dead}\n",
        }
        settings = f"non_smtpd_milters = inet:127.0.0.1:{bridge.port}\nsmtpd_sasl_auth_enable = no\n"
        with Postfix(services, destination, settings) as postfix:
            yield SimpleNamespace(destination=destination, bridge=bridge, postfix=postfix, dead=dead, port=postfix.port)


@pytest.mark.parametrize("service", ["version 2", "version 4"])
def test_older_protocol_versions_deliver_and_stamp(front, marker, service):
    """A Postfix that is configured for an old milter protocol is served in the same way."""
    send(front.port(service), marker, "X-Scan-Id: forged", "X-Tight:x")
    mail = front.destination.arrived(marker)
    assert mail.fields("X-Scan-Id") == ["ID1"]
    assert front.bridge.seen(marker).content.startswith(b"Subject: mark")
    assert front.bridge.seen(marker).tx.session.client.address == "127.0.0.1"


def test_scanner_learns_of_the_client_and_the_log_of_the_queue_id(front, marker):
    """Address, HELO, user and queue id are those of Postfix's client, not of Postfix."""
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.ehlo("first.example")
        client.docmd("XCLIENT", "NAME=mail.example.com ADDR=198.51.100.7 LOGIN=ann")
        client.ehlo("mail.example.com")
        reply = send_on(client, marker)
    seen = front.bridge.seen(marker)
    assert seen.tx.session.client.address == "198.51.100.7"
    assert seen.tx.session.client.name == "mail.example.com"
    assert seen.tx.session.client.helo == "mail.example.com"
    assert seen.tx.session.client.login == "ann"
    assert seen.tx.session.client.ident == reply.split()[-1]


def test_client_with_an_ipv6_address_and_a_strange_name(front, marker):
    """The address has no `IPv6:` prefix, and HELO may be anything."""
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.ehlo("first.example")
        assert client.docmd("XCLIENT", "NAME=[UNAVAILABLE] ADDR=IPV6:2001:db8::7")[0] == 220
        client.helo("<script>")
        send_on(client, marker, sender="")
    tx = front.bridge.seen(marker).tx
    assert tx.session.client.address == "2001:db8::7"
    assert tx.session.client.helo == "<script>"
    assert tx.session.client.login is None
    assert tx.session.client.name is None
    assert tx.envelope.sender == ""


def test_tls_between_client_and_postfix_is_known(front, marker):
    """Our log line has the protocol and cipher of the SMTP session."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.starttls(context=context)
        send_on(client, marker)
    assert re.fullmatch(r"TLSv1\.\d/[A-Z0-9_]+", front.bridge.seen(marker).tx.session.tls or "")


def test_mail_is_rebuilt_as_it_was_sent(front, marker):
    """Unusual headers, dots, 8-bit bytes and long lines reach the scanner as the sender wrote them."""
    odd = ["X-Tight:no space", "X-Two:  two", "X-Tab:\ttab", "X-Empty:", "X-Fold: a\r\n\tb\r\n c", "X-8bit: gr\xfc\xdf"]
    body = ".\r\n..\r\n" + "x" * 30000 + "\r\n\xe4\xf6\r\n"
    head = "\r\n".join([f"Subject: {marker}", "From: a@example.org", "Date: x", "Message-Id: <x@y>", *odd])
    mail = f"{head}\r\n\r\n{body}".encode("latin-1")
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.sendmail("a@example.org", ["b@example.net", "c@example.net"], mail, ["BODY=8BITMIME"])
    seen = front.bridge.seen(marker)
    assert seen.content == mail
    assert seen.tx.envelope.addresses == ("b@example.net", "c@example.net")
    assert any(param.startswith("BODY=8BITMIME") for param in seen.tx.envelope.params)


def test_mail_given_to_sendmail_on_the_machine_is_scanned_too(front, marker):
    """`non_smtpd_milters`: there is no SMTP client, but still one decision per mail."""
    front.postfix.run(
        "sendmail", "-f", "a@example.org", "b@example.net", text=f"Subject: {marker}\nX-Scan-Id: forged\n\nHello\n"
    )
    assert front.destination.arrived(marker).fields("X-Scan-Id") == ["ID1"]
    assert front.bridge.seen(marker).tx.session.client.address == "127.0.0.1"


def test_unix_socket_works_like_tcp(front, marker, tmp_path_factory):
    """A unix socket in a directory that Postfix can reach."""
    path = f"{front.postfix.directory}/bridge"
    with (
        Bridge(path=path) as bridge,
        Destination() as destination,
        Postfix({"mx": f"  -o smtpd_milters=unix:{path}\n"}, destination) as postfix,
    ):
        send(postfix.port("mx"), marker)
        assert destination.arrived(marker).fields("X-Scan-Id") == ["ID1"]
        assert bridge.seen(marker).tx.session.peer == "unix"


@pytest.mark.parametrize("rounds", [2, pytest.param(4, marks=pytest.mark.long)])
def test_bridge_killed_again_and_again_loses_no_accepted_mail(front, marker, rounds):
    """Every accepted mail has arrived, whenever the bridge was killed."""
    accepted, over = [], threading.Event()

    def client(number):
        for count in range(10_000):
            if over.is_set():
                return
            word = f"{marker}c{number}n{count}e"
            if send(front.port("dead"), word).startswith("250"):
                accepted.append(word)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, number) for number in range(4)]
        for round_ in range(rounds):
            with BridgeProcess(front.dead, scan_s=0.01) as bridge:
                goal = len(accepted) + 20
                until(lambda goal=goal: len(accepted) >= goal, f"mails of round {round_}")
                bridge.kill()
        over.set()
        for future in clients:
            future.result(30)
    assert len(accepted) >= 20 * rounds
    for word in accepted:
        front.destination.arrived(word)
