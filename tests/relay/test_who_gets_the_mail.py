"""What the next hop's answers mean for a mail: every row of both decisions, and when to stop asking."""

from __future__ import annotations

import pytest

from bridge.mail.reply import Reply
from bridge.relay.client_replies import LATE, LOST, OUT_OF_PLACE
from bridge.relay.commands import Commands
from bridge.relay.connection import End
from bridge.relay.who_gets_the_mail import (
    SEND_TO_ALL,
    AnsweredPerRecipient,
    ContentDecision,
    Delivered,
    DotAnswers,
    EnvelopeDecision,
    Lost,
    RefusedForAll,
    SendContent,
    Stale,
    after_content,
    after_envelope,
    is_settled,
)

CLOSED = Lost(End.LOST)
SILENT = Lost(End.SILENT)
EXPIRED = Lost(End.LATE)
MIDWAY = Lost(End.BROKEN, Reply(552, "5.3.4", "Too large"))
GOODBYE = Lost(End.LOST, Reply(421, "4.3.2", "Bye"))
MIDWAY_SUCCESS = Lost(End.BROKEN, Reply(250, "", "?"))
PARTIAL = Lost(End.BROKEN)  # the start of an answer too many, or none at all


def reply(code: int | str) -> Reply:
    return Reply(int(code), "", "x")


def answers(codes: str) -> list[Reply]:
    return [reply(code) for code in codes.split()]


def envelope(recipients: int, *, reset: bool = False, xforward: bool = False) -> Commands:
    before_mail = reset + xforward
    return Commands(b"", before_mail + 1 + recipients + 1, before_mail, reset)


def hang_up(result: Reply) -> RefusedForAll:
    return RefusedForAll(result, must_hang_up=True)


