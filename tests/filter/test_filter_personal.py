"""Personal lists, as clients and recipients see them: one recipient's entries never change another's mail."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.lists.personal_store import FILE, PersonalLists
from bridge.runtime.database import Database
from bridge.testing import RunningBridge, answer, result, running_bridge, until
from tests.filter.smtp_kit import MAIL, Client, Gate, counted, mail_lines, send
from tests.intake.milter.milter_kit import Mta, frame
from tests.recipients import recipients_kit

ANNA, BEN, CLEO = "anna@example.org", "ben@example.org", "cleo@example.org"
SENDER = "news@shop.example"
OFF: dict[str, Any] = {"late_decisions": {"store": "off"}}  # every test sends the same mail
SPAM = answer(200, result("quarantine", verdict="spam", tags=["rspamd:add-header", "auth:spf-pass"]))
USERS: dict[str, Any] = {"personal_lists": {"allow_by": "users"}}


class Personal:
    """Entries that the running daemon knows."""

    def __init__(self, bridge: RunningBridge) -> None:
        self._lists = PersonalLists(Database.file(bridge.directory / "state" / FILE))
        self._bridge = bridge
        self._made: list[tuple[str, ...]] = []

    def add(self, kind: str, recipient: str, sender: str) -> None:
        self.add_all([(recipient, kind, sender)])

    def add_all(self, entries: list[tuple[str, str, str]]) -> None:
        for recipient, kind, sender in entries:
            (self._lists.block if kind == "block" else self._lists.allow)(recipient, sender)
            self._made.append((recipient, kind, sender))
        self.wait()

    def remove(self, *made: str) -> None:
        self._made.remove(made)
        self._lists.remove(*made)
        self.wait()

    def remove_all(self) -> None:
        for made in self._made:
            self._lists.remove(*made)
        self.wait()
        self._lists.close()

    def wait(self) -> None:
        """The daemon looks once a second; here it is told to look."""
        table = self._bridge.daemon.personal
        self._bridge.background.run(table.look())
        until(lambda: len(table.table) == len(self._lists.entries()), "the entries in memory")


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("bridge"), OFF | USERS) as running:
        yield running


@pytest.fixture(scope="module")
def lmtp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBridge]:
    with running_bridge(tmp_path_factory.mktemp("lmtp"), OFF | USERS, protocol="lmtp") as running:
        yield running


@pytest.fixture
def personal(bridge: RunningBridge) -> Iterator[Personal]:
    bridge.forget()
    lists = Personal(bridge)
    yield lists
    lists.remove_all()


def recipients(bridge: RunningBridge) -> list[list[str]]:
    return [[address.decode() for address in mail.recipients] for mail in bridge.next_hop.mails]


def record_of(eml: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(eml.with_suffix(".json").read_text())
    return found


def new_records(bridge: RunningBridge, before: set[Path]) -> list[dict[str, Any]]:
    return [record_of(eml) for eml in bridge.quarantined if eml not in before]


def test_blocked_sender_is_quarantined_for_this_recipient_alone(bridge: RunningBridge, personal: Personal) -> None:
    """Anna has blocked the sender: Ben gets the mail, hers waits in the quarantine, and the client receives one 250."""
    personal.add("block", ANNA, SENDER)
    before = set(bridge.quarantined)
    with mail_lines() as lines:
        assert send(bridge, sender=SENDER, recipients=(BEN, ANNA)) == "250 2.0.0 Ok: queued as NEXT1"
    assert recipients(bridge) == [[BEN]]
    (kept,) = new_records(bridge, before)
    assert kept["recipients"] == [ANNA] and kept["facts"]["rule"] == "personal_lists.block"
    assert kept["facts"]["reason"] == "personal block" and kept["facts"]["decision"] == "deliver"
    by_action = {line["action"]: line for line in lines}
    assert by_action["relay"]["to"] == f"<{BEN}>" and by_action["quarantine"]["to"] == f"<{ANNA}>"
    assert by_action["quarantine"]["rule"] == "personal_lists.block" and by_action["quarantine"]["id"] == kept["id"]
    assert by_action["relay"]["rule"] == "policy.deliver"
    assert counted(bridge, "list_matches_total", listener="test", list="personal", action="blocked") >= 1


def test_mail_for_the_blocking_recipient_alone_is_not_relayed(bridge: RunningBridge, personal: Personal) -> None:
    """The client cannot tell it from a delivered one."""
    personal.add("block", ANNA, SENDER)
    before = set(bridge.quarantined)
    assert send(bridge, sender=SENDER, recipients=(ANNA,)).startswith("250 2.0.0 Ok: queued as ")
    assert not recipients(bridge) and len(new_records(bridge, before)) == 1


@pytest.mark.parametrize(
    "entry, sender, header",
    [
        ("NEWS@Shop.Example", SENDER, ""),
        ("shop.example", "bounce-123@mail.shop.example", ""),
        ("@shop.example", SENDER, ""),
        (SENDER, "bounce-123@relay.example", f"From: The Shop <{SENDER}>\r\n"),
        (SENDER, "", f"From: {SENDER}\r\n"),
        ("shop@bücher.example", "shop@xn--bcher-kva.example", ""),
        (SENDER, "x@evil.example", 'From: news@"shop.example"\r\n'),
        (SENDER, "x@evil.example", "From: The Shop <news@=?utf-8?q?shop.example?=>\r\n"),
        (SENDER, "x@evil.example", f"From: The Shop <{SENDER},x@evil.example>\r\n"),
        (SENDER, "x@evil.example", f"From: {SENDER}\u200e\r\n"),
        ("shop.example", "x@evil.example", "From: The Shop <news\uff20shop.example>\r\n"),
    ],
)
def test_block_matches_the_sender_that_people_see(
    bridge: RunningBridge, personal: Personal, entry: str, sender: str, header: str
) -> None:
    """By envelope or From field, in any spelling, by address or domain; the recipient in any spelling, too."""
    personal.add("block", "Anna@EXAMPLE.org.", entry)
    reply = send(bridge, header.encode() + MAIL, sender=sender, recipients=("ANNA@Example.ORG", BEN))
    assert reply.startswith("250 ") and recipients(bridge) == [[BEN]]


UNCERTAIN = [
    "anna@mail",
    "ANNA@Mail.",
    "anna",
    '"anna"',
    "\u017fales",
    "anna@[127.0.0.1]",
    "anna%mail.example.org@mx.example.org",
    "bob%example.com@mx.example.org",
    "mail.example.org!anna",
    '"anna@mail.example.org"',
    '"anna@mail.example.org"@mx.example.org',
]
CERTAIN = [
    "postmaster",
    "root",
    "root@localhost",
    "root@[127.0.0.1]",
    "anna@example.net",
    "anna@home",
    "annabel",
    '"bob smith"@example.org',
]


def test_another_spelling_of_the_recipient_missed_a_personal_block(bridge: RunningBridge, personal: Personal) -> None:
    """A mail server completes `anna@mail` and `anna`, or reads another address from them, and delivers to her.

    Recipients that cannot be her are accepted, and so is every spelling as long as nobody has entries.
    """

    def replies(spellings: list[str]) -> dict[str, str]:
        with Client(bridge) as client:
            client.say("EHLO mx.example")
            client.say("MAIL FROM:<a@client.example> SMTPUTF8")
            return {spelling: client.say(f"RCPT TO:<{spelling}>".encode()) for spelling in spellings}

    before = replies(UNCERTAIN + CERTAIN)
    assert [reply for reply in before.values() if not reply.startswith("250 ")] == []
    for recipient in ("anna@mail.example.org", "anna@home", "sales@example.org"):
        personal.add("block", recipient, SENDER)
    refused, accepted = replies(UNCERTAIN), replies(CERTAIN)
    assert all(reply.startswith("553 5.1.3 ") for reply in refused.values()), refused
    assert all(reply.startswith("250 ") for reply in accepted.values()), accepted


def test_names_are_accepted_again_after_the_last_entry(bridge: RunningBridge, personal: Personal) -> None:
    """The entries of others with the same local part count, and removed ones do not."""
    personal.add_all([("anna@a.example", "block", SENDER), ("anna@b.example", "block", SENDER), (BEN, "block", SENDER)])

    def reply() -> str:
        with Client(bridge) as client:
            client.begin()
            return client.say("RCPT TO:<anna>")

    for recipient in ("anna@a.example", "anna@b.example"):
        assert reply().startswith("553 ")
        personal.remove(recipient, "block", SENDER)
    assert reply().startswith("250 ")


def test_other_senders_and_recipients_are_not_touched(bridge: RunningBridge, personal: Personal) -> None:
    """One entry is about one sender and one recipient."""
    personal.add("block", ANNA, SENDER)
    assert send(bridge, sender="other@shop.example", recipients=(ANNA, BEN)).startswith("250 ")
    assert send(bridge, sender=SENDER, recipients=(BEN, CLEO)).startswith("250 ")
    assert recipients(bridge) == [[ANNA, BEN], [BEN, CLEO]]


def test_blocked_sender_wrote_a_name_that_folds_to_the_recipients(bridge: RunningBridge, personal: Personal) -> None:
    """Postfix delivers mail for `ru\u017fs` to `russ`. That spelling allows nothing: elsewhere, it is someone else."""
    russ, folded = "russ@example.org", "ru\u017fs@example.org"
    personal.add_all([(russ, "block", SENDER), (russ, "allow", "spam@shop.example"), (BEN, "block", SENDER)])
    assert mail_in_utf8(bridge, SENDER, folded).startswith("250 ") and not recipients(bridge)
    assert mail_in_utf8(bridge, "other@shop.example", folded).startswith("250 ")
    assert recipients(bridge) == [[folded]]
    bridge.scanner.reply = SPAM
    assert mail_in_utf8(bridge, "spam@shop.example", folded).startswith("250 ") and recipients(bridge) == [[folded]]
    assert mail_in_utf8(bridge, "spam@shop.example", russ).startswith("250 ")
    assert recipients(bridge) == [[folded], [russ]]


def mail_in_utf8(bridge: RunningBridge, sender: str, recipient: str) -> str:
    with bridge.client() as client:
        client.open()
        client.say(f"MAIL FROM:<{sender}> SMTPUTF8".encode(), f"RCPT TO:<{recipient}>".encode(), b"DATA")
        return client.say(MAIL + b".")[0].decode()


def test_the_more_specific_entry_counts(bridge: RunningBridge, personal: Personal) -> None:
    """A friend at a blocked domain is heard; a nuisance at an allowed domain is not."""
    friend = "friend@shop.example"
    personal.add_all([(ANNA, "block", "shop.example"), (ANNA, "allow", friend)])
    personal.add_all([(BEN, "allow", "shop.example"), (BEN, "block", friend)])
    assert send(bridge, sender="friend@shop.example", recipients=(ANNA, BEN)).startswith("250 ")
    assert send(bridge, sender=SENDER, recipients=(ANNA, BEN)).startswith("250 ")
    assert recipients(bridge) == [[ANNA], [BEN]]
    bridge.next_hop.mails.clear()
    bridge.scanner.reply = SPAM
    assert send(bridge, sender="friend@shop.example", recipients=(ANNA, BEN)).startswith("250 ")
    assert send(bridge, sender=SENDER, recipients=(ANNA, BEN)).startswith("250 ")
    assert recipients(bridge) == [[ANNA], [BEN]]


def test_hostile_from_field_takes_no_time(bridge: RunningBridge, personal: Personal) -> None:
    """Thousands of authors with a hundred labels each, to many recipients with entries: other mail does not wait."""
    people = tuple(f"p{number}@example.org" for number in range(100))
    personal.add_all([(person, "block", SENDER) for person in people])
    authors = ", ".join(f"a{number}@{'x.' * 100}example" for number in range(500))
    field = "From: " + authors.replace(", ", ",\r\n ") + "\r\n"
    before = time.process_time()
    assert send(bridge, field.encode() + MAIL, recipients=people).startswith("250 ")
    assert time.process_time() - before < 2


def test_allowed_sender_is_delivered_to_this_recipient_alone(bridge: RunningBridge, personal: Personal) -> None:
    """The mail is spam: Anna gets it, and the copy of the others is quarantined."""
    personal.add("allow", ANNA, SENDER)
    bridge.scanner.reply = SPAM
    before = set(bridge.quarantined)
    with mail_lines() as lines:
        assert send(bridge, sender=SENDER, recipients=(ANNA, BEN, CLEO)) == "250 2.0.0 Ok: queued as NEXT1"
    assert recipients(bridge) == [[ANNA]]
    (kept,) = new_records(bridge, before)
    assert kept["recipients"] == [BEN, CLEO] and kept["facts"]["rule"] == "policy.quarantine"
    assert {line["rule"] for line in lines} == {"personal_lists.allow", "policy.quarantine"}


@pytest.mark.parametrize(
    "scan",
    [
        {"verdict": "malware", "tags": ["malware:eicar"]},
        {"verdict": "spam", "tags": ["malware:eicar"]},
        {"verdict": "phishing", "tags": []},
        {"verdict": "spam", "tags": ["url:phishing"]},
        {"verdict": "spam", "tags": ["list:blocked-senders"]},
        {"verdict": "spam", "tags": ["incomplete"]},
        {"verdict": "spam", "tags": ["mime:executable"]},
        {"verdict": "spam", "tags": ["auth:dmarc-reject"]},
        {"verdict": "spam", "tags": ["auth:dmarc-temperror"]},
        {"verdict": "spam", "tags": ["auth:spf-pass", *(f"tag:{number}" for number in range(1500)), "malware:eicar"]},
        {"verdict": "spam", "tags": ["x" * 300 + "virus"]},
        {"verdict": "spam", "tags": ["auth:dmarc-permerror"]},
        {"verdict": "suspicious", "tags": []},
        {"verdict": "", "tags": []},
    ],
)
def test_allow_delivers_nothing_dangerous(bridge: RunningBridge, personal: Personal, scan: dict[str, Any]) -> None:
    """Malware, phishing, hits of block lists, forged senders, incomplete scans, and verdicts that are not listed."""
    personal.add("allow", ANNA, SENDER)
    bridge.scanner.reply = answer(200, result("quarantine", **scan | {"tags": [*scan["tags"], "auth:spf-pass"]}))
    assert send(bridge, sender=SENDER, recipients=(ANNA,)).startswith("250 ")
    assert not recipients(bridge)


def test_undecided_mail_is_deferred_whatever_is_allowed(bridge: RunningBridge, personal: Personal) -> None:
    personal.add("allow", ANNA, SENDER)
    bridge.scanner.reply = answer(200, result("undecided", verdict="spam", tags=["auth:spf-pass"]))
    assert send(bridge, sender=SENDER, recipients=(ANNA,)).startswith("451 4.7.1")


def test_allow_does_not_believe_a_from_field(bridge: RunningBridge, personal: Personal) -> None:
    """Anyone can write it; it counts if the scanner has found it authentic."""
    personal.add("allow", ANNA, SENDER)
    content = f"From: {SENDER}\r\n".encode() + MAIL
    bridge.scanner.reply = SPAM
    assert send(bridge, content, sender="x@evil.example", recipients=(ANNA,)).startswith("250 ")
    assert not recipients(bridge)
    bridge.scanner.reply = answer(200, result("quarantine", verdict="spam", tags=["auth:dmarc-pass"]))
    assert send(bridge, content, sender="x@shop.example", recipients=(ANNA,)).startswith("250 ")
    assert recipients(bridge) == [[ANNA]]


_EVIL = b"x@evil.example"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"From: %b (%b),\r\n %b\r\n" % (SENDER.encode(), b"y" * 4096, _EVIL), id="behind a comment"),
        pytest.param(b"From: %b.evil.example\r\n" % SENDER.encode().rjust(4095), id="cut in the domain"),
        pytest.param(b"From: %b\r\n" % SENDER.encode() * 4 + b"From: %b\r\n" % _EVIL, id="fifth field"),
        pytest.param(
            b"From: %b\r\n" % SENDER.encode() + b"X: %b\r\n" % (b"y" * 900) * 2400 + b"From: %b\r\n" % _EVIL,
            id="behind 1 MiB",
        ),
        pytest.param(b"From: %b\r\n" % ("news@not" + "\u00ad" * 241 + "shop.example").encode(), id="cut in front"),
    ],
)
def test_an_allow_entry_could_be_borrowed_through_a_from_field_that_was_cut(
    bridge: RunningBridge, personal: Personal, head: bytes
) -> None:
    """What was read of the field looked like the allowed sender; the proof was about the domain behind it."""
    personal.add("allow", ANNA, SENDER)
    bridge.scanner.reply = answer(200, result("quarantine", verdict="spam", tags=["auth:dmarc-pass"]))
    assert send(bridge, head + MAIL, sender="x@evil.example", recipients=(ANNA,)).startswith("250 ")
    assert recipients(bridge) == []


def test_allow_does_not_believe_a_from_field_that_is_not_clear(bridge: RunningBridge, personal: Personal) -> None:
    """Whatever was found authentic may be another author than the one that we read in it."""
    personal.add("allow", ANNA, SENDER)
    bridge.scanner.reply = answer(200, result("quarantine", verdict="spam", tags=["DMARC_POLICY_ALLOW"]))
    content = b'From: news@"shop.example"\r\n' + MAIL
    assert send(bridge, content, sender="x@evil.example", recipients=(ANNA,)).startswith("250 ")
    assert not recipients(bridge)


@pytest.mark.parametrize(
    "tags, is_delivered",
    [
        ([], False),
        (["auth:spf-softfail", "auth:dmarc-none"], False),
        (["auth:spf-none"], False),
        (["auth:dmarc-pass"], False),  # of the author, who is somebody else
        (["auth:spf-pass"], True),
        (["R_SPF_ALLOW", "DMARC_POLICY_ALLOW"], True),
        (["R_SPF_SOFTFAIL"], False),
    ],
)
def test_a_forged_envelope_sender_was_delivered_to_those_who_allow_it(
    bridge: RunningBridge, personal: Personal, tags: list[str], is_delivered: bool
) -> None:
    """Most domains end their SPF record with ~all, so that only a pass is a proof."""
    personal.add("allow", ANNA, SENDER)
    bridge.scanner.reply = answer(200, result("quarantine", verdict="spam", tags=tags))
    content = b"From: Your bank <x@evil.example>\r\n" + MAIL
    assert send(bridge, content, sender=SENDER, recipients=(ANNA,)).startswith("250 ")
    assert recipients(bridge) == ([[ANNA]] if is_delivered else [])


@pytest.mark.parametrize(
    "allow, block, is_allowed",
    [
        ("first.last@mail.friend.example", "troll@evil.example", False),
        ("mail.friend.example", "evil.example", False),
        ("mail.friend.example", "friend.example", False),  # and evil.example, too, is blocked below
        ("first.last@mail.friend.example", "evil.example", True),
    ],
)
@pytest.mark.parametrize("is_spam", [False, True])
def test_an_allow_with_more_dots_overrode_a_block(
    bridge: RunningBridge, personal: Personal, allow: str, block: str, is_allowed: bool, is_spam: bool
) -> None:
    """Only an address before a domain, and a subdomain before the domain above it; dots of other names do not count."""
    personal.add_all([(ANNA, "allow", allow), (ANNA, "block", block)])
    if block == "friend.example":
        personal.add("block", ANNA, "evil.example")
    if is_spam:
        bridge.scanner.reply = SPAM
    content = b"From: troll@evil.example\r\n" + MAIL
    assert send(bridge, content, sender="first.last@mail.friend.example", recipients=(ANNA,)).startswith("250 ")
    assert recipients(bridge) == ([[ANNA]] if is_allowed else [])


def test_a_subdomain_is_allowed_below_a_blocked_domain(bridge: RunningBridge, personal: Personal) -> None:
    personal.add_all([(ANNA, "allow", "mail.shop.example"), (ANNA, "block", "shop.example")])
    for sender in ("a@mail.shop.example", "a@other.shop.example", "a@shop.example"):
        assert send(bridge, sender=sender, recipients=(ANNA,)).startswith("250 ")
    assert recipients(bridge) == [[ANNA]]


def test_refused_spam_is_kept_for_those_who_did_not_allow_it(bridge: RunningBridge, personal: Personal) -> None:
    """One reply for all: a 550 would tell the sender that Anna did not get it, so the others' copy is quarantined."""
    personal.add("allow", ANNA, SENDER)
    bridge.scanner.reply = answer(200, result("bounce", verdict="spam", tags=["auth:spf-pass"]))
    before = set(bridge.quarantined)
    assert send(bridge, sender=SENDER, recipients=(ANNA, BEN)).startswith("250 2.0.0 Ok: queued as NEXT1")
    assert recipients(bridge) == [[ANNA]]
    (kept,) = new_records(bridge, before)
    assert kept["recipients"] == [BEN] and kept["facts"]["rule"] == "policy.bounce"
    assert send(bridge, sender=SENDER, recipients=(BEN,)).startswith("550 5.7.1")


