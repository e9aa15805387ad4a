"""The milter intake behind a real Sendmail."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import re
import smtplib
import threading
from types import SimpleNamespace

import pytest
from milter_kit import OUTCOMES, forever
from mta_kit import Bridge, BridgeProcess, Sink, big_mail, free_port, send, send_on
from sendmail_kit import Sendmail

from bridge.mail.action import Action
from bridge.mail.reply import Reply

MiB = 1024 * 1024
_NUMBERS = itertools.count(1)


@pytest.fixture
def marker():
    """A word that is in one mail only."""
    return f"sendmark{next(_NUMBERS)}mark"


async def slowly(seen):
    await asyncio.sleep(3.5)
    return OUTCOMES[Action.RELAY]


@pytest.fixture(scope="module")
def front():
    """Sendmail with listeners whose bridges answer, hang, are slow, and are killed."""
    dead = free_port()
    with (
        Sink() as sink,
        Bridge() as bridge,
        Bridge(forever, progress_interval_s=1000) as hung,
        Bridge(slowly, progress_interval_s=0.3) as slow,
    ):
        filters = {
            "mx": f"S=inet:{bridge.port}@127.0.0.1, F=T, T=C:5s;S:10s;R:10s;E:5m",
            "hung": f"S=inet:{hung.port}@127.0.0.1, F=T, T=C:5s;S:2s;R:2s;E:2s",
            "slow": f"S=inet:{slow.port}@127.0.0.1, F=T, T=C:5s;S:2s;R:2s;E:1m",
            "dead": f"S=inet:{dead}@127.0.0.1, F=T, T=C:5s;S:10s;R:10s;E:5m",
        }
        ports = {name: free_port() for name in filters}
        lines = "".join(LISTENER.format(name=name, port=ports[name], equates=filters[name]) for name in filters)
        with Sendmail(lines, ports.values(), sink.port) as sendmail:
            yield SimpleNamespace(sink=sink, bridge=bridge, sendmail=sendmail, dead=dead, port=ports.__getitem__)


LISTENER = """\
MAIL_FILTER(`{name}', `{equates}')dnl
DAEMON_OPTIONS(`Port={port}, Addr=127.0.0.1, Name={name}, Listen=250, InputMailFilters={name}')dnl
"""


def test_delivered_mail_is_stamped_and_forged_fields_are_gone(front, marker):
    """Fields that only we may write come from us alone, whatever the sender wrote."""
    forged = ["X-Scan-Decision: forged", "X-SCAN-DECISION: forged", "x-scan-other:\r\n forged", "X-Scan-Id : forged"]
    assert send(front.port("mx"), marker, *forged).startswith("250 2.0.0")
    mail = front.sink.arrived(marker)
    assert mail.fields("X-Scan-Decision") == ["deliver"]
    assert mail.fields("X-Scan-Id") == ["ID1"]
    assert b"forged" not in mail.content


@pytest.mark.parametrize(
    ("want", "expected"),
    [("reject", "550 5.7.1 Refused: 100% certain (ID1)"), ("tempfail", "451 4.7.1 Try again later (ID1)")],
)
def test_refusal_has_our_code_and_text(front, marker, want, expected):
    """The client reads our own words, percent sign included, and nothing is queued."""
    assert send(front.port("mx"), marker, want=want) == expected
    assert not front.sink.find(marker)


@pytest.mark.parametrize("want", ["discard", "quarantine"])
def test_dropped_mail_and_mail_in_our_store_look_accepted(front, marker, want):
    """The client reads 250 and the mail goes nowhere."""
    reply = send(front.port("mx"), marker, want=want)
    assert reply.startswith("250 2.0.0")
    assert reply.split()[2] not in front.sendmail.sendmail("-bp") + front.sendmail.sendmail("-bp", "-qQ")
    assert send(front.port("mx"), marker + "after").startswith("250")
    front.sink.arrived(marker + "after")
    assert len(front.sink.find(marker)) == 1


def test_held_mail_waits_in_the_quarantine_until_it_is_released(front, marker):
    """Listed by `mailq -qQ`, not delivered, and released by `sendmail -qQ -qI... -Q`."""
    reply = send(front.port("mx"), marker, "X-Scan-Decision: forged", want="hold")
    queue_id = reply.split()[2]
    listing = front.sendmail.sendmail("-bp", "-qQ")
    assert queue_id in listing
    assert "held for review" in listing
    assert not front.sink.find(marker)
    front.sendmail.sendmail("-qQ", f"-qI{queue_id}", "-Q")
    front.sendmail.sendmail(f"-qI{queue_id}")
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
    """Address, HELO and queue id are known; the mail is what the sender wrote."""
    reply = send(front.port("mx"), marker, "X-Tight:no space", "X-Two:  two", "X-Fold: a\r\n\tb", "X-8bit: gr\xfc\xdf")
    seen = front.bridge.seen(marker)
    assert seen.tx.session.client.address == "127.0.0.1"
    assert seen.tx.session.client.helo == "client.example"
    assert seen.tx.session.client.ident == reply.split()[2]
    assert re.search(rb"\r\nX-Tight:no space\r\nX-Two:  two\r\nX-Fold: a\r\n\tb\r\n", seen.content)
    assert seen.content.endswith(b"\r\n\r\nHello\r\n")


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


def test_hung_bridge_is_451(front, marker):
    """With F=T a bridge that says nothing is given up, and the client keeps the mail."""
    assert send(front.port("hung"), marker).startswith("451")
    assert not front.sink.find(marker)


def test_slow_scan_outlives_the_time_out_of_sendmail(front, marker):
    """PROGRESS restarts Sendmail's timer per read, R=; the one for the whole, E=, it does not."""
    assert send(front.port("slow"), marker).startswith("250")
    front.sink.arrived(marker)


def test_dead_bridge_is_451_and_a_restarted_one_serves(front, marker):
    """Nobody listening, killed in the middle of a scan, started again: nothing is lost, nothing let through."""
    assert send(front.port("dead"), marker).startswith("451")
    with BridgeProcess(front.dead, scan_s=60) as bridge, concurrent.futures.ThreadPoolExecutor() as pool:
        reply = pool.submit(send, front.port("dead"), marker)
        bridge.says("scanning")
        bridge.kill()
        assert reply.result(30).startswith("451")
    assert not front.sink.find(marker)
    with BridgeProcess(front.dead):
        assert send(front.port("dead"), marker).startswith("250")
    front.sink.arrived(marker)


def test_mail_of_50_mib_passes_and_one_byte_more_is_552(front, marker):
    """The limit of the service is the limit of the mail, to the byte."""
    assert big_mail(front.port("mx"), marker, 50 * MiB).startswith("250")
    assert len(front.bridge.seen(marker).content) == 50 * MiB
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
