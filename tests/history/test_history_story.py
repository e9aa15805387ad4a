"""The story of a mail: its attempts belong together, every rule and every failure has words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.config.policy import Policy
from bridge.errors import FailureLabel
from bridge.filter import rule_names
from bridge.history.entry import LaterEvent, MailEntry
from bridge.history.mails import Mail, gather, whole
from bridge.history.query import CANCELLED, HistoryQuery
from bridge.history.rule_words import ACTIONS, CASES, DONE, ERRORS, FAILURES, decided
from bridge.history.sqlite import SqliteHistory
from bridge.history.story import Story, tell
from bridge.history.story_context import GONE, NOT_HERE, UNKNOWN, Kept, Surroundings
from bridge.mail.action import Action
from tests.history.history_kit import NOON, add, mail

DEFERRED = {"action": "tempfail", "decision": "", "verdict": "", "rule": "policy.unavailable", "error": "unavailable"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteHistory]:
    store = SqliteHistory(tmp_path / "history")
    yield store
    store.close()


def entry(number: int = 0, more: dict[str, Any] | None = None, **values: Any) -> MailEntry:
    kind, row = mail(number, **values)
    return MailEntry(row, kind, more or {})


def story(*attempts: MailEntry, around: Surroundings | None = None, kept: Kept | None = None, **more: Any) -> Story:
    return tell(Mail(attempts, **more), around or Surroundings("smtp"), kept, NOON + 100)


def text(told: Story) -> str:
    return "\n".join([told.fate, *(step.text for step in told.steps), told.now, *told.commands])


# Words


def test_every_key_of_the_policy_has_words() -> None:
    assert set(CASES) == set(Policy.model_fields)


def test_every_action_has_words() -> None:
    assert set(ACTIONS) == {*(action.value for action in Action), CANCELLED}


def test_every_failure_has_words() -> None:
    """The next hop's has a sentence of its own."""
    assert {*ERRORS, *FAILURES, "next_hop"} == set(FailureLabel)


@pytest.mark.parametrize("rule", rule_names.DOCUMENTED)
@pytest.mark.parametrize("action", ACTIONS)
def test_every_documented_rule_is_explained(rule: str, action: str) -> None:
    name = rule.replace("KEY", "bounce").replace("NAME", "mx").replace("UID", "0b8e")
    said = decided(name, action)
    assert said.startswith(f"Rule {name} applied: ") and said.endswith(".")
    assert DONE[action] in said and "the log reference explains" not in said


def test_a_rule_says_whose_policy_it_is() -> None:
    assert "the policy of listener mx says" in decided("listeners.mx.policy.bounce", "reject")
    assert "the policy of tenant 0b8e says" in decided("tenants.0b8e.policy.drop", "discard")
    assert "(set policy.quarantine to change this)" in decided("profiles.postfix-milter.quarantine", "hold")
    assert decided("", "relay") == ""


# Which entries are one mail


def found(store: SqliteHistory, **query: Any) -> list[list[str]]:
    mails = [whole(store, one) for one in gather(store.find(HistoryQuery(**query)))]
    return [[attempt.row.id for attempt in one.attempts] for one in mails]


def test_attempts_with_the_same_key_are_one_mail(store: SqliteHistory) -> None:
    add(store, mail(1, attempt="k", **DEFERRED), mail(2, message_id="<other@x>"), mail(3, attempt="k"))
    assert found(store) == [["ID0001", "ID0003"], ["ID0002"]]
    assert found(store, what="ID0001") == [["ID0001", "ID0003"]]


def test_a_deferred_mail_is_joined_by_its_message_id_if_it_has_no_key(store: SqliteHistory) -> None:
    add(store, mail(1, **DEFERRED), mail(2))
    assert found(store) == [["ID0001", "ID0002"]]


@pytest.mark.parametrize("other", [{"sender": "c@sender.example"}, {"message_id": "<2@sender.example>"}])
def test_another_sender_or_message_id_is_another_mail(store: SqliteHistory, other: dict[str, str]) -> None:
    add(store, mail(1, **DEFERRED), mail(2, **other))
    assert found(store) == [["ID0002"], ["ID0001"]]


