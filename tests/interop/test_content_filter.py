"""After the queue: Postfix's `content_filter`. Postfix has accepted the mail already, so nothing may be lost."""

from __future__ import annotations

import json
import re

from bridge.testing import Received
from tests.chain import Destination, Postfix, added_fields, send, until
from tests.interop.test_proxy_filter import STAMPED, mail

GTUBE = b"XJS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X\r\n"
EICAR = rb"X5O!P%@AP[4\PZX54(P^)7CC)7}$" + b"EICAR-STANDARD-ANTIVIRUS-TEST-FILE!$H+H*\r\n"


def queue_id(reply: str) -> str:
    found = re.fullmatch(r"250 2\.0\.0 Ok: queued as (\w+)", reply)
    assert found, reply
    return found[1]


def deferred(postfix, identity: str):
    """Wait until Postfix has tried and deferred the mail; returns its queue entry."""
    return until(
        lambda: [e for e in postfix.queue() if e["queue_id"] == identity and e["queue_name"] == "deferred"],
        f"{identity} to be deferred",
    )[0]


def test_clean_mail_passes_and_is_logged_with_postfix_queue_ids(installed, ports, destination, marker):
    """Our log line has the queue id of the Postfix in front and of the Postfix behind."""
    identity = queue_id(send(ports.queue_front, mail(marker), xclient="ADDR=192.0.2.9", helo="far.example"))
    added = added_fields(destination.arrived(marker).content, mail(marker))
    assert set(added) <= {"Received", *STAMPED}
    line = installed.bridge.logged(rf"(?m)^id=.* ident={identity}$")[0]
    assert "client=192.0.2.9" in line and "helo=far.example" in line and "next_id=" in line


def test_refused_mail_is_kept_and_nobody_gets_a_bounce(installed, ports, postfix, destination, marker):
    """A 5xx would make Postfix bounce to a sender address that may be forged: the profile quarantines instead."""
    identity = queue_id(send(ports.queue_front, mail(marker, body=GTUBE)))
    postfix.logged(rf"{identity}: .*status=sent \(250 2\.0\.0 Ok: queued as \w+\)")
    (kept,) = until(lambda: installed.quarantined(marker), "the mail in the quarantine")
    assert json.loads(kept.with_suffix(".json").read_text())["facts"]["decision"] == "bounce"
    until(lambda: not postfix.queue(), "Postfix's queue to be empty")
    assert not destination.find(marker)
    assert not destination.find("Undelivered Mail")


def test_malware_is_quarantined(installed, ports, postfix, destination, marker):
    """The EICAR file, as the embedded engine detects it."""
    identity = queue_id(send(ports.queue_front, mail(marker, body=EICAR)))
    postfix.logged(rf"{identity}: .*status=sent")
    (kept,) = until(lambda: installed.quarantined(marker), "the mail in the quarantine")
    assert json.loads(kept.with_suffix(".json").read_text())["facts"]["verdict"] == "malware"
    assert not destination.find(marker)


def test_mail_waits_in_postfix_while_the_scanner_is_down(installed, ports, postfix, destination, marker):
    """It is deferred with our text, and delivered after a flush when the scanner is back."""
    installed.service.stop()
    try:
        identity = queue_id(send(ports.queue_front, mail(marker)))
        reason = deferred(postfix, identity)["recipients"][0]["delay_reason"]
        assert "451 4.3.0 The scanner cannot be reached" in reason
        assert not destination.find(marker)
    finally:
        installed.service.start()
    until(lambda: flushed(postfix, destination, marker), "the mail to arrive")
    until(lambda: not postfix.queue(), "Postfix's queue to be empty")
    assert len(destination.find(marker)) == 1


def flushed(postfix: Postfix, destination: Destination, marker: str) -> list[Received]:
    """For a moment, the bridge may still know that the scanner was down."""
    postfix.run("postqueue", "-f")
    return destination.find(marker)


def test_mail_waits_in_postfix_while_the_bridge_is_down(installed, ports, postfix, destination, marker):
    """kill -9: nothing is lost, because the mail is still in Postfix's queue."""
    installed.bridge.kill()
    try:
        identity = queue_id(send(ports.queue_front, mail(marker)))
        deferred(postfix, identity)
    finally:
        installed.bridge.start()
    postfix.run("postqueue", "-f")
    destination.arrived(marker)
    until(lambda: not postfix.queue(), "Postfix's queue to be empty")
