"""What `explain` tells about mail whose end the bridge did not see, or that ended differently for its recipients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.explain.surroundings import surroundings
from bridge.filter.envelope_lists import EnvelopeLists, EnvelopeListsSettings
from bridge.history.entry import LaterEvent, MailEntry
from bridge.history.mails import Mail, gather, whole
from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryStore
from bridge.history.story import Story, tell
from bridge.history.story_context import Surroundings
from bridge.testing import Background, NextHop, RunningBridge, WaitingHop, answer, result, running_bridge, until
from tests.filter.smtp_kit import Client, Gate, send
from tests.history.history_kit import NOON, add, find, mail

CONTENT = b"Message-ID: <1@x>\r\nSubject: x\r\n\r\nx\r\n"
SENDER = "s@sender.example"


def stories(bridge: RunningBridge, is_ready: Callable[[list[Mail]], object] = bool, **query: Any) -> list[Story]:
    """As soon as they are recorded, the newest first."""
    store = SqliteHistory(bridge.directory / "state" / "history")

    def mails() -> list[Mail] | None:
        found = [whole(store, each) for each in gather(store.find(HistoryQuery(**query)))]
        return found if is_ready(found) else None

    found = until(mails, "the history")
    assert found is not None
    return [tell(each, surroundings(bridge.daemon.config, each.last, {}), None) for each in found]


def text(told: Story) -> str:
    return "\n".join([told.fate, *(step.text for step in told.steps), told.now, *told.commands])


@contextmanager
def next_hops(*hops: NextHop) -> Iterator[Background]:
    background = Background()
    for hop in hops:
        background.run(hop.start())
    try:
        yield background
    finally:
        for hop in hops:
            background.run(hop.stop())
        background.close()


def hand_over(client: Client) -> None:
    client.begin(sender=SENDER)
    client.say("DATA")
    client.content(CONTENT)


def send_lmtp(bridge: RunningBridge, *recipients: str) -> list[str]:
    with Client(bridge) as client:
        client.say("LHLO x")
        client.say(f"MAIL FROM:<{SENDER}>")
        for recipient in recipients:
            client.say(f"RCPT TO:<{recipient}>")
        client.say("DATA")
        client.content(CONTENT)
        return [client.read() for _ in recipients]


# No answer


@pytest.mark.parametrize("reply", [b"250 2.0.0 Ok: queued as LATE1", b"550 5.7.1 No", b""])
def test_a_mail_that_the_next_hop_had_was_called_undecided(tmp_path: Path, reply: bytes) -> None:
    """Its client went away during the relay: the story said that the scanner was still working on it."""
    hop = WaitingHop(replies={b".": reply})
    with next_hops(hop) as background, running_bridge(tmp_path, {"relay": {"next_hop": hop.url}}) as bridge:
        with Client(bridge) as client:
            hand_over(client)
            assert hop.heard.acquire(timeout=60)
        [early] = stories(bridge)
        background.loop.call_soon_threadsafe(hop.go_on.set)
        [told] = stories(bridge, lambda mails: mails[0].later) if reply else [early]
    assert early.fate.endswith("was abandoned by the client while it was being handed on, and may have been delivered")
    assert "was scanning it" not in text(told) and "scanned it in" in text(told)
    assert "Rule policy.deliver applied: the service's decision was `deliver`." in text(told)
    assert "received all of it, but its answer did not come in time: it may have accepted it." in text(told)
    assert f"It is unknown whether {hop.url} has accepted it for <b@example.org>" in early.now
    if reply.startswith(b"250"):
        assert told.fate.endswith("was delivered to the next hop, which answered too late for the client")
        assert "the next hop accepted it to b@example.org: 250 2.0.0 Ok: queued as LATE1." in text(told)
        assert told.now.endswith("The next hop has it for <b@example.org>, who may get it twice.")
    elif reply:
        assert told.fate.endswith("while it was being handed on, and then refused by the next hop")
        assert "unknown" not in told.now and "may get it twice" not in told.now


class Hesitating(WaitingHop):
    """Does not answer DATA."""

    def _say(self, writer: asyncio.StreamWriter, verb: bytes, text: bytes) -> bool:
        if verb == b"DATA":
            self.heard.release()
            return True
        return super()._say(writer, verb, text)


def test_a_mail_whose_client_went_away_before_the_dot_was_not_delivered(tmp_path: Path) -> None:
    """The next hop has no mail without the final dot: nobody need look for it there."""
    hop = Hesitating()
    with next_hops(hop), running_bridge(tmp_path, {"relay": {"next_hop": hop.url}}) as bridge:
        with Client(bridge) as client:
            hand_over(client)
            assert hop.heard.acquire(timeout=60)
        [told] = stories(bridge)
    assert told.fate.endswith("was abandoned by the client while it was being handed on")
    assert "may have" not in text(told) and "unknown" not in told.now


def test_a_next_hop_without_an_answer_was_said_to_have_refused(tmp_path: Path) -> None:
    hop = WaitingHop()
    with next_hops(hop), running_bridge(tmp_path, {"relay": {"next_hop": hop.url, "timeout": "1s"}}) as bridge:
        assert send(bridge, CONTENT, sender=SENDER).startswith("451 4.4.2")
        [told] = stories(bridge)
    assert told.fate.endswith("was deferred, and may have been delivered")
    assert "did not accept it" not in text(told)
    assert "received all of it, but its answer did not come in time (next hop: no answer in time)" in text(told)
    assert "keeps it and tries again" in told.now and "delivers it a second time" in told.now


@pytest.mark.parametrize("where", ["scanner", "next hop"])
def test_a_stop_of_the_bridge_was_blamed_on_the_client(tmp_path: Path, where: str) -> None:
    hop = WaitingHop()
    with next_hops(hop), running_bridge(tmp_path, {"relay": {"next_hop": hop.url, "timeout": "1s"}}) as bridge:
        gate = Gate(bridge, answer(200, result("deliver"))) if where == "scanner" else None
        with Client(bridge) as client:
            hand_over(client)
            if gate is not None:
                gate.arrived()
            else:
                assert hop.heard.acquire(timeout=60)
            bridge.background.run(bridge.daemon.stop(0.1))
            assert client.read().startswith("421 ")
        [told] = stories(bridge)
        if gate is not None:
            gate.open()
    assert "disconnected" not in text(told) and "abandoned" not in told.fate
    assert "was interrupted by a stop of the listener " in told.fate
    assert "The listener was closed, and the mail server in front of the bridge received no answer" in text(told)
    assert ("may have been delivered" in told.fate) is (where == "next hop")
    assert ("was scanning it when the listener was closed" in text(told)) is (where == "scanner")


def test_a_stop_during_the_content_was_blamed_on_the_client(tmp_path: Path) -> None:
    with running_bridge(tmp_path) as bridge:
        with Client(bridge) as client:
            client.begin(sender=SENDER)
            client.say("DATA")
            bridge.background.run(bridge.daemon.stop(0.1))
        [told] = stories(bridge)
    assert "was interrupted by a stop of the listener before all of its content was sent" in told.fate
    assert "started to send it to listener test, which closed before the end" in text(told)


# Recipients with different answers


def test_a_mail_at_several_next_hops_is_found_by_each_queue_id(tmp_path: Path) -> None:
    """Only the first next hop was named, with the queue ids of all of them as one."""
    one, other = (
        NextHop(replies={b".": b"250 Ok: queued as AAAA1"}),
        NextHop(replies={b".": b"250 Ok: queued as BBBB2"}),
    )
    with next_hops(one, other):
        relay = {"next_hop": one.url, "routes": [{"recipient_domains": ["b.example"], "next_hop": other.url}]}
        with running_bridge(tmp_path, {"relay": relay}, protocol="lmtp") as bridge:
            send_lmtp(bridge, "x@a.example", "y@b.example")
            by_each = [stories(bridge, what=queue_id)[0] for queue_id in ("AAAA1", "BBBB2")]
    told = by_each[0]
    assert by_each == [told, told]
    assert f"The next hop {one.url} accepted it for <x@a.example> as AAAA1 after" in text(told)
    assert f"The next hop {other.url} accepted it for <y@b.example> as BBBB2 after" in text(told)
    assert f"{one.url} has it for <x@a.example>, queue id AAAA1. {other.url} has it for <y@b.ex" in told.now
    assert "grep -F BBBB2 /var/log/mail.log" in told.commands


def test_each_queue_id_leads_to_the_mail(store: HistoryStore) -> None:
    """In live and finished segments and in PostgreSQL; part of an id is none."""
    add(store, *(mail(number, next_id=f"Q{number}") for number in range(4)), mail(9, next_id="AAAA1,BBBB2"))
    add(store, *(mail(number) for number in range(10, 13)))
    assert find(store, what="AAAA1") == find(store, what="BBBB2") == find(store, what="AAAA1,BBBB2") == ["ID0009"]
    assert find(store, what="AAAA") == find(store, what="next:AAAA1") == find(store, recipient="AAAA1") == []


def test_each_recipient_has_the_story_of_its_own_answer(tmp_path: Path) -> None:
    """One was accepted, one refused, one deferred: the story and the statistics called all of them deferred."""
    answers = {b"x": b"250 Ok: queued as AAAA1", b"y": b"550 5.1.1 no such user", b"z": b"451 4.2.0 later"}
    hop = NextHop(lmtp=True, replies={b". <%b@a.example>" % name: reply for name, reply in answers.items()})
    with next_hops(hop), running_bridge(tmp_path, {"relay": {"next_hop": hop.url}}, protocol="lmtp") as bridge:
        assert [reply[:3] for reply in send_lmtp(bridge, "x@a.example", "y@a.example", "z@a.example")] == [
            *("250", "550", "451")
        ]
        first = stories(bridge, lambda mails: len(mails) == 3)
        hop.replies[b". <z@a.example>"] = b"250 Ok: queued as ZZZZ9"
        send_lmtp(bridge, "z@a.example")
        [delivered] = stories(bridge, lambda mails: len(mails[0].attempts) == 2, recipient="z@a.example")
        history = SqliteHistory(tmp_path / "state" / "history")
        counted = {total.label: total.mails for total in history.count("action", HistoryQuery())}
        refused = history.count("recipient", HistoryQuery(action="reject"))
        [entry] = history.find(HistoryQuery(recipient="y@a.example"))
    accepted, rejected, deferred = sorted(first, key=lambda told: told.fate)
    assert "to <x@a.example> was delivered to the next hop" in accepted.fate and "queue id AAAA1" in accepted.now
    assert "Rule policy.deliver applied" in text(accepted)
    assert "to <y@a.example> was refused" in rejected.fate and "did not accept it (550 5.1.1 no such" in text(rejected)
    assert "returns it to the sender as undeliverable" in rejected.now
    assert "to <z@a.example> was deferred" in deferred.fate and "keeps it and tries again" in deferred.now
    assert "The same mail was delivered for <x@a.example> and refused for <y@a.example>." in text(deferred)
    assert delivered.fate.endswith("to <z@a.example> was deferred once, then delivered to the next hop")
    assert counted == {"relay": 2, "reject": 1, "tempfail": 1}
    assert [(total.label, total.mails) for total in refused] == [("y@a.example", 1)]
    assert (entry.row.reply, entry.row.next_id) == ("550 5.1.1 no such user", "")


def test_several_queue_ids_were_looked_for_as_one(tmp_path: Path) -> None:
    """The next hop gave each recipient an own queue id, and refused another recipient."""
    answers = {b"x": b"250 Ok: queued as AAAA1", b"y": b"250 Ok: queued as BBBB2", b"z": b"550 5.1.1 no such user"}
    hop = NextHop(lmtp=True, replies={b". <%b@a.example>" % name: reply for name, reply in answers.items()})
    with next_hops(hop), running_bridge(tmp_path, {"relay": {"next_hop": hop.url}}, protocol="lmtp") as bridge:
        send_lmtp(bridge, "x@a.example", "y@a.example", "z@a.example")
        [told] = stories(bridge, recipient="y@a.example")
    assert f"The next hop {hop.url} accepted it for <y@a.example> as BBBB2 after" in text(told)
    assert "grep -F BBBB2 /var/log/mail.log" in told.commands and "AAAA1,BBBB2" not in text(told)


# Lists


def test_a_list_without_a_copy_was_told_as_if_it_had_allowed_the_mail() -> None:
    lists = EnvelopeLists(EnvelopeListsSettings(block=("one", "two"), skip_scan=("three",)), lambda name, tenant: None)
    assert lists.unchecked("tenant") == ("one", "two", "three")
    around = Surroundings("smtp", lists=("one", "two", "three"))
    told = text(tell(Mail((entry_with(unchecked=["two", "three"]),)), around, None, NOON))
    assert "The list one was checked: no entry matches. The lists two and three were not checked: there was no" in told
    told = text(tell(Mail((entry_with(unchecked=["one", "two", "three"]),)), around, None, NOON))
    assert "no entry matches" not in told and "The lists one, two, and three were not checked" in told


def test_the_bridge_records_which_lists_have_no_copy(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("0" * 64)
    config = {"lists": {"url": "http://127.0.0.1:9", "api_key_file": "key"}}
    with running_bridge(tmp_path, config, lists={"block": ["blocked-senders"]}) as bridge:
        assert send(bridge, CONTENT, sender=SENDER).startswith("250")
        [told] = stories(bridge)
    assert "The list blocked-senders was not checked: there was no local copy yet." in text(told)
    assert "no entry matches" not in text(told)


# A late decision


def test_a_late_scan_without_a_decision_had_its_decision_kept(tmp_path: Path) -> None:
    """And the rule said that the scanner had failed on a mail that it was slow with."""
    with running_bridge(tmp_path, deadline="2s") as bridge:
        gate = Gate(bridge, answer(200, result("bounce")))
        assert send(bridge, CONTENT, sender=SENDER).startswith("451")
        [deferred] = stories(bridge)
        gate.open()
        until(lambda: bridge.daemon.late is not None and not bridge.daemon.late.running, "the decision")
        assert send(bridge, CONTENT, sender=SENDER).startswith("550")
        [told] = stories(bridge, lambda mails: len(mails[0].attempts) == 2)
    assert "The scan continued after the deadline. If it succeeds, its decision is kept" in text(deferred)
    assert "Rule policy.failed applied: the scan took longer than the deadline, and the" in text(deferred)
    assert told.fate.endswith("was deferred once, then refused")
    assert "The decision comes from the scan of an earlier attempt: bounce" in text(told)


def entry_with(**more: Any) -> MailEntry:
    kind, row = mail()
    return MailEntry(row, kind, more)


def test_a_late_answer_is_about_the_recipients_it_names() -> None:
    """The others may still have the mail."""
    about = LaterEvent(NOON, "ID0000", "refused late", "", "to b@example.org, c@example.org: 550 <d@example.org> no")
    assert about.recipients == ("b@example.org", "c@example.org")
    both = Mail((entry_with(unsure=["b@example.org", "d@example.org"]),), later=(about,))
    assert "has accepted it for <d@example.org>:" in tell(both, Surroundings("smtp"), None, NOON).now