# Columns: answers to MAIL, three RCPT and DATA; how the connection ended; the decision for a client that reads one
# reply; and for a client that reads one per recipient, where it differs.
ENVELOPE: list[tuple[str, Lost | None, EnvelopeDecision, EnvelopeDecision | None]] = [
    # Everything accepted.
    ("250 250 250 250 354", None, SEND_TO_ALL, None),
    ("250 251 252 250 354", None, SEND_TO_ALL, None),
    # MAIL is refused; what the next hop says to the other commands follows from that.
    ("550 503 503 503 503", None, RefusedForAll(reply(550)), None),
    ("450 503 503 503 503", None, RefusedForAll(reply(450)), None),
    ("550", None, RefusedForAll(reply(550)), None),
    ("521 503 503 503 503", None, RefusedForAll(reply(451)), None),
    ("354 250 250 250 354", None, hang_up(OUT_OF_PLACE), None),
    ("550 503 503 503 354", None, hang_up(reply(550)), None),
    ("421", CLOSED, RefusedForAll(reply(451)), None),
    # Some recipients are refused: 4xx outweighs 5xx, and the first outweighs the others.
    ("250 250 550 250 354", None, hang_up(reply(550)), SendContent({1: reply(550)})),
    ("250 550 450 250 354", None, hang_up(reply(450)), SendContent({0: reply(550), 1: reply(450)})),
    ("250 451 250 450 354", None, hang_up(reply(451)), SendContent({0: reply(451), 2: reply(450)})),
    ("250 521 250 250 354", None, hang_up(reply(451)), SendContent({0: reply(451)})),
    # All recipients are refused; DATA is refused for that reason, or was not sent.
    ("250 550 551 450 554", None, RefusedForAll(reply(450)), AnsweredPerRecipient(tuple(answers("550 551 450")))),
    ("250 550 551 552", None, RefusedForAll(reply(550)), AnsweredPerRecipient(tuple(answers("550 551 552")))),
    ("250 550 551 552 354", None, hang_up(reply(550)), AnsweredPerRecipient(tuple(answers("550 551 552")), True)),
    # DATA alone is refused, or answered with something that is neither 354 nor a refusal.
    ("250 250 250 250 451", None, RefusedForAll(reply(451)), AnsweredPerRecipient((reply(451),) * 3)),
    ("250 250 250 250 554", None, RefusedForAll(reply(554)), AnsweredPerRecipient((reply(554),) * 3)),
    ("250 250 250 250 250", None, hang_up(OUT_OF_PLACE), AnsweredPerRecipient((OUT_OF_PLACE,) * 3, True)),
    ("250 250 250 250 421", CLOSED, RefusedForAll(reply(451)), AnsweredPerRecipient((reply(451),) * 3)),
    # DATA is refused for those accepted at RCPT; the others keep their own refusal.
    (
        "250 250 550 250 451",
        None,
        RefusedForAll(reply(550)),
        AnsweredPerRecipient((reply(451), reply(550), reply(451))),
    ),
    # A 3xx to RCPT is neither yes nor no: nobody's answer can be trusted.
    ("250 250 354 250 354", None, hang_up(OUT_OF_PLACE), None),
    ("250 354 550 250", None, hang_up(OUT_OF_PLACE), None),
    # The connection ends. A 5xx is not passed on while a 4xx may be missing.
    ("", CLOSED, CLOSED, None),
    ("", SILENT, SILENT, None),
    ("", EXPIRED, EXPIRED, None),
    ("250", CLOSED, CLOSED, None),
    ("250 250 250", SILENT, SILENT, None),
    ("250 250 250 250", EXPIRED, EXPIRED, None),
    ("250 550", CLOSED, CLOSED, None),
    ("250 354 450", CLOSED, CLOSED, None),
    ("250 550 450", CLOSED, RefusedForAll(reply(450)), None),
    ("250 250 421", CLOSED, RefusedForAll(reply(451)), None),
    ("250 250 550 250", CLOSED, RefusedForAll(reply(550)), AnsweredPerRecipient((LOST, reply(550), LOST))),
    ("250 250 550 250", EXPIRED, RefusedForAll(reply(550)), AnsweredPerRecipient((LATE, reply(550), LATE))),
    # A 5xx that answers no command is not about this mail; a 4xx may be passed on.
    ("", MIDWAY, Lost(End.BROKEN), None),
    ("250 250", MIDWAY, Lost(End.BROKEN), None),
    # With more answers than commands, nobody knows which answer belongs to what.
    ("250 250 550 250", MIDWAY, hang_up(OUT_OF_PLACE), None),
    ("250 250 550 250 354", MIDWAY, hang_up(OUT_OF_PLACE), None),
    ("250 250 550 450 250", MIDWAY_SUCCESS, hang_up(OUT_OF_PLACE), None),
    ("250 250 550 250 354", PARTIAL, hang_up(OUT_OF_PLACE), None),
    # The same while the last one is yet to come: it shows in answers that cannot be those to our commands.
    ("250 250 550 250 250", None, hang_up(OUT_OF_PLACE), None),
    ("250 550 250 250 250", None, hang_up(OUT_OF_PLACE), None),
    ("550 250 250 250 250", None, hang_up(OUT_OF_PLACE), None),
    ("550 250 250 250 550", None, hang_up(OUT_OF_PLACE), None),
    ("550 250 550 250", None, hang_up(OUT_OF_PLACE), None),
    (
        "250 250 550 250 503",
        GOODBYE,
        RefusedForAll(reply(550)),
        AnsweredPerRecipient((reply(503), reply(550), reply(503))),
    ),
    ("250", Lost(End.BROKEN, reply(452)), Lost(End.BROKEN, reply(452)), None),
]  # fmt: skip


@pytest.mark.parametrize(("codes", "lost", "for_all", "for_each"), ENVELOPE)
def test_the_answers_to_the_envelope_decide_on_the_content(
    codes: str, lost: Lost | None, for_all: EnvelopeDecision, for_each: EnvelopeDecision | None
) -> None:
    commands = envelope(3)
    for is_per_recipient, expected in ((False, for_all), (True, for_each or for_all)):
        decision = after_envelope(
            commands, answers(codes), is_per_recipient=is_per_recipient, is_reused=False, lost=lost
        )  # fmt: skip
        assert decision == expected


