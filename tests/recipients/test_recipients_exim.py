"""A real Exim sends a mail for three recipients: with PRDR, over LMTP, and over plain SMTP."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.recipients.exim_kit import deliver
from tests.recipients.recipients_kit import arrived, bridge_before, next_hop

PEOPLE = ("b@example.org", "c@example.org", "d@example.org")
MAIL = "Subject: x\n\nhello\n"


def lines(log: str, mark: str) -> list[str]:
    """The addresses in log lines with this mark: => delivered, -> delivered as well, == deferred, ** failed."""
    return sorted(re.findall(rf" {re.escape(mark)} (\S+)@example\.org ", log))


@pytest.mark.parametrize("protocol", ["prdr", "lmtp"])
def test_exim_learns_the_result_for_each_recipient(tmp_path: Path, protocol: str) -> None:
    """One is delivered, one is deferred and stays in Exim's queue, one fails and is reported to the sender."""
    with (
        next_hop(RCPT_c=b"550 5.1.1 No such user", RCPT_d=b"450 4.2.1 Try later") as hop,
        bridge_before(hop, tmp_path, protocol) as bridge,
    ):
        options = "hosts_try_prdr = *" if protocol == "prdr" else "protocol = lmtp"
        log, queue = deliver(bridge.port, PEOPLE, options, MAIL)
        assert (lines(log, "=>"), lines(log, "=="), lines(log, "**")) == (["b"], ["d"], ["c"]), log
        assert ("PRDR" in log) == (protocol == "prdr")
        assert "550 5.1.1 No such user" in log and "450 4.2.1 Try later" in log
        assert "d@example.org" in queue
        assert "D b@example.org" in queue and "D c@example.org" in queue  # D: delivered or failed
        assert arrived(hop) == [["b"]]


def test_exim_with_prdr_when_all_recipients_succeed_and_when_all_fail(tmp_path: Path) -> None:
    with next_hop() as hop, bridge_before(hop, tmp_path, "prdr") as bridge:
        log, queue = deliver(bridge.port, PEOPLE, "hosts_try_prdr = *", MAIL)
        assert sorted(lines(log, "=>") + lines(log, "->")) == ["b", "c", "d"], log
        assert queue.strip() == "" and arrived(hop) == [["b", "c", "d"]]
        hop.replies[b"."] = b"451 4.3.0 Not now"
        log, queue = deliver(bridge.port, PEOPLE, "hosts_try_prdr = *", MAIL)
        assert lines(log, "==") == ["b", "c", "d"], log
        assert all(person in queue for person in PEOPLE)


def test_exim_without_prdr_keeps_the_mail_for_all(tmp_path: Path) -> None:
    """Plain SMTP: one reply for all, so no recipient gets the mail, and none loses it."""
    with next_hop(RCPT_d=b"450 4.2.1 Try later") as hop, bridge_before(hop, tmp_path, "smtp") as bridge:
        log, queue = deliver(bridge.port, PEOPLE, "hosts_try_prdr =", MAIL)
        assert lines(log, "==") == ["b", "c", "d"] and log.count("450 4.2.1 Try later") >= 3, log
        assert all(person in queue for person in PEOPLE) and arrived(hop) == []
        hop.replies.clear()
        (tmp_path / "good").mkdir()
        log, queue = deliver(bridge.port, PEOPLE, "hosts_try_prdr =", MAIL)
        assert sorted(lines(log, "=>") + lines(log, "->")) == ["b", "c", "d"], log
        assert queue.strip() == "" and arrived(hop) == [["b", "c", "d"]]
