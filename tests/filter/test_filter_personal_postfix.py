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


def send(port: int, sender: str, marker: str, *recipients: str) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=60) as client:
        assert client.sendmail(sender, list(recipients), f"Subject: {marker}\r\n\r\nhello\r\n") == {}