def test_a_decided_mail_is_not_joined_to_the_next_one(store: SqliteHistory) -> None:
    """Two recipients of one message in two transactions; both are named."""
    add(store, mail(1), mail(2, recipients="c@example.org"))
    one, two = (whole(store, mail) for mail in gather(store.find(HistoryQuery())))
    assert [attempt.row.id for attempt in one.attempts] == ["ID0002"]
    assert [attempt.row.id for [attempt] in one.others] == ["ID0001"]
    assert "The same message also arrived as a separate mail: ID0001." in text(tell(one, Surroundings(), None))
    assert [attempt.row.id for [attempt] in two.others] == ["ID0002"]


def test_the_attempts_of_another_mail_were_counted_as_mails(store: SqliteHistory) -> None:
    """The list above the stories shows two mails; the story of the newer one spoke of two more."""
    add(store, mail(1, **DEFERRED), mail(2), mail(3))
    newer, older = (whole(store, mail) for mail in gather(store.find(HistoryQuery())))
    assert "The same message also arrived as a separate mail: ID0002." in text(tell(newer, Surroundings(), None))
    assert "The same message also arrived as a separate mail: ID0003." in text(tell(older, Surroundings(), None))


def test_another_answer_is_told_as_it_became_later(store: SqliteHistory) -> None:
    """Two recipients of one mail were deferred; the story of one called the later attempt for the other a new mail."""
    add(
        store,
        mail(1, recipients="a@example.org", **DEFERRED),
        mail(1, recipients="b@example.org", action="reject"),
        mail(2, recipients="a@example.org"),
    )
    [refused] = gather(store.find(HistoryQuery(recipient="b@example.org")))
    told = text(tell(whole(store, refused), Surroundings(), None))
    assert "The same mail was delivered for <a@example.org>." in told and "separate mail" not in told


def test_a_message_id_without_its_local_part_joins_nothing(store: SqliteHistory) -> None:
    """With log.addresses: domain, all mails of a domain have the same one."""
    hidden = {"message_id": "<*@sender.example>", "sender": "*@sender.example"}
    add(store, mail(1, **DEFERRED | hidden), mail(2, **hidden))
    assert found(store) == [["ID0002"], ["ID0001"]]


def test_deferrals_at_mail_of_the_same_client_come_before(store: SqliteHistory) -> None:
    early = {"id": "", "stage": "mail", "message_id": "", "recipients": "", "reply": "451 4.3.2 full"}
    add(store, mail(1, **DEFERRED | early), mail(2, **DEFERRED | early | {"client": "192.0.2.99"}), mail(9))
    [found] = gather(store.find(HistoryQuery(what="ID0009")))
    said = text(tell(whole(store, found), Surroundings(), None))
    assert "deferred once at MAIL for this sender, perhaps with this mail. It received: 451 4.3.2 full" in said


def test_deferrals_of_other_clients_hid_those_of_the_same_client(store: SqliteHistory) -> None:
    """At most 50 were read, and anyone can use this sender at MAIL."""
    early = DEFERRED | {"id": "", "stage": "mail", "message_id": "", "recipients": ""}
    add(store, mail(1, **early), *(mail(2 + n, **early | {"client": "192.0.2.99"}) for n in range(60)), mail(99))
    [found] = gather(store.find(HistoryQuery(what="ID0099")))
    assert [entry.row.at for entry in whole(store, found).before] == [NOON + 1]


def test_the_search_never_repeats_a_mail(store: SqliteHistory) -> None:
    """Summed refusals have no id, and share their time."""
    early = {"id": "", "stage": "connect", "message_id": "", "sender": "", "recipients": ""}
    add(store, mail(1, **early), mail(1, **early | {"client": "192.0.2.8"}))
    assert found(store) == [[""], [""]]


def test_a_mail_was_said_to_have_come_when_its_scan_had_ended() -> None:
    """A scan can take minutes; the mail server's log has the time at which the mail came."""
    told = story(entry(at=NOON, wait_s=1.0, scan_s=235.0, relay_s=4.0))
    [arrival] = [step for step in told.steps if "sent it to listener" in step.text]
    assert arrival.at == arrival.ended_at == NOON - 240


# Fates


