"""Policy tables: what follows from each case and action, and what the client receives."""

from __future__ import annotations

import itertools

import pytest

from bridge.api.scanning import Decision
from bridge.errors import (
    AmbiguousMail,
    BridgeError,
    FailureLabel,
    MessageTooLarge,
    Saturated,
    ScanMalformed,
    ScanRefused,
    ScanTimeout,
    ScanUnavailable,
    SpoolFull,
    StoreError,
    StoreFull,
)
from bridge.filter.policy import (
    LOOP,
    SATURATED,
    Case,
    Rule,
    accepted,
    case_of_decision,
    case_of_error,
    reply_for,
    reply_to_error,
    with_id,
)
from bridge.mail.action import Action
from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply

ERRORS = [
    (Saturated("x"), 451, "4.3.2"),
    (ScanTimeout("x"), 451, "4.4.7"),
    (ScanRefused("x"), 451, "4.3.5"),
    (ScanMalformed("x"), 451, "4.3.0"),
    (ScanUnavailable("x"), 451, "4.3.0"),
    (MessageTooLarge("x"), 552, "5.3.4"),
    (SpoolFull("x"), 452, "4.3.1"),
    (StoreFull("x"), 452, "4.3.1"),
    (StoreError("x"), 451, "4.3.0"),
    (ValueError("x"), 451, "4.3.0"),
    (OSError(28, "x"), 451, "4.3.0"),
    (BridgeError("x"), 451, "4.3.0"),
]


@pytest.mark.parametrize(("error", "code", "status"), ERRORS, ids=lambda value: type(value).__name__)
def test_each_error_has_its_reply(error: Exception, code: int, status: str) -> None:
    """The table of the design, row by row; an unknown error is temporary."""
    reply = reply_to_error(error)
    assert (reply.code, reply.status) == (code, status)


@pytest.mark.parametrize(("error", "code", "status"), ERRORS, ids=lambda value: type(value).__name__)
def test_a_reply_never_has_the_errors_text(error: Exception, code: int, status: str) -> None:
    """Hosts, paths and exception texts are for the log."""
    assert "/var/lib" not in str(reply_to_error(type(error)("/var/lib/secret")))


@pytest.mark.parametrize("decision", list(Decision))
def test_each_decision_is_a_separate_case(decision: Decision) -> None:
    """Cases and decisions have the same names."""
    assert case_of_decision(decision).value == decision.value


CASES = {
    ScanUnavailable: Case.UNREACHABLE,
    ScanTimeout: Case.DEADLINE,
    ScanRefused: Case.REFUSED,
    ScanMalformed: Case.NONSENSE,
    Saturated: Case.SATURATED,
    MessageTooLarge: Case.TOO_LARGE,
}


@pytest.mark.parametrize("error", [error for error, _, _ in ERRORS], ids=lambda error: type(error).__name__)
def test_each_error_without_a_decision_has_its_case(error: Exception) -> None:
    """Other errors are `unavailable`."""
    assert case_of_error(error) is CASES.get(type(error), Case.UNAVAILABLE)


def error_of(case: Case) -> BridgeError | None:
    kinds = {case: kind for kind, case in CASES.items()} | {Case.UNAVAILABLE: ScanUnavailable}
    return kinds[case]("x") if case in kinds else None


@pytest.mark.parametrize(("case", "action"), list(itertools.product(Case, (Action.REJECT, Action.TEMPFAIL))))
def test_each_case_can_be_rejected_or_tempfailed(case: Case, action: Action) -> None:
    """A reject is 5xx and a tempfail 4xx, whatever the case, and code and status agree."""
    reply = reply_for(case, Rule(action), error_of(case))
    assert reply.code // 100 == (5 if action is Action.REJECT else 4)
    assert reply.status[0] == str(reply.code)[0]


@pytest.mark.parametrize(
    ("case", "rule", "expected"),
    [
        (Case.BOUNCE, Rule(Action.REJECT), Reply(550, "5.7.1", "The message was refused")),
        (Case.BOUNCE, Rule(Action.REJECT, 554, "Not wanted"), Reply(554, "5.7.1", "Not wanted")),
        (Case.BOUNCE, Rule(Action.REJECT, None, "Not wanted"), Reply(550, "5.7.1", "Not wanted")),
        (Case.UNDECIDED, Rule(Action.TEMPFAIL, 450, "Later"), Reply(450, "4.7.1", "Later")),
        (Case.TOO_LARGE, Rule(Action.REJECT), Reply(552, "5.3.4", "The message is too large")),
        (Case.UNAVAILABLE, Rule(Action.TEMPFAIL, None, ""), Reply(451, "4.3.0", "")),
    ],
)  # fmt: skip
def test_the_operators_code_and_text_are_used(case: Case, rule: Rule, expected: Reply) -> None:
    """What the operator does not set keeps its default."""
    assert reply_for(case, rule, error_of(case)) == expected


def test_every_reply_of_ours_names_the_mail() -> None:
    """The mail server logs it, so its log leads to ours."""
    reply = with_id(SATURATED, "ID1", "11111111-2222-4333-8444-555555555555")
    assert reply.text.endswith("(id=ID1 ggrid=11111111-2222-4333-8444-555555555555)")
    assert with_id(LOOP, "ID1").text.endswith("(id=ID1)")


@pytest.mark.parametrize("ggrid", ["", "x\r\n250 2.0.0 Ok", "x" * 65, "a b", "\x1b[31m", "\u00e9"])
def test_a_malformed_ggrid_is_left_out_of_replies(ggrid: str) -> None:
    """The scanner chooses this text; only a well-formed id may reach the client."""
    assert with_id(SATURATED, "ID1", ggrid).text.endswith("later (id=ID1)")


def test_a_dropped_mail_looks_like_any_accepted_one() -> None:
    """The sender cannot tell drop and quarantine from delivery."""
    assert str(accepted("ID1")) == "250 2.0.0 Ok: queued as ID1"


def test_a_next_hop_error_carries_its_own_reply() -> None:
    """It never goes through the table."""
    reply = Reply(450, "4.2.1", "Mailbox busy")
    assert NextHopError(reply).reply is reply


def every_error() -> list[type[BridgeError]]:
    """The whole tree, including the classes that are defined on higher floors."""
    found: list[type[BridgeError]] = [BridgeError]
    for kind in found:
        found += kind.__subclasses__()
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_each_error_class_carries_a_valid_case_label_and_reply(kind: type[BridgeError]) -> None:
    """Case and label belong to their closed sets; only a mail that is too large or ambiguous is refused permanently."""
    assert Case(kind.policy_case) and FailureLabel(kind.label)
    assert Reply(*kind.client_reply).is_temporary == (kind not in (AmbiguousMail, MessageTooLarge))


def test_each_label_belongs_to_an_error() -> None:
    """A label without an error would be a metric that never counts."""
    assert {kind.label for kind in every_error()} == set(FailureLabel)