# Columns: whether RSET and XFORWARD are sent; answers to them, MAIL, one RCPT and DATA; the end; the decision.
BEFORE_MAIL: list[tuple[bool, bool, str, Lost | None, EnvelopeDecision]] = [
    (True, False, "250 250 250 354", None, SEND_TO_ALL),
    (True, True, "250 250 250 250 354", None, SEND_TO_ALL),
    # XFORWARD informs the next hop's log; its refusal does not concern the mail.
    (False, True, "501 250 250 354", None, SEND_TO_ALL),
    (False, True, "450 250 250 354", None, SEND_TO_ALL),
    (False, True, "501 550 503 503", None, RefusedForAll(reply(550))),
    (False, True, "421", CLOSED, RefusedForAll(reply(451))),
    (True, True, "250 421", CLOSED, RefusedForAll(reply(451))),
    (False, True, "501", CLOSED, CLOSED),
    # After a refused RSET the answer to MAIL is about the previous mail.
    (True, False, "500 503 503 503", None, hang_up(OUT_OF_PLACE)),
    (True, False, "500 250 250 354", None, hang_up(OUT_OF_PLACE)),
    (True, True, "450 250 250 250 354", None, hang_up(OUT_OF_PLACE)),
    (True, False, "421", CLOSED, RefusedForAll(reply(451))),
]


@pytest.mark.parametrize("is_per_recipient", [False, True])
@pytest.mark.parametrize(("reset", "xforward", "codes", "lost", "expected"), BEFORE_MAIL)
def test_answers_to_rset_and_xforward_are_not_taken_for_those_to_the_mail(
    reset: bool, xforward: bool, codes: str, lost: Lost | None, expected: EnvelopeDecision, is_per_recipient: bool
) -> None:
    commands = envelope(1, reset=reset, xforward=xforward)
    decision = after_envelope(
        commands, answers(codes), is_per_recipient=is_per_recipient, is_reused=False, lost=lost
    )  # fmt: skip
    assert decision == expected


@pytest.mark.parametrize(
    ("codes", "lost", "expected"),
    [
        ("", CLOSED, Stale()),
        ("250", CLOSED, Stale()),
        ("500", CLOSED, Stale()),
        ("421", CLOSED, Stale()),
        ("250 250", CLOSED, Stale()),
        ("250 250 421", CLOSED, Stale()),
        ("250 250 250", CLOSED, CLOSED),
        ("250 250 550", CLOSED, RefusedForAll(reply(550))),
        ("250 250 250 421", CLOSED, RefusedForAll(reply(451))),
        ("", SILENT, SILENT),
        ("", EXPIRED, EXPIRED),
        ("", Lost(End.BROKEN), Lost(End.BROKEN)),
        ("", MIDWAY, Stale()),
        ("250 250 250", MIDWAY, Lost(End.BROKEN)),
    ],
)
def test_a_reused_connection_lost_before_mail_is_answered_is_stale(
    codes: str, lost: Lost, expected: EnvelopeDecision
) -> None:
    """Only then is it certain that the next hop has not seen the mail; a silent next hop may have."""
    commands = envelope(2, reset=True, xforward=True)
    for is_per_recipient in (False, True):
        decision = after_envelope(
            commands, answers(codes), is_per_recipient=is_per_recipient, is_reused=True, lost=lost
        )  # fmt: skip
        assert decision == expected