@pytest.mark.parametrize(
    ("values", "fate", "now"),
    [
        ({}, "was delivered to the next hop", "has it, queue id NEXT, or has delivered it"),
        ({"action": "reject"}, "was refused", "returns it to the sender as undeliverable"),
        ({"action": "discard"}, "was accepted and dropped", "Nowhere: it was dropped"),
        ({"action": "hold"}, "put on hold", "hold queue of the mail server as QUEUED"),
        (
            {"action": "cancelled"},
            "was abandoned by the client before a decision was made",
            "No later attempt is recorded",
        ),
        (DEFERRED, "was deferred", "tries again, usually for up to five days"),
        ({"action": "reject", "stage": "rcpt"}, "was refused at RCPT, before its content was sent", "still has it"),
    ],
)
def test_each_fate_has_its_words(values: dict[str, Any], fate: str, now: str) -> None:
    told = story(entry(**values))
    assert fate in told.fate and now in told.now


@pytest.mark.parametrize(
    ("kept", "expected", "can_release"),
    [
        (Kept("kept", until=NOON), "it has not been released", True),
        (Kept("kept", ("c@x.example",)), "released to <c@x.example>, but not to all recipients", True),
        (Kept("released", ("b@example.org",)), "Released to <b@example.org>", False),
        (Kept("interrupted"), "a release was interrupted", True),
        (Kept("unsure"), "the next hop did not answer a release, so recipients may have the mail", True),
        (Kept(GONE), "No longer in the quarantine", False),
        (Kept(NOT_HERE), "Run this command on the machine that received the mail", False),
        (Kept(UNKNOWN, problem="no disk"), "could not be read: no disk", False),
    ],
)
def test_the_quarantine_is_asked(kept: Kept, expected: str, can_release: bool) -> None:
    told = story(entry(action="quarantine"), kept=kept)
    assert expected in told.now
    offered = [command for command in told.commands if command.startswith("scanbridge quarantine release ID0000")]
    assert bool(offered) is can_release
    assert any("--again" in command for command in offered) is (kept.state in ("interrupted", "unsure"))


def test_a_copy_of_a_refused_mail_is_mentioned() -> None:
    told = story(entry(action="reject"), kept=Kept("kept"))
    assert "bounce" in told.now and "A copy is in the quarantine" in told.now


def test_old_deferrals_have_probably_been_given_up() -> None:
    assert "probably given up" in tell(Mail((entry(**DEFERRED),)), Surroundings(), None, NOON + 6 * 86400).now


def test_later_events_are_told_in_order() -> None:
    later = (LaterEvent(NOON + 5, "ID0000", "released", "alice", "to b@example.org: 250 Ok"),
             LaterEvent(NOON + 9, "ID0000", "deleted", "bob"))  # fmt: skip
    told = story(entry(action="quarantine"), kept=Kept(GONE), later=later)
    assert told.fate.endswith("was quarantined and later released")
    assert [step.text for step in told.steps[-2:]] == [
        "It was released from the quarantine by alice to b@example.org: 250 Ok.",
        "It was deleted from the quarantine by bob.",
    ]
    assert told.now == "No longer in the quarantine: it was deleted."


def test_a_late_answer_for_a_quoted_recipient_named_other_recipients() -> None:
    """The text of the event was cut at every comma and colon, also at those within quotes."""
    quoted = r'"a, \"b: c"@example.org'
    later = (LaterEvent(NOON + 5, "ID0000", "accepted late", "", f"to {quoted}, d@[IPv6:2001:db8::1]: 250 Ok, see: x"),)
    attempt = entry(action=CANCELLED, more={"unsure": [quoted, "d@[IPv6:2001:db8::1]"]}, recipients=quoted)
    assert later[0].recipients == (quoted, "d@[IPv6:2001:db8::1]")
    assert later[0].without_internals().text == f"to {quoted}, d@[IPv6:2001:db8::1]"
    assert story(attempt, later=later).fate.endswith(
        "was delivered to the next hop, which answered too late for the client"
    )


def test_a_mail_that_is_gone_without_a_deletion_may_have_expired() -> None:
    told = story(entry(action="quarantine"), kept=Kept(GONE))
    assert told.now == "No longer in the quarantine: it was deleted, or its retention period has ended."


def test_a_tenant_is_named_by_its_domain_too() -> None:
    """People do not know a tenant by its UUID."""
    uid = "123e4567-e89b-12d3-a456-426614174000"
    mail = entry(action="quarantine", rule=f"tenants.{uid}.policy.deliver", tenant=uid)
    told = tell(Mail((mail,)), Surroundings(tenant_domain="example.org"), None, NOON)
    assert any(f"the policy of tenant {uid} (example.org)" in step.text for step in told.steps)