@pytest.mark.parametrize("reply", [b"451 4.3.0 Later", b"554 5.7.1 No"])
def test_next_hop_refuses_so_nothing_stays_behind(bridge: RunningBridge, personal: Personal, reply: bytes) -> None:
    """The client receives the next hop's refusal for everybody; a copy in the quarantine would be one too many."""
    personal.add("block", ANNA, SENDER)
    bridge.next_hop.replies[b"."] = reply
    before = set(bridge.quarantined)
    with mail_lines() as lines:
        assert send(bridge, sender=SENDER, recipients=(ANNA, BEN)).encode() == reply
    assert not new_records(bridge, before) and not recipients(bridge)
    assert {line["action"] for line in lines} == {"tempfail" if reply.startswith(b"4") else "reject"}
    assert sorted(line["to"] for line in lines) == [f"<{ANNA}>", f"<{BEN}>"]


def test_copy_that_cannot_be_stored_defers_the_mail(bridge: RunningBridge, personal: Personal) -> None:
    """Nobody gets the mail, so that nobody gets it twice."""
    personal.add("block", ANNA, SENDER)
    directory = bridge.directory / "state" / "quarantine"
    aside = directory.rename(directory.with_name("aside"))
    directory.write_text("in the way")
    try:
        assert send(bridge, sender=SENDER, recipients=(ANNA, BEN)).startswith("45")
    finally:
        directory.unlink()
        aside.rename(directory)
    assert not recipients(bridge)