@pytest.mark.parametrize(
    ("codes", "for_all", "for_each"),
    [
        ("", False, False),
        ("500", False, False),  # RSET: MAIL is still sent, as with pipelining
        ("250 450", False, False),  # XFORWARD
        ("250 250 250", False, False),
        ("250 250 550", True, True),  # MAIL
        ("250 250 450", True, True),
        ("250 250 354", True, True),
        ("250 250 250 550", False, False),  # a 4xx for the other recipient would outweigh it
        ("250 250 250 450", True, False),  # nothing outweighs it
        ("250 250 250 354", False, False),
        ("250 250 250 354 450", True, True),  # before DATA: all are in doubt
        ("250 250 250 250 250", False, False),
        ("250 250 250 250 550", True, False),  # one recipient may still get the mail
        ("250 250 250 250 450", True, False),
        ("250 250 250 550 450", True, True),
        ("250 250 250 250 354", True, True),
        ("500 250 250 250 250", True, True),
    ],
)
def test_step_by_step_no_command_is_sent_that_cannot_help(codes: str, for_all: bool, for_each: bool) -> None:
    """The commands are RSET, XFORWARD, MAIL, two RCPT and DATA."""
    commands = envelope(2, reset=True, xforward=True)
    assert is_settled(commands, answers(codes), is_per_recipient=False) is for_all
    assert is_settled(commands, answers(codes), is_per_recipient=True) is for_each


def test_a_settled_mail_is_refused_and_never_just_lost() -> None:
    """Without pipelining, an undecided 3xx and then a 4xx at RCPT once left a mail open in a pooled connection."""
    commands = envelope(3)
    given = answers("250 354 450")
    assert not is_settled(commands, given, is_per_recipient=False)
    given += answers("250")
    assert is_settled(commands, given, is_per_recipient=False)
    decision = after_envelope(commands, given, is_per_recipient=False, is_reused=False, lost=None)
    assert decision == hang_up(OUT_OF_PLACE)


def delivered(*codes: int) -> Delivered:
    return Delivered(reply(codes[0]), "", tuple(map(reply, codes)))


def each(*codes: int | Reply, must_hang_up: bool = False) -> AnsweredPerRecipient:
    replies = tuple(code if isinstance(code, Reply) else reply(code) for code in codes)
    return AnsweredPerRecipient(replies, must_hang_up)