@pytest.mark.parametrize(
    ("values", "more", "around", "expected"),
    [
        ({"wait_s": 1.25}, {}, {}, "It waited 1.2 s for a free processing slot"),
        ({}, {"login": "alice"}, {}, "192.0.2.7 (HELO mx.sender.example), logged in as alice, sent it to listener mx"),
        ({"client": "", "helo": ""}, {}, {}, "A client with an unknown address sent it"),
        ({"late": "hit"}, {}, {}, "The decision comes from the scan of an earlier attempt: deliver"),
        (DEFERRED | {"late": "awaited"}, {}, {}, "its decision is kept for the next attempt"),
        (DEFERRED, {"why": "no route"}, {}, "http://scanner gave no decision after 250 ms: it could not be reached"),
        ({"would": "reject"}, {}, {}, "so the decision was only reported, and the mail was passed on (relay)"),
        ({"unscanned": "unreachable"}, {}, {}, "passed on without a decision (unreachable)"),
        ({"tags": "header:missing-date"}, {}, {"scores": {"header:missing-date": 1.0}}, "tag header:missing-date 1 ("),
        ({"list": "blocked-senders", "action": "reject"}, {"entry": "a@b"}, {}, "has a matching entry (a@b)"),
        ({"error": "next_hop", "action": "reject", "rule": "next_hop"}, {"why": "550 no"}, {},
         "The next hop did not accept it (550 no)"),
        ({}, {"replies": {"b@example.org": "250 Ok", "c@x": "550 no"}}, {}, "For <c@x>, the client received: 550 no"),
        ({}, {}, {"protocol": "milter"}, "The mail server answered its client itself."),
        ({"action": "reject", "stage": "mail", "mails": 700}, {}, {}, "700 attempts at about this time"),
        ({}, {"limit": "max_recipients"}, {}, "exceeded the limit max_recipients"),
    ],
)  # fmt: skip
def test_what_is_known_is_told(
    values: dict[str, Any], more: dict[str, Any], around: dict[str, Any], expected: str
) -> None:
    told = story(entry(more=more, **values), around=Surroundings(**{"protocol": "smtp", **around}))
    assert expected in text(told)


def test_the_number_of_attempts_stands_beside_what_happened() -> None:
    """And not at the end, where it would count something else."""
    twice = story(entry(0, action="cancelled"), entry(1, action="cancelled"))
    assert twice.fate.endswith(" was abandoned by the client twice before a decision was made")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"subject": "S", "message_id": "<m@x>", "size": 1234},
         'Its subject is "S", its Message-ID is <m@x>, and its size is 1,234 bytes.'),
        ({"subject": "S", "message_id": "", "size": 5}, 'Its subject is "S" and its size is 5 bytes.'),
        ({"subject": "", "message_id": "", "size": 5}, "Its size is 5 bytes."),
    ],
)  # fmt: skip
def test_what_is_known_about_the_content_is_one_sentence(values: dict[str, Any], expected: str) -> None:
    assert story(entry(**values)).steps[0].text == expected


def test_a_mail_in_a_maildir_was_looked_for_in_a_log() -> None:
    told = story(entry(), around=Surroundings(next_hop="maildir:/var/mail dir"))
    assert told.now.startswith("In the Maildir /var/mail dir, in a file with ID0000 in its name")
    assert told.commands[0] == "find '/var/mail dir' -name '*.ID0000.*'"


def test_a_held_mail_may_have_left_the_hold_queue() -> None:
    """We do not see that, so the story cannot claim that it is still there."""
    told = story(entry(action="hold"), around=Surroundings(protocol="milter"))
    assert "unless someone has released or deleted it there" in told.now
    assert [command.split("    ")[0] for command in told.commands][:2] == [
        "postqueue -p | grep QUEUED",
        "postsuper -H QUEUED",
    ]


def test_a_hostile_queue_id_is_quoted_in_the_commands() -> None:
    """The next hop chooses it, and the operator copies the line."""
    told = story(entry(next_id="x; rm -rf /", sender="$(id)@x"))
    assert told.commands[0] == "grep -F 'x; rm -rf /' /var/log/mail.log"
    assert told.commands[1].startswith(r"journalctl -u 'postfix*' -g 'x;\ rm\ \-rf\ /' ")
    assert story(entry(action="reject", sender="$(id)@x")).commands == ("scanbridge history --sender '$(id)@x'",)


