"""The milter intake behind a real Postfix."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import re
import smtplib
import ssl
import threading
import time
from types import SimpleNamespace

import pytest
import trustme
from milter_kit import OUTCOMES, forever
from mta_kit import (
    Bridge,
    BridgeProcess,
    Postfix,
    Sink,
    big_mail,
    send,
    send_on,
)
from requirements import need

from bridge.mail.action import Action
from bridge.mail.reply import Reply
from bridge.testing import free_port, until

MiB = 1024 * 1024
_NUMBERS = itertools.count(1)


@pytest.fixture
def marker():
    """A word that is in one mail only."""
    return f"mark{next(_NUMBERS)}mark"


async def slowly(seen):
    await asyncio.sleep(2.5)
    return OUTCOMES[Action.RELAY]


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """Postfix with listeners whose bridges answer, hang, are slow, and are killed."""
    need("postfix", root=True)
    directory = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    cert = ca.issue_cert("front.example")
    cert.private_key_and_cert_chain_pem.write_to_path(str(directory / "cert.pem"))
    dead = free_port()
    with (
        Sink() as sink,
        Bridge() as bridge,
        Bridge(forever, progress_interval_s=1000) as hung,
        Bridge(slowly, progress_interval_s=0.2) as slow,
    ):
        milter = f"  -o smtpd_milters=inet:127.0.0.1:{bridge.port}\n"
        services = {
            "mx": milter + f"  -o smtpd_tls_security_level=may -o smtpd_tls_chain_files={directory}/cert.pem\n",
            "version 2": milter + "  -o milter_protocol=2\n",
            "version 4": milter + "  -o milter_protocol=4\n",
            "hung": f"  -o smtpd_milters=inet:127.0.0.1:{hung.port} -o milter_content_timeout=1s\n",
            "slow": f"  -o smtpd_milters=inet:127.0.0.1:{slow.port} -o milter_content_timeout=1s\n",
            "dead": f"  -o smtpd_milters=inet:127.0.0.1:{dead}\n",
        }
        settings = f"non_smtpd_milters = inet:127.0.0.1:{bridge.port}\nsmtpd_sasl_auth_enable = no\n"
        with Postfix(services, sink, settings) as postfix:
            yield SimpleNamespace(sink=sink, bridge=bridge, postfix=postfix, dead=dead, port=postfix.port)


def test_delivered_mail_is_stamped_and_forged_fields_are_gone(front, marker):
    """Fields that only we may write come from us alone, whatever the sender wrote."""
    forged = ["X-Scan-Decision: forged", "X-SCAN-DECISION: forged", "x-scan-other:\r\n forged", "X-Scan-Id : forged"]
    assert send(front.port("mx"), marker, *forged).startswith("250 2.0.0 Ok: queued as")
    mail = front.sink.arrived(marker)
    assert mail.fields("X-Scan-Decision") == ["deliver"]
    assert mail.fields("X-Scan-Id") == ["ID1"]
    assert b"forged" not in mail.content
    assert b"Hello" in mail.content


@pytest.mark.parametrize("service", ["version 2", "version 4"])
def test_older_protocol_versions_deliver_and_stamp(front, marker, service):
    """A Postfix that is told to speak an old milter protocol is served alike."""
    send(front.port(service), marker, "X-Scan-Id: forged", "X-Tight:x")
    mail = front.sink.arrived(marker)
    assert mail.fields("X-Scan-Id") == ["ID1"]
    assert front.bridge.seen(marker).content.startswith(b"Subject: mark")
    assert front.bridge.seen(marker).tx.session.client.address == "127.0.0.1"


def test_refused_mail_is_550_with_our_text(front, marker):
    """The client reads our own words, percent sign included, and nothing is queued."""
    assert send(front.port("mx"), marker, want="reject") == "550 5.7.1 Refused: 100% certain (ID1)"
    assert not front.sink.find(marker)


def test_undecided_mail_is_451_with_our_text(front, marker):
    """The client is told to try again."""
    assert send(front.port("mx"), marker, want="tempfail") == "451 4.7.1 Try again later (ID1)"


@pytest.mark.parametrize("want", ["discard", "quarantine"])
def test_dropped_mail_and_mail_in_our_store_look_accepted(front, marker, want):
    """The client reads 250 and the mail goes nowhere."""
    reply = send(front.port("mx"), marker, want=want)
    assert reply.startswith("250 2.0.0 Ok: queued as")
    front.postfix.logged(rf"{reply.split()[-1]}: milter-discard")
    assert send(front.port("mx"), marker + "after").startswith("250")
    front.sink.arrived(marker + "after")
    assert len(front.sink.find(marker)) == 1


def test_held_mail_waits_in_the_hold_queue_until_it_is_released(front, marker):
    """`postsuper -H` delivers it, stamped and free of forged fields."""
    reply = send(front.port("mx"), marker, "X-Scan-Decision: forged", want="hold")
    queue_id = reply.split()[-1]
    assert reply.startswith("250 2.0.0 Ok: queued as")
    assert re.search(rf"^{queue_id}!", front.postfix.run("postqueue", "-p"), re.MULTILINE)
    front.postfix.logged(rf"{queue_id}: milter-hold: END-OF-MESSAGE")
    front.postfix.run("postsuper", "-H", queue_id)
    front.postfix.run("postqueue", "-f")
    assert front.sink.arrived(marker).fields("X-Scan-Decision") == ["quarantine"]


def test_saturation_is_read_at_mail(front, marker):
    """No content is sent to a bridge that has no room, and the next mail may pass."""
    filter_ = front.bridge.filter
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.ehlo("client.example")
        front.bridge.call(lambda: setattr(filter_, "saturated", Reply(451, "4.3.2", "Busy, try again later")))
        try:
            assert client.mail("a@example.org") == (451, b"4.3.2 Busy, try again later")
        finally:
            front.bridge.call(lambda: setattr(filter_, "saturated", None))
        assert send_on(client, marker).startswith("250")
    front.sink.arrived(marker)


def test_scanner_learns_of_the_client_and_the_log_of_the_queue_id(front, marker):
    """The address, the name in HELO, the user and the queue id are Postfix's client's, not Postfix's."""
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
    """The address comes without Postfix's prefix, and HELO may be anything."""
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
    """Protocol and cipher of the SMTP session are in our log line."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.starttls(context=context)
        send_on(client, marker)
    assert re.fullmatch(r"TLSv1\.\d/[A-Z0-9_]+", front.bridge.seen(marker).tx.session.tls or "")


def test_mail_is_rebuilt_as_it_was_sent(front, marker):
    """Odd headers, dots, 8 bit and long lines reach the scanner as the sender wrote them."""
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


def test_several_mails_on_one_connection(front, marker):
    """Each mail is its own, also after one that was refused and one that was given up."""
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.ehlo("client.example")
        assert send_on(client, marker + "A").startswith("250")
        assert send_on(client, marker + "B", want="reject").startswith("550")
        client.mail("given@example.org")
        client.rcpt("up@example.net")
        client.rset()
        assert send_on(client, marker + "C", rcpt="c@example.net").startswith("250")
    assert front.sink.arrived(marker + "C").recipients == ("c@example.net",)
    assert front.bridge.seen(marker + "C").tx.envelope.addresses == ("c@example.net",)
    assert front.bridge.seen(marker + "A").tx.session.id == front.bridge.seen(marker + "C").tx.session.id


def test_mail_given_to_sendmail_on_the_machine_is_scanned_too(front, marker):
    """`non_smtpd_milters`: no SMTP client, and still one decision per mail."""
    front.postfix.run(
        "sendmail", "-f", "a@example.org", "b@example.net", text=f"Subject: {marker}\nX-Scan-Id: forged\n\nHello\n"
    )
    assert front.sink.arrived(marker).fields("X-Scan-Id") == ["ID1"]
    assert front.bridge.seen(marker).tx.session.client.address == "127.0.0.1"


def test_unix_socket_serves_alike(front, marker, tmp_path_factory):
    """A unix socket in a place that Postfix can reach."""
    path = f"{front.postfix.directory}/bridge"
    with (
        Bridge(path=path) as bridge,
        Sink() as sink,
        Postfix({"mx": f"  -o smtpd_milters=unix:{path}\n"}, sink) as postfix,
    ):
        send(postfix.port("mx"), marker)
        assert sink.arrived(marker).fields("X-Scan-Id") == ["ID1"]
        assert bridge.seen(marker).tx.session.peer == "unix"


# --- trouble ---


def test_hung_bridge_is_451(front, marker):
    """A bridge that says nothing at all is given up by Postfix; the client keeps the mail."""
    assert send(front.port("hung"), marker).startswith("451 4.7.1")
    assert not front.sink.find(marker)


def test_slow_scan_outlives_the_time_out_of_postfix(front, marker):
    """PROGRESS restarts Postfix's timer: a scan of 2.5 s passes where 1 s of silence does not."""
    began = time.monotonic()
    assert send(front.port("slow"), marker).startswith("250")
    assert time.monotonic() - began > 2.4
    front.sink.arrived(marker)