# Columns: answers to the dot of a mail with three recipients; the end; the decision for a client that reads one reply;
# and for a client that reads one per recipient, where it differs.
SMTP_DOT: list[tuple[str, Lost | None, ContentDecision, ContentDecision | None]] = [
    ("250", None, delivered(250, 250, 250), None),
    ("450", None, RefusedForAll(reply(450)), None),
    ("550", None, RefusedForAll(reply(550)), None),
    ("521", None, RefusedForAll(reply(451)), None),
    ("421", CLOSED, RefusedForAll(reply(451)), None),
    ("354", None, hang_up(OUT_OF_PLACE), None),
    ("", CLOSED, CLOSED, RefusedForAll(LOST)),
    ("", SILENT, SILENT, RefusedForAll(LOST)),
    ("", MIDWAY, MIDWAY, RefusedForAll(Reply(552, "5.3.4", "Too large"))),
    ("", MIDWAY_SUCCESS, MIDWAY_SUCCESS, RefusedForAll(LOST)),
    # A second answer: the first one counts, unless one of them is a refusal, which may be about the mail or not.
    ("250", MIDWAY, RefusedForAll(OUT_OF_PLACE), None),
    ("250", MIDWAY_SUCCESS, delivered(250, 250, 250), None),
    ("250", PARTIAL, delivered(250, 250, 250), None),
    ("250", GOODBYE, delivered(250, 250, 250), None),
    ("550", MIDWAY_SUCCESS, RefusedForAll(OUT_OF_PLACE), None),
    ("550", PARTIAL, RefusedForAll(OUT_OF_PLACE), None),
]
LMTP_DOT: list[tuple[str, Lost | None, ContentDecision, ContentDecision | None]] = [
    ("250 251 252", None, delivered(250, 251, 252), None),
    ("250 550 452", None, each(250, 550, 452), None),
    ("552 552 552", None, RefusedForAll(reply(552)), None),
    ("250 421 250", CLOSED, each(250, 451, 250), None),
    ("250 521 250", None, each(250, 451, 250), None),
    # A 354 answers no dot: one answer too many came before, so the others may be one place off.
    ("550 354 250", None, hang_up(OUT_OF_PLACE), None),
    ("354 250", CLOSED, hang_up(OUT_OF_PLACE), None),
    ("", CLOSED, CLOSED, RefusedForAll(LOST)),
    ("250", CLOSED, CLOSED, each(250, LOST, LOST)),
    ("250 550", CLOSED, CLOSED, each(250, 550, LOST)),
    ("250 550", EXPIRED, EXPIRED, each(250, 550, LATE)),
    ("250 450", CLOSED, RefusedForAll(reply(450)), each(250, 450, LOST)),
    ("250 421", CLOSED, RefusedForAll(reply(451)), each(250, 451, LOST)),
    # A fourth answer to three recipients: nobody knows whose answer is whose.
    ("250 550 250", MIDWAY_SUCCESS, RefusedForAll(OUT_OF_PLACE), None),
    ("250 250 250", MIDWAY, RefusedForAll(OUT_OF_PLACE), None),
    ("250 550 250", PARTIAL, RefusedForAll(OUT_OF_PLACE), None),
    ("250 250 250", PARTIAL, RefusedForAll(OUT_OF_PLACE), None),
    ("", MIDWAY, MIDWAY, RefusedForAll(Reply(552, "5.3.4", "Too large"))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("is_lmtp", "codes", "lost", "for_all", "for_each"),
    [(False, *row) for row in SMTP_DOT] + [(True, *row) for row in LMTP_DOT],
)
def test_the_answers_to_the_dot_decide_who_has_the_mail(
    is_lmtp: bool, codes: str, lost: Lost | None, for_all: ContentDecision, for_each: ContentDecision | None
) -> None:
    for is_per_recipient, expected in ((False, for_all), (True, for_each or for_all)):
        awaited = DotAnswers(3, {}, is_lmtp, is_per_recipient)
        assert after_content(awaited, answers(codes), lost) == expected


@pytest.mark.parametrize(
    ("is_lmtp", "codes", "lost", "expected"),
    [
        (False, "250", None, each(250, 550, 250, 450)),
        (False, "554", None, each(554, 550, 554, 450)),
        (False, "421", CLOSED, each(451, 550, 451, 450)),
        (False, "", SILENT, each(LOST, 550, LOST, 450)),
        (False, "354", None, each(OUT_OF_PLACE, 550, OUT_OF_PLACE, 450, must_hang_up=True)),
        (True, "250 250", None, each(250, 550, 250, 450)),
        (True, "452 250", None, each(452, 550, 250, 450)),
        (True, "250", CLOSED, each(250, 550, LOST, 450)),
        (True, "", CLOSED, each(LOST, 550, LOST, 450)),
    ],
)
def test_recipients_refused_at_rcpt_keep_their_refusal_after_the_dot(
    is_lmtp: bool, codes: str, lost: Lost | None, expected: ContentDecision
) -> None:
    """The second and the fourth of four recipients were refused."""
    awaited = DotAnswers(4, {1: reply(550), 3: reply(450)}, is_lmtp, is_per_recipient=True)
    assert awaited.count == (2 if is_lmtp else 1)
    assert after_content(awaited, answers(codes), lost) == expected


def test_the_next_hops_queue_id_is_found() -> None:
    ok = Reply(250, "2.0.0", "Ok: queued as 4ABC123")
    decision = after_content(DotAnswers(2, {}, is_lmtp=False, is_per_recipient=False), [ok], None)
    assert decision == Delivered(ok, "4ABC123", (ok, ok))


@pytest.mark.parametrize(
    ("lost", "text"),
    [
        (CLOSED, "next hop: connection lost"),
        (SILENT, "next hop: no answer in time"),
        (EXPIRED, "next hop: deadline passed"),
        (MIDWAY, "552 5.3.4 Too large"),
        (MIDWAY_SUCCESS, "next hop: not SMTP"),
    ],
)
def test_a_lost_connection_is_explained_in_the_log(lost: Lost, text: str) -> None:
    assert str(lost.error()) == text