def test_lists_are_mentioned_only_if_they_were_asked() -> None:
    around = Surroundings("smtp", lists=("blocked-senders", "allowed-networks"))
    assert "were checked: no entry matches" in text(story(entry(), around=around))
    for values in ({"stage": "connect", "action": "reject"}, {"action": "cancelled"}, {"rule": "limits.max_received"}):
        assert "asked" not in text(story(entry(**values), around=around))


def test_the_entry_that_blocked_a_mail_can_be_found_and_deleted() -> None:
    """The story had the tag `list:NAME` only, and no command for it."""
    told = story(entry(action="reject", list="blocked-senders", sender="m@x"), around=Surroundings("smtp"))
    known = story(entry(more={"entry": "@b $x"}, action="reject", list="blocked-senders", sender="m@x"))
    assert "scanbridge lists delete blocked-senders ENTRY" in told.commands
    assert known.commands[:3] == (
        "scanbridge lists entries blocked-senders | grep -iF -e '@b $x'",
        "scanbridge lists delete blocked-senders '@b $x'",
        "scanbridge lists refresh    # the bridge then uses the change within a second",
    )
    tags = "list:blocked-domains,list:allowed-senders,x:y"
    scanned = entry(action="reject", decision="bounce", tags=tags, sender="m@mail.spam.example")
    told = story(scanned)
    assert "The scanner found a matching entry in the list blocked-domains (for its sender, " in text(told)
    assert told.commands[:2] == (
        "scanbridge lists entries blocked-domains | grep -iF -e mail.spam.example -e spam.example",
        "scanbridge lists delete blocked-domains ENTRY",
    )
    assert not any("refresh" in command for command in told.commands), "the scanner uses a change at once"
    assert "scanbridge lists" not in text(story(entry(decision="deliver", tags="list:allowed-senders")))


def test_a_refused_connection_has_a_story() -> None:
    kind = {"stage": "connect", "action": "reject", "rule": "listeners.trusted_clients", "decision": "", "scanner": ""}
    row = {"id": "", "session": "", "sender": "", "recipients": "", "message_id": "", "subject": "", "queue_id": ""}
    told = text(story(entry(mails=12, size=0, wait_s=0.0, **kind, **row)))
    assert told.startswith("A connection from 192.0.2.7 was refused")
    assert "was refused when it connected by listener mx; 12 attempts" in told
    assert "the client is not one of the listener's `trusted_clients`" in told
    assert "scanned" not in told


def test_a_client_that_went_away_during_the_content_has_a_story() -> None:
    gone = entry(action=CANCELLED, rule=rule_names.CLIENT_GONE, stage="data", decision="", scanner="", size=0)
    told = text(story(gone))
    assert "was abandoned by the client before all of its content was sent" in told
    assert "started to send it to listener mx, but did not finish" in told
    assert "before its content was sent" not in told


# After the mail server's queue

AFTER_QUEUE = Surroundings("smtp", is_after_queue=True, is_direct=False, next_hop="smtp://hop")


def test_after_the_queue_the_sending_client_was_said_to_have_received_our_reply() -> None:
    """It received the mail server's own 250, and it was the mail server that tried again."""
    first, again = entry(1, reply="451 4.3.0 later", **DEFERRED), entry(2, reply="250 2.0.0 Ok")
    told = text(story(first, again, around=AFTER_QUEUE))
    server = "The mail server in front of the bridge"
    assert f"Attempt 1: {server}, which had accepted it from 192.0.2.7 (HELO mx.sender.example), passed it to" in told
    assert f"Attempt 2: {server} passed it again to listener mx." in told
    assert f"{server} received: 451 4.3.0 later" in told and f"{server} received: 250 2.0.0 Ok" in told
    assert "client" not in told and " sent it" not in told