def test_dead_bridge_is_451_and_a_restarted_one_serves(front, marker):
    """Nobody listening, killed in the middle of a scan, started again: nothing is lost, nothing let through."""
    assert send(front.port("dead"), marker).startswith("451 4.7.1")
    with BridgeProcess(front.dead, scan_s=60) as bridge, concurrent.futures.ThreadPoolExecutor() as pool:
        reply = pool.submit(send, front.port("dead"), marker)
        bridge.says("scanning")
        bridge.kill()
        assert reply.result(30).startswith("451 4.7.1")
    assert not front.sink.find(marker)
    with BridgeProcess(front.dead):
        assert send(front.port("dead"), marker).startswith("250")
    front.sink.arrived(marker)


def test_bridge_killed_again_and_again_loses_no_accepted_mail(front, marker):
    """Whatever was accepted has arrived, whenever the bridge died."""
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
        for round_ in range(4):
            with BridgeProcess(front.dead, scan_s=0.01) as bridge:
                goal = len(accepted) + 20
                until(lambda goal=goal: len(accepted) >= goal, f"mails of round {round_}")
                bridge.kill()
        over.set()
        for future in clients:
            future.result(30)
    assert len(accepted) >= 80
    for word in accepted:
        front.sink.arrived(word)


# --- size and number ---