def test_lmtp_client_reads_each_recipients_own_reply(lmtp: RunningBridge) -> None:
    """Refused for Ben, delivered to Anna, who has allowed the sender; in the order of the recipients."""
    lmtp.forget()
    lists = Personal(lmtp)
    lists.add("allow", ANNA, "a@client.example")
    lmtp.scanner.reply = answer(200, result("bounce", verdict="spam", tags=["auth:spf-pass"]))
    replies = recipients_kit.send(lmtp, "lmtp", BEN, ANNA, CLEO)
    assert [reply[:3] for reply in replies] == [b"550", b"250", b"550"]
    assert recipients(lmtp) == [[ANNA]]
    lists.remove_all()


def test_blocked_mail_can_be_dropped(tmp_path: Path) -> None:
    """`personal_lists.block: discard`, for one tenant only."""
    tenant = {"uid": "123e4567-e89b-12d3-a456-426614174000", "recipient_domains": ["example.org"]}
    config = OFF | {"tenants": [tenant | {"personal_lists": {"block": "discard"}}]}
    with running_bridge(tmp_path, config) as bridge:
        lists = Personal(bridge)
        lists.add("block", ANNA, SENDER)
        lists.add("block", "anna@example.net", SENDER)
        assert send(bridge, sender=SENDER, recipients=(ANNA, BEN)).startswith("250 ")
        assert not bridge.quarantined and recipients(bridge) == [[BEN]]
        assert send(bridge, sender=SENDER, recipients=("anna@example.net",)).startswith("250 ")
        assert len(bridge.quarantined) == 1


