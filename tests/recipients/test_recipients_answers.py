"""Different answers for different recipients: what LMTP, PRDR and plain SMTP clients receive, and who gets the mail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from bridge.testing import NextHop, RunningBridge
from tests.filter.smtp_kit import counted, mail_lines
from tests.recipients.recipients_kit import arrived, bridge_before, converse, decide, next_hop, refuse, send

PEOPLE = ("b@example.org", "c@example.org", "d@example.org")
FULL, BUSY = b"552 5.2.2 Full", b"452 4.2.2 Busy"
NO, LATER = b"550 5.1.1 No such user", b"450 4.2.1 Try later"
EACH = pytest.mark.parametrize("protocol", ["lmtp", "prdr"])


HOPS = pytest.mark.parametrize("lmtp", [False, True], ids=["smtp-hop", "lmtp-hop"])
Way = Callable[..., tuple[RunningBridge, NextHop]]


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Way]:
    """A bridge for this protocol and its scripted next hop; created once for all tests."""
    running: dict[tuple[str, bool], tuple[RunningBridge, NextHop]] = {}
    with ExitStack() as stack:

        def get(protocol: str, lmtp: bool = False, **replies: bytes) -> tuple[RunningBridge, NextHop]:
            key = ("lmtp" if protocol == "lmtp" else "smtp", lmtp)
            if key not in running:
                hop = stack.enter_context(next_hop(lmtp))
                running[key] = stack.enter_context(bridge_before(hop, tmp_path_factory.mktemp("bridge"), protocol)), hop
            bridge, hop = running[key]
            hop.replies.clear()
            hop.mails.clear()
            refuse(hop, **replies)
            decide(bridge)
            return bridge, hop

        yield get


def mixed(bridge: RunningBridge, told: str) -> float:
    return counted(bridge, "mixed_mails_total", listener="test", told=told)


def own(protocol: str, replies: list[bytes]) -> list[bytes]:
    """The replies per recipient, without PRDR's first and last reply."""
    if protocol == "lmtp":
        return replies
    assert replies[0].startswith(b"353 ")
    return replies[1:-1]


@EACH
@HOPS
def test_each_recipient_has_its_own_reply(ways: Way, lmtp: bool, protocol: str) -> None:
    """One is refused permanently, one temporarily, and the third gets the mail; log and metrics show it."""
    bridge, hop = ways(protocol, lmtp, RCPT_c=NO, RCPT_d=LATER)
    before = mixed(bridge, "each")
    with mail_lines() as lines:
        replies = own(protocol, send(bridge, protocol, *PEOPLE))
    assert replies == [b"250 2.0.0 Ok: queued as NEXT1", NO, LATER]
    assert arrived(hop) == [["b"]]
    assert mixed(bridge, "each") == before + 1
    (line,) = lines
    assert (line["nrcpt"], line["accepted"], line["next_id"]) == (3, "1", "NEXT1")
    assert line["refused"] == "<c@example.org> 550 5.1.1 No such user; <d@example.org> 450 4.2.1 Try later"


@EACH
def test_lmtp_next_hop_answers_after_the_dot(ways: Way, protocol: str) -> None:
    bridge, hop = ways(protocol, True, DOT_c=FULL, DOT_d=BUSY)
    replies = own(protocol, send(bridge, protocol, *PEOPLE))
    assert replies == [b"250 2.0.0 Ok: queued as NEXT1", FULL, BUSY]
    assert arrived(hop) == [["b"]]


@pytest.mark.parametrize(
    ("replies", "whole"),
    [
        ({}, b"250 2.0.0 Ok: queued as NEXT1"),
        ({"RCPT_b": NO}, b"250 2.0.0 Ok: accepted for 2 of 3 recipients"),
        ({"RCPT_b": LATER, "RCPT_c": NO}, b"250 2.0.0 Ok: accepted for 1 of 3 recipients"),
        ({"RCPT_b": NO, "RCPT_c": LATER, "RCPT_d": NO}, LATER),
        ({"RCPT_b": NO, "RCPT_c": FULL, "RCPT_d": NO}, NO),
        ({"DOT": b"554 5.7.1 Bad"}, b"554 5.7.1 Bad"),
        ({"MAIL": LATER}, LATER),
    ],
)
def test_the_last_prdr_reply_overrides_no_recipient_reply(ways: Way, replies: dict[str, bytes], whole: bytes) -> None:
    """Exim applies a 5xx there to all recipients, and a 4xx to those that were accepted."""
    bridge, _ = ways("prdr", **replies)
    assert send(bridge, "prdr", *PEOPLE)[-1] == whole


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        ({"RCPT_c": LATER}, LATER),
        ({"RCPT_c": NO}, NO),
        ({"RCPT_b": NO, "RCPT_c": LATER}, LATER),
        ({"RCPT_b": LATER, "RCPT_c": NO}, LATER),
    ],
)
@HOPS
def test_plain_smtp_a_mail_refused_for_one_recipient_goes_to_none(
    ways: Way, lmtp: bool, replies: dict[str, bytes], answer: bytes
) -> None:
    """One reply must hold for all recipients: the client keeps the mail for all of them."""
    bridge, hop = ways("smtp", lmtp, **replies)
    before = mixed(bridge, "one")
    assert send(bridge, "smtp", *PEOPLE) == [answer]
    assert arrived(hop) == []
    assert mixed(bridge, "one") == before