@pytest.mark.parametrize(("values", "more", "expected"), [
    ({"client": "", "helo": ""}, {}, "\nThe mail server in front of the bridge passed it to listener mx."),
    ({}, {"login": "jane"}, "from 192.0.2.7 (HELO mx.sender.example), logged in as jane, passed it to listener mx."),
    ({"action": "reject", "stage": "rcpt"}, {}, "mx.sender.example), was refused at RCPT by listener mx."),
    ({"action": CANCELLED}, {}, "was abandoned by the mail server in front of the bridge before a decision was made"),
    (
        {"action": CANCELLED, "rule": rule_names.CLIENT_GONE, "stage": "data"},
        {},
        "mx.sender.example), started to pass it to listener mx, but did not finish.",
    ),
    (
        {"action": "reject"},
        {"replies": {"c@x": "550 no"}},
        "For <c@x>, the mail server in front of the bridge received: 550 no",
    ),
    ({"stage": "connect", "action": "reject"}, {}, "192.0.2.7 (HELO mx.sender.example) was refused when it connec"),
])  # fmt: skip
def test_after_the_queue_the_mail_server_in_front_is_the_one_that_acts(
    values: dict[str, Any], more: dict[str, Any], expected: str
) -> None:
    assert expected in text(story(entry(more=more, **values), around=AFTER_QUEUE))


@pytest.mark.parametrize("action", ["tempfail", CANCELLED])
def test_a_mail_that_waits_in_the_queue_in_front_can_be_tried_again(action: str) -> None:
    waiting = entry(action=action)
    commands = story(waiting, around=AFTER_QUEUE).commands
    assert commands[:2] == (
        "postqueue -p | grep QUEUED    # is it still in the queue?",
        "postqueue -i QUEUED    # try again now",
    )
    assert not any("postqueue" in command for command in story(waiting).commands)
    assert not any("postqueue" in command for command in story(entry(), around=AFTER_QUEUE).commands)


# Recipients


@pytest.mark.parametrize("key", ["", "k"])
def test_another_part_of_the_recipients_was_taken_for_the_next_attempt(store: SqliteHistory, key: str) -> None:
    """A mail server sends a message to many recipients in parts. One was deferred, another delivered a moment later:
    the story told the recipients of the first that their mail had been delivered."""
    add(
        store,
        mail(1, attempt=key, recipients="a@example.org\nb@example.org", **DEFERRED),
        mail(2, attempt=key, recipients="c@example.org\nd@example.org"),
        mail(3, attempt=key, recipients="B@Example.org", **DEFERRED),
        mail(4, attempt=key, recipients="b@example.org."),
    )
    assert found(store) == [["ID0001", "ID0003", "ID0004"], ["ID0002"]]
    assert found(store, recipient="d@example.org") == [["ID0002"]]
    [one] = gather(store.find(HistoryQuery(recipient="c@example.org")))
    assert "was delivered" in tell(whole(store, one), Surroundings(), None).fate


@pytest.mark.parametrize("key", ["", "k"])
def test_a_quarantined_mail_was_told_as_delivered_to_another_recipient(store: SqliteHistory, key: str) -> None:
    """Two recipients were deferred together, and then treated differently (personal lists): the story of either one,
    and of the id of the quarantined mail, was that of the recipient who came last."""
    add(
        store,
        mail(1, attempt=key, recipients="a@example.org\nb@example.org", **DEFERRED),
        mail(2, attempt=key, recipients="b@example.org", action="quarantine", rule=rule_names.PERSONAL_BLOCK),
        mail(3, attempt=key, recipients="a@example.org"),
    )
    assert found(store) == [["ID0001", "ID0003"], ["ID0001", "ID0002"]]
    [held] = gather(store.find(HistoryQuery(what="ID0002")))
    told = text(tell(whole(store, held), Surroundings(), None))
    assert "to <b@example.org> was deferred once, then quarantined" in told
    assert "The same mail was delivered for <a@example.org>." in told and "Attempt 3" not in told


def test_a_recipient_who_had_the_mail_was_told_about_the_next_attempt_for_another(store: SqliteHistory) -> None:
    """Of two recipients who were deferred, one got the mail at the next attempt, and the other was deferred again."""
    add(
        store,
        mail(1, attempt="k", recipients="a@example.org\nb@example.org", **DEFERRED),
        mail(2, attempt="k", recipients="a@example.org"),
        mail(2, at=NOON + 2.1, attempt="k", recipients="b@example.org", **DEFERRED),
        mail(3, attempt="k", recipients="b@example.org", action="reject"),
    )
    assert found(store) == [["ID0001", "ID0002", "ID0003"], ["ID0001", "ID0002"]]
    refused, delivered = (whole(store, one) for one in gather(store.find(HistoryQuery())))
    assert "was deferred twice, then refused" in tell(refused, Surroundings(), None).fate
    assert "was deferred once, then delivered" in tell(delivered, Surroundings(), None).fate