def test_mail_of_50_mib_passes_and_one_byte_more_is_552(front, marker):
    """The limit of the service is the limit of the mail, to the byte."""
    assert big_mail(front.port("mx"), marker, 50 * MiB).startswith("250")
    assert len(front.bridge.seen(marker).content) == 50 * MiB
    assert len(front.sink.arrived(marker, deadline_s=60).content) > 50 * MiB
    assert big_mail(front.port("mx"), marker + "over", 50 * MiB + 1).startswith("552 5.3.4 ")


def test_200_clients_at_once_are_all_served(front, marker):
    """As many connections as clients, and every mail gets its own decision."""
    wants = ["relay", "reject", "discard", "tempfail"]
    codes = {"relay": "250", "reject": "550", "discard": "250", "tempfail": "451"}
    ready = threading.Barrier(200)

    def client(number):
        want = wants[number % 4]
        with smtplib.SMTP("127.0.0.1", front.port("mx"), timeout=60) as smtp:
            smtp.ehlo("client.example")
            ready.wait(60)
            return codes[want], send_on(smtp, f"{marker}n{number}e", want=want)[:3]

    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        for expected, code in pool.map(client, range(200)):
            assert code == expected
    for number in range(0, 200, 4):
        front.sink.arrived(f"{marker}n{number}e")
    assert len(front.sink.find(marker)) == 50