def test_nobody_may_allow(tmp_path: Path) -> None:
    """With `allow_by: nobody`, entries that were made before do nothing."""
    with running_bridge(tmp_path, OFF | {"personal_lists": {"allow_by": "nobody"}}) as bridge:
        Personal(bridge).add("allow", ANNA, SENDER)
        bridge.scanner.reply = SPAM
        assert send(bridge, sender=SENDER, recipients=(ANNA,)).startswith("250 ")
        assert len(bridge.quarantined) == 1 and not recipients(bridge)


def test_the_withheld_part_of_a_mail_seemed_scanned_in_no_time(bridge: RunningBridge, personal: Personal) -> None:
    """Both parts tell of the one scan, so both are said to have come before it; the metrics count it once."""
    personal.add("block", ANNA, SENDER)
    before = counted(bridge, "scan_seconds_count", listener="test")
    with mail_lines() as lines:
        assert send(bridge, sender=SENDER, recipients=(BEN, ANNA)).startswith("250 ")
    first, second = (line["scan_ms"] for line in lines)
    assert first == second > 0
    assert counted(bridge, "scan_seconds_count", listener="test") == before + 1


def test_the_withheld_part_of_a_mail_seemed_scanned_again(tmp_path: Path) -> None:
    """Its decision came late, from the scan of an earlier attempt, as that of the other part did."""
    with running_bridge(tmp_path, deadline="1s") as bridge:
        Personal(bridge).add("block", ANNA, SENDER)
        gate = Gate(bridge, answer(200, result()))
        assert send(bridge, sender=SENDER, recipients=(BEN, ANNA)).startswith("451 4.4.7 ")
        gate.open()
        until(lambda: not bridge.daemon.admission.in_processing, "the scan to end")
        with mail_lines() as lines:
            assert send(bridge, sender=SENDER, recipients=(BEN, ANNA)).startswith("250 ")
        assert [(line["action"], line.get("late")) for line in lines] == [("quarantine", "hit"), ("relay", "hit")]