@pytest.mark.parametrize("more", [
    {"accepted": ["b@example.org"]},
    {"replies": {"b@example.org": "250 2.0.0 Ok", "c@example.org": "550 5.1.1 no such user"}},
])  # fmt: skip
def test_a_recipient_who_has_the_mail_was_told_that_it_was_returned(more: dict[str, Any]) -> None:
    """The next hop accepted it for one recipient and refused it for another."""
    kind, row = mail(1, action="reject", error="next_hop", recipients="b@example.org\nc@example.org")
    told = tell(Mail((MailEntry(row, kind, more),)), Surroundings(next_hop="smtp://hop"), None)
    assert told.fate.endswith("was refused for some recipients, and delivered to others")
    assert told.now.startswith("smtp://hop accepted it for <b@example.org>, queue id NEXT. For the others: not here: ")
    assert "smtp://hop did not accept it for all recipients" in text(told)


# Found by audits


def test_a_mail_that_postfix_still_had_in_its_queue_was_called_delivered() -> None:
    """A milter only lets the mail pass: the mail server has it, and delivers it whenever it can."""
    for protocol in ("milter", "mta-hooks"):
        told = story(entry(next_id=""), around=Surroundings(protocol))
        assert told.fate.endswith(" was accepted by the mail server, which delivers it (queue id QUEUED)")
        assert "delivered" not in told.fate and "such mail is passed on" in text(told)
        assert "The mail server in front of the bridge (queue id QUEUED) has it, or has delivered it" in told.now
        assert any(command.startswith("postqueue -p | grep QUEUED ") for command in told.commands) is (
            protocol == "milter"
        )
    twice = story(entry(0, **DEFERRED), entry(1, next_id=""), around=Surroundings("milter"))
    assert " was deferred once, then accepted by the mail server, which delivers it" in twice.fate
    assert story(entry(), around=Surroundings(next_hop="maildir:/m")).fate.endswith(" was delivered")


@pytest.mark.parametrize("is_named", [True, False])
def test_the_entry_that_the_scanner_had_found_was_not_named(is_named: bool) -> None:
    """Only the list was: the postmaster had to guess which of its entries it was."""
    more = {"entries": {"blocked-domains": "evil.example"}} if is_named else {}
    tags = {"tags": "list:blocked-domains,list:blocked-urls", "action": "reject"}
    told = text(story(entry(more=more, **tags)))
    named = "blocked-domains (evil.example) and blocked-urls (for its sender"
    assert f"in the lists {named if is_named else 'blocked-domains and blocked-urls (for'}" in told
    assert ("lists delete blocked-domains evil.example" in told) is is_named
    alone = text(story(entry(more=more, **tags | {"tags": "list:blocked-domains"})))
    assert ("in the list blocked-domains (evil.example).\n" in alone) is is_named


@pytest.mark.parametrize("hidden", ["~1f2e3d4c5b6a7988", "*@sender.example"])
def test_a_hidden_address_was_to_be_deleted_from_a_list(hidden: str) -> None:
    """With `log.addresses`, the history has the entry as the log shows it, which is in no list."""
    told = story(entry(more={"entry": hidden}, list="blocked-senders", action="reject"))
    assert "scanbridge lists delete blocked-senders ENTRY" in told.commands
    assert not [command for command in told.commands if hidden in command]


@pytest.mark.parametrize(
    ("rule", "recipient", "expected"),
    [
        ("personal_lists.block", "b@example.org", ["show b@example.org", "delete block b@example.org @sender.example"]),
        ("personal_lists.allow", "b@example.org", ["show b@example.org", "delete allow b@example.org @sender.example"]),
        ("personal_lists.block", "~1f2e3d4c5b6a7988", ["show"]),
    ],
)
def test_the_commands_for_a_personal_list_named_a_list_that_does_not_exist(
    rule: str, recipient: str, expected: list[str]
) -> None:
    """`scanbridge lists entries personal` fails: personal lists are not among the service's."""
    personal = {"list": "personal", "rule": rule, "action": "quarantine", "recipients": recipient}
    told = story(entry(more={"entry": "@sender.example"}, **personal))
    assert "The personal list of a recipient has a matching entry (@sender.example)." in text(told)
    assert [command for command in told.commands if " lists " in command] == [
        f"scanbridge lists personal {words}" for words in expected
    ]
