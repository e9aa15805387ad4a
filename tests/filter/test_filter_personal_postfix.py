"""Personal lists behind a real Postfix that speaks milter: it removes the recipients who do not get the mail."""

from __future__ import annotations

import json
import smtplib
from pathlib import Path

from bridge.lists.personal_store import FILE, PersonalLists
from bridge.runtime.database import Database
from bridge.testing import answer, result, running_bridge, until
from tests.chain import Destination
from tests.intake.milter.mta_kit import Postfix
from tests.requirements import need

ANNA, BEN = "anna@example.net", "ben@example.net"


def test_postfix_delivers_to_the_others_alone(tmp_path: Path) -> None:
    """Anna has blocked one sender and allowed another: each time, only one of the two gets the mail, once."""
    need("postfix", root=True)
    config = {"personal_lists": {"allow_by": "users"}, "late_decisions": {"store": "off"}}
    with (
        running_bridge(tmp_path, config, protocol="milter", profile="postfix-milter") as bridge,
        Destination() as arrivals,
    ):
        lists = PersonalLists(Database.file(tmp_path / "state" / FILE))
        lists.block(ANNA, "shop.example")
        lists.allow(ANNA, "friend@example.org")
        until(lambda: len(bridge.daemon.personal.table) == 2, "the entries in memory")
        with Postfix({"mx": f"  -o smtpd_milters=inet:127.0.0.1:{bridge.port}\n"}, arrivals) as postfix:
            port = postfix.port("mx")
            send(port, "news@shop.example", "blocked", "Anna@Example.NET", BEN)
            assert arrivals.arrived("blocked").recipients == [BEN.encode()]
            (kept,) = bridge.quarantined
            record = json.loads(kept.with_suffix(".json").read_text())
            assert record["recipients"] == ["Anna@Example.NET"] and record["facts"]["rule"] == "personal_lists.block"
            bridge.scanner.reply = answer(200, result("quarantine", verdict="spam", tags=["auth:spf-pass"]))
            send(port, "friend@example.org", "allowed", ANNA, BEN)
            assert arrivals.arrived("allowed").recipients == [ANNA.encode()]
            other = next(path for path in bridge.quarantined if path != kept)
            assert json.loads(other.with_suffix(".json").read_text())["recipients"] == [BEN]
            assert len(arrivals.mails) == 2 and "hold" not in postfix.run("postqueue", "-p")
        lists.close()


DECISIONS = ["quarantine", "bounce", "drop"]


def test_postfix_kept_a_recipient_whose_removal_it_ignored(tmp_path: Path) -> None:
    """It removes source routes, and completes the recipients of local programs: it found nobody of the name we gave it.

    Ben got a mail that was to be withheld from him, because Anna has allowed its sender.
    """
    need("postfix", root=True)
    config = {"personal_lists": {"allow_by": "users"}, "late_decisions": {"store": "off"}}
    with (
        running_bridge(tmp_path, config, protocol="milter", profile="postfix-milter") as bridge,
        Destination() as arrivals,
    ):
        lists = PersonalLists(Database.file(tmp_path / "state" / FILE))
        lists.allow(ANNA, "friend@example.org")
        until(lambda: len(bridge.daemon.personal.table) == 1, "the entries in memory")
        milter = f"inet:127.0.0.1:{bridge.port}"
        settings = f"non_smtpd_milters = {milter}\nmyorigin = example.net\n"
        with Postfix({"mx": f"  -o smtpd_milters={milter}\n"}, arrivals, settings) as postfix:
            for decision in DECISIONS:
                bridge.scanner.reply = answer(200, result(decision, verdict="spam", tags=["auth:spf-pass"]))
                with smtplib.SMTP("127.0.0.1", postfix.port("mx"), timeout=60) as client:
                    client.ehlo()
                    client.mail("friend@example.org")
                    assert client.docmd("RCPT TO:<anna@example.net>")[0] == 250
                    assert client.docmd("RCPT TO:<@mx.example.net:ben@example.net>")[0] == 553
                    assert client.data(f"Subject: smtp-{decision}\r\n\r\nhello\r\n")[0] == 250
                assert arrivals.arrived(f"smtp-{decision}").recipients == [ANNA.encode()]
                program = ("-f", "friend@example.org", "-i", ANNA, "ben")
                before = len(bridge.scanner.submissions)
                postfix.run("sendmail", *program, text=f"Subject: program-{decision}\n\nhello\n")
                until(lambda seen=before: len(bridge.scanner.submissions) > seen, "the mail of a local program")
            bridge.scanner.reply = answer(200, result("deliver"))
            send(postfix.port("mx"), "other@example.org", "last", "cleo@example.net")
            arrivals.arrived("last")
            (held,) = [mail for mail in postfix.queue() if mail["queue_name"] == "hold"]
            assert [recipient["address"] for recipient in held["recipients"]] == [ANNA, BEN]
            assert not [mail for mail in arrivals.mails if BEN.encode() in mail.recipients]
        lists.close()


def send(port: int, sender: str, marker: str, *recipients: str) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
        assert client.sendmail(sender, list(recipients), f"Subject: {marker}\r\n\r\nhello\r\n") == {}