@pytest.mark.parametrize(
    ("replies", "answer", "have_it"),
    [
        ({"DOT_c": FULL}, FULL, ["b", "d"]),
        ({"DOT_c": BUSY}, BUSY, ["b", "d"]),
        ({"DOT_b": FULL, "DOT_d": BUSY}, BUSY, ["c"]),
    ],
)
def test_plain_smtp_a_partly_delivered_mail_is_not_lost_for_the_others(
    ways: Way, replies: dict[str, bytes], answer: bytes, have_it: list[str]
) -> None:
    """With LMTP it is too late to stop: the mail is sent again (4xx) or bounced (5xx); a metric counts it."""
    bridge, hop = ways("smtp", True, **replies)
    before = mixed(bridge, "one")
    with mail_lines() as lines:
        assert send(bridge, "smtp", *PEOPLE) == [answer]
    assert arrived(hop) == [have_it]
    assert mixed(bridge, "one") == before + 1
    assert f"{len(have_it)} of 3 recipients have it" in lines[0]["why"]
    if answer.startswith(b"4"):  # the client retries, and now all recipients succeed
        hop.replies.clear()
        assert send(bridge, "smtp", *PEOPLE)[0].startswith(b"250")
        assert arrived(hop) == [have_it, ["b", "c", "d"]]


@EACH
def test_our_decision_is_the_reply_to_each_recipient(ways: Way, protocol: str) -> None:
    bridge, hop = ways(protocol)
    decide(bridge, b="bounce")
    replies = send(bridge, protocol, *PEOPLE)
    assert len(replies) == (3 if protocol == "lmtp" else 5)
    assert all(reply.startswith(b"550 5.7.1 ") for reply in own(protocol, replies))
    assert hop.mails == []


@EACH
def test_unacceptable_content_is_refused_for_each_recipient(ways: Way, protocol: str) -> None:
    bridge, _ = ways(protocol)
    replies = send(bridge, protocol, *PEOPLE, content=b"bare\nline\r\n")
    assert all(reply.startswith(b"550 5.5.2 ") for reply in own(protocol, replies))
    assert protocol == "lmtp" or replies[-1].startswith(b"550 5.5.2 ")


@EACH
def test_an_unreachable_next_hop_is_a_451_with_our_id_for_each_recipient(ways: Way, protocol: str) -> None:
    bridge, _ = ways(protocol, MAIL=b"")
    for reply in own(protocol, send(bridge, protocol, *PEOPLE)):
        assert reply.startswith(b"451 4.4.2 ") and b"(id=" in reply


def test_prdr_is_used_between_the_client_and_the_bridge_only(ways: Way) -> None:
    """The parameter is not relayed, and the next mail of the session does not use PRDR."""
    bridge, hop = ways("prdr")
    with bridge.client() as client:
        converse(client, "prdr", *PEOPLE)
        assert client.begin() == b"354 End data with <CR><LF>.<CR><LF>"
        assert client.say(b"x\r\n.")[0].startswith(b"250 ")
        assert client.say(b"MAIL FROM:<> PRDR", b"RSET")[0].startswith(b"250 ")
        assert client.mail().startswith(b"250 ")
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]
    sent = [command for mail in hop.mails for command in mail.commands if command.startswith(b"MAIL")]
    assert len(sent) == 3 and not any(b"PRDR" in command for command in sent)


def test_prdr_has_a_reply_for_each_accepted_recipient(ways: Way) -> None:
    """Even for a single recipient, between 353 and the last reply."""
    bridge, _ = ways("prdr")
    with bridge.client() as client:
        at_rcpt, replies = converse(client, "prdr", "b@example.org", "not an address", "@")
        assert [reply[:3] for reply in at_rcpt] == [b"250", b"501", b"553"]
        assert [reply[:3] for reply in replies] == [b"353", b"250", b"250"]
        assert client.say(b"NOOP") == [b"250 2.0.0 OK"]


def test_a_thousand_recipients_get_a_thousand_replies(ways: Way) -> None:
    people = [f"r{number}@example.org" for number in range(1000)]
    bridge, hop = ways("lmtp", RCPT_r7=NO, RCPT_r999=LATER)
    replies = send(bridge, "lmtp", *people)
    assert len(replies) == 1000
    assert [number for number, reply in enumerate(replies) if not reply.startswith(b"250")] == [7, 999]
    assert len(hop.mails[0].recipients) == 998


def test_after_mixed_mails_nothing_is_held(ways: Way) -> None:
    """Slots and bytes are given back."""
    bridge, hop = ways("lmtp", RCPT_c=NO)
    for _ in range(3):
        send(bridge, "lmtp", *PEOPLE)
    assert len(hop.mails) == 3
    assert counted(bridge, "in_processing") == counted(bridge, "bytes_in_processing") == 0