def test_shadow_mode_changes_nothing(tmp_path: Path) -> None:
    """A bridge that only watches delivers blocked mail, too."""
    with running_bridge(tmp_path, OFF, mode="shadow") as bridge:
        Personal(bridge).add("block", ANNA, SENDER)
        assert send(bridge, sender=SENDER, recipients=(ANNA, BEN)).startswith("250 ")
        assert recipients(bridge) == [[ANNA, BEN]]


FOR_ALL = {"bounce": "y", "quarantine": "q", "drop": "d"}


@pytest.mark.parametrize("decision", FOR_ALL)
@pytest.mark.parametrize("recipient", [b"<@mx.example.org:ben@example.org>", b"ben@example.org"])
async def test_a_recipient_whom_the_mail_server_may_not_find_got_the_mail(
    tmp_path: Path, recipient: bytes, decision: str
) -> None:
    """With a source route; or without brackets, as Postfix writes recipients that it has rewritten."""
    with running_bridge(tmp_path, OFF | USERS, protocol="milter") as bridge:
        bridge.scanner.reply = answer(200, result(decision, verdict="spam", tags=["auth:spf-pass"]))
        for removed in (recipient, b"<ben@example.org>"):
            bridge.background.run(bridge.daemon.personal.look())
            mta = Mta(*await asyncio.open_connection("127.0.0.1", bridge.port))
            await mta.greet()
            await mta.mail(b"<news@shop.example>", b"<anna@example.org>")
            assert await mta.ask(frame("R", removed + b"\0")) == ("c", b"")
            if removed is recipient:  # at RCPT, nobody had entries yet
                Personal(bridge).add("allow", ANNA, SENDER)
            mta.content()
            answers = await mta.until_final()
            mta.writer.close()
            if removed is recipient:
                letters = [letter for letter, _ in answers]
                assert FOR_ALL[decision] in letters and "-" not in letters, "all recipients are treated alike"
            else:
                assert ("-", removed + b"\0") in answers and answers[-1][0] == "c"
