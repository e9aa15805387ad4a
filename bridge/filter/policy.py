"""Policy: from the scanner's decision, or the lack of one, to an action and a reply.

Pure tables, no I/O. This is the only place where an error becomes a code: temporary unless the
mail itself is the reason, and never with the error's text, which is for the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bridge.api.scanning import Decision
from bridge.errors import (
    BridgeError,
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
from bridge.mail.action import Action
from bridge.mail.reply import Reply


class Case(StrEnum):
    """What policy has a rule for: each decision, and the ways to have none."""

    DELIVER = "deliver"
    QUARANTINE = "quarantine"
    BOUNCE = "bounce"
    DROP = "drop"
    UNDECIDED = "undecided"
    UNAVAILABLE = "unavailable"  # an error that is none of those below
    UNREACHABLE = "unreachable"
    DEADLINE = "deadline"
    REFUSED = "refused"
    NONSENSE = "nonsense"
    SATURATED = "saturated"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Rule:
    action: Action
    code: int | None = None
    text: str | None = None
    keep_copy: bool = False


Policy = Mapping[Case, Rule]

SATURATED = Reply(451, "4.3.2", "Too much mail in processing, try again later")
NO_STORAGE = Reply(452, "4.3.1", "Insufficient system storage")

# Why there is no decision -> the reply that a tempfail gives. The first match wins.
_FAILURES: tuple[tuple[type[BridgeError], Reply], ...] = (
    (Saturated, SATURATED),
    (ScanTimeout, Reply(451, "4.4.7", "The scan took too long, try again later")),
    (ScanRefused, Reply(451, "4.3.5", "The scanner is not set up, try again later")),
    (ScanMalformed, Reply(451, "4.3.0", "The scanner failed, try again later")),
    (ScanUnavailable, Reply(451, "4.3.0", "The scanner cannot be reached, try again later")),
    (MessageTooLarge, Reply(552, "5.3.4", "The message is too large")),
    (SpoolFull, NO_STORAGE),
    (StoreFull, NO_STORAGE),
    (StoreError, Reply(451, "4.3.0", "The mail could not be kept, try again later")),
)
_INTERNAL = Reply(451, "4.3.0", "Internal problem, try again later")
_REFUSED = Reply(550, "5.7.1", "The message was refused")
_UNDECIDED = Reply(451, "4.7.1", "The scan came to no decision, try again later")

_GGRID = re.compile(r"[0-9A-Za-z-]{1,64}")  # a UUID; whatever else the scanner calls so is not for strangers

LONG_HEAD = Reply(554, "5.6.0", "The header section is too long")
LOOP = Reply(554, "5.4.6", "Too many hops: this mail is in a loop")


def cause_of(refusal: Reply) -> BridgeError | None:
    """What went wrong with a mail whose content was refused while it came, if it was not the mail itself."""
    if refusal == SATURATED:
        return Saturated("no room for it when it came")
    return SpoolFull("the spool cannot be written: is its disk full?") if refusal == NO_STORAGE else None


_CASE_OF = {decision: Case(decision.value) for decision in Decision}


def case_of_decision(decision: Decision) -> Case:
    return _CASE_OF[decision]


_CASES: dict[type[BridgeError], Case] = {
    ScanUnavailable: Case.UNREACHABLE,
    ScanTimeout: Case.DEADLINE,
    ScanRefused: Case.REFUSED,
    ScanMalformed: Case.NONSENSE,
    Saturated: Case.SATURATED,
    MessageTooLarge: Case.TOO_LARGE,
}


def case_of_error(error: BaseException) -> Case:
    return next((case for kind, case in _CASES.items() if isinstance(error, kind)), Case.UNAVAILABLE)


def reply_to_error(error: BaseException) -> Reply:
    """What a client reads when this went wrong."""
    for kind, reply in _FAILURES:
        if isinstance(error, kind):
            return reply
    return _INTERNAL


def reply_for(case: Case, rule: Rule, error: BaseException | None) -> Reply:
    """The reply of a reject or a tempfail, before our id is added."""
    if rule.action is Action.TEMPFAIL:
        default = _UNDECIDED if error is None else reply_to_error(error)
        if not default.is_temporary:
            default = _INTERNAL
    else:
        default = reply_to_error(error) if case is Case.TOO_LARGE and error is not None else _REFUSED
    code = rule.code or default.code
    return Reply(code, default.status, rule.text if rule.text is not None else default.text)


def with_id(reply: Reply, mail_id: str, ggrid: str = "") -> Reply:
    """Every reply of ours names the mail, so that the mail server's log leads to ours."""
    ids = f"id={mail_id} ggrid={ggrid}" if _GGRID.fullmatch(ggrid) else f"id={mail_id}"
    return Reply(reply.code, reply.status, f"{reply.text} ({ids})")


def accepted(mail_id: str) -> Reply:
    """For a mail that was dropped or quarantined: it looks like any accepted one."""
    return Reply(250, "2.0.0", f"Ok: queued as {mail_id}")
