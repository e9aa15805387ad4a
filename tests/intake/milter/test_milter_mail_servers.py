"""The milter intake behind real mail servers: tests that pass with both Postfix and Sendmail."""

from __future__ import annotations

import concurrent.futures
import itertools
import re
import smtplib
import threading
import time

import pytest

from bridge.mail.reply import Reply
from tests.intake.milter.fronts import SLOW_S, postfix_front, sendmail_front
from tests.intake.milter.mta_kit import BridgeProcess, big_mail, send, send_on
from tests.long_cases import few

MiB = 1024 * 1024
FRONTS = {"postfix": postfix_front, "sendmail": sendmail_front}
ONE_FRONT = pytest.mark.parametrize("front", few(FRONTS, 1), indirect=True)
_NUMBERS = itertools.count(1)


@pytest.fixture
def marker():
    """A word that only one mail contains."""
    return f"frontmark{next(_NUMBERS)}mark"


@pytest.fixture(scope="module", params=FRONTS)
def front(request):
    """The mail server, with listeners whose bridges answer, hang, are slow, or are killed."""
    with FRONTS[request.param]() as front:
        yield front


def test_delivered_mail_is_stamped_and_forged_fields_are_gone(front, marker):
    """Fields that only we may write come only from us, whatever the sender wrote."""
    forged = ["X-Scan-Decision: forged", "X-SCAN-DECISION: forged", "x-scan-other:\r\n forged", "X-Scan-Id : forged"]
    assert front.queue_id(send(front.port("mx"), marker, *forged))
    mail = front.destination.arrived(marker)
    assert mail.fields("X-Scan-Decision") == ["deliver"]
    assert mail.fields("X-Scan-Id") == ["ID1"]
    assert b"forged" not in mail.content
    assert b"Hello" in mail.content


@pytest.mark.parametrize(
    ("want", "expected"),
    [("reject", "550 5.7.1 Refused: 100% certain (ID1)"), ("tempfail", "451 4.7.1 Try again later (ID1)")],
)
def test_refusal_has_our_code_and_text(front, marker, want, expected):
    """The client receives our own text, including the percent sign, and nothing is queued."""
    assert send(front.port("mx"), marker, want=want) == expected
    assert not front.destination.find(marker)


@pytest.mark.parametrize("want", ["discard", "quarantine"])
def test_dropped_and_quarantined_mail_looks_accepted(front, marker, want):
    """The client receives 250, and the mail is not delivered."""
    assert front.is_discarded(front.queue_id(send(front.port("mx"), marker, want=want)))
    assert send(front.port("mx"), marker + "after").startswith("250")
    front.destination.arrived(marker + "after")
    assert len(front.destination.find(marker)) == 1


def test_held_mail_waits_until_it_is_released(front, marker):
    """It is in the mail server's own hold queue, with our fields and without forged ones, until it is released."""
    queue_id = front.queue_id(send(front.port("mx"), marker, "X-Scan-Decision: forged", want="hold"))
    assert front.is_held(queue_id)
    assert not front.destination.find(marker)
    front.release(queue_id)
    assert front.destination.arrived(marker).fields("X-Scan-Decision") == ["quarantine"]


def test_saturation_is_read_at_mail(front, marker):
    """No content is sent to a saturated bridge, and the next mail may pass."""
    early = front.bridge.filter.early
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.ehlo("client.example")
        front.bridge.call(lambda: setattr(early, "saturated", Reply(451, "4.3.2", "Busy, try again later")))
        try:
            assert client.mail("a@example.org") == (451, b"4.3.2 Busy, try again later")
        finally:
            front.bridge.call(lambda: setattr(early, "saturated", None))
        assert send_on(client, marker).startswith("250")
    front.destination.arrived(marker)


def test_scanner_learns_of_the_client_and_the_log_of_the_queue_id(front, marker):
    """We know address, HELO and queue id, and get the mail as the sender wrote it."""
    reply = send(front.port("mx"), marker, "X-Tight:no space", "X-Two:  two", "X-Fold: a\r\n\tb", "X-8bit: gr\xfc\xdf")
    seen = front.bridge.seen(marker)
    assert seen.tx.session.client.address == "127.0.0.1"
    assert seen.tx.session.client.helo == "client.example"
    assert seen.tx.session.client.ident == front.queue_id(reply)
    assert re.search(rb"\r\nX-Tight:no space\r\nX-Two:  two\r\nX-Fold: a\r\n\tb\r\n", seen.content)
    assert seen.content.endswith(b"\r\n\r\nHello\r\n")


def test_several_mails_on_one_connection(front, marker):
    """Mails share nothing, even after one that was refused and one that was aborted."""
    with smtplib.SMTP("127.0.0.1", front.port("mx")) as client:
        client.ehlo("client.example")
        assert send_on(client, marker + "A").startswith("250")
        assert send_on(client, marker + "B", want="reject").startswith("550")
        client.mail("given@example.org")
        client.rcpt("up@example.net")
        client.rset()
        assert send_on(client, marker + "C", rcpt="c@example.net").startswith("250")
    assert front.destination.arrived(marker + "C").recipients == [b"c@example.net"]
    assert front.bridge.seen(marker + "C").tx.envelope.addresses == ("c@example.net",)
    assert front.bridge.seen(marker + "A").tx.session.id == front.bridge.seen(marker + "C").tx.session.id


# --- bridges that fail ---


def test_hung_bridge_is_451(front, marker):
    """The mail server gives up on a bridge that does not answer; the client keeps the mail."""
    assert send(front.port("hung"), marker).startswith(front.without_us)
    assert not front.destination.find(marker)


def test_slow_scan_outlives_the_timeout_of_the_mail_server(front, marker):
    """PROGRESS restarts the timer for one answer, so a scan may take longer than that timer."""
    began = time.monotonic()
    assert send(front.port("slow"), marker).startswith("250")
    assert time.monotonic() - began > SLOW_S - 0.1
    front.destination.arrived(marker)


@ONE_FRONT
def test_dead_bridge_is_451_and_a_restarted_one_serves(front, marker):
    """Not running, killed during a scan, started again: no mail is lost, and none passes unscanned."""
    assert send(front.port("dead"), marker).startswith(front.without_us)
    with BridgeProcess(front.dead, scan_s=60) as bridge, concurrent.futures.ThreadPoolExecutor() as pool:
        reply = pool.submit(send, front.port("dead"), marker)
        bridge.says("scanning")
        bridge.kill()
        assert reply.result(30).startswith(front.without_us)
    assert not front.destination.find(marker)
    with BridgeProcess(front.dead):
        assert send(front.port("dead"), marker).startswith("250")
    front.destination.arrived(marker)


# --- limits and load ---


@ONE_FRONT
def test_mail_of_50_mib_passes_and_one_byte_more_is_552(front, marker):
    """The limit of the service applies to the mail, to the byte."""
    assert big_mail(front.port("mx"), marker, 50 * MiB).startswith("250")
    assert len(front.bridge.seen(marker).content) == 50 * MiB
    assert len(front.destination.arrived(marker).content) > 50 * MiB
    assert big_mail(front.port("mx"), marker + "over", 50 * MiB + 1).startswith("552 5.3.4 ")


@pytest.mark.long
def test_200_simultaneous_clients_are_all_served(front, marker):
    """There are as many connections as clients, and every mail gets its own decision."""
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
        front.destination.arrived(f"{marker}n{number}e")
    assert len(front.destination.find(marker)) == 50
