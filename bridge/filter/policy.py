"""Policy: from the scanner's decision, or the lack of one, to an action and a reply.

Tables only, no I/O. Which action each case has by default is in `bridge.config.policy`; `pipeline` looks up the rule
of a mail. Only here does an error become a reply code: temporary unless the mail itself is the reason, and never with
the error's text, which is for the log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bridge.api.scanning import Decision
from bridge.errors import AmbiguousMail, BridgeError, MessageTooLarge, Saturated, ScanTimeout, SpoolFull
from bridge.filter import rule_names
from bridge.mail.action import Action
from bridge.mail.reply import Reply


class Case(StrEnum):
    """What the policy has a rule for: each decision, and each reason why there is none."""

    DELIVER = "deliver"
    QUARANTINE = "quarantine"
    BOUNCE = "bounce"
    DROP = "drop"
    UNDECIDED = "undecided"
    UNAVAILABLE = "unavailable"  # an error without its own case
    UNREACHABLE = "unreachable"
    FAILED = "failed"  # the scanner failed on this mail only
    DEADLINE = "deadline"
    SLOW = "slow"  # the deadline passed, maybe because of the mail: `deadline` if that is set, otherwise `failed`
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
    name: str = ""  # where the operator finds it: see `rule_names`


Policy = Mapping[Case, Rule]

_CASE_OF_DECISION = {decision: Case(decision.value) for decision in Decision}


def case_of_decision(decision: Decision) -> Case:
    return _CASE_OF_DECISION[decision]


def case_of_error(error: BaseException) -> Case:
    if isinstance(error, ScanTimeout) and error.is_slow:
        return Case.SLOW
    return Case(_class_of(error).policy_case)


def reply_to_error(error: BaseException) -> Reply:
    """What a client receives after this error, unless a rule says otherwise."""
    return _reply_of(_class_of(error))


def _class_of(error: BaseException) -> type[BridgeError]:
    """An exception that is not ours counts as a BridgeError of no special class."""
    return type(error) if isinstance(error, BridgeError) else BridgeError


def _reply_of(error: type[BridgeError]) -> Reply:
    return Reply(*error.client_reply)


SATURATED = _reply_of(Saturated)
NO_STORAGE = _reply_of(SpoolFull)
BARE = Reply(550, "5.5.2", "Error: a CR, LF or NUL outside a line end is not accepted")
AMBIGUOUS = _reply_of(AmbiguousMail)
LONG_HEAD = Reply(554, "5.6.0", "The header section is too long")
CONTINUES = Reply(550, "5.6.0", "The mail starts with white space: its first line would continue a header field")
TENANTS_CHANGED = Reply(451, "4.3.5", "The configuration has changed, try again later")
UNCERTAIN_DOMAIN = Reply(553, "5.1.3", "The domain of this recipient is uncertain: use user@domain")
TOO_MUCH_MAIL = Reply(451, "4.7.1", "Too much mail from your address, try again later")
LOOP = Reply(554, "5.4.6", "Too many hops: this mail is in a loop")
TWO_CLIENTS = Reply(550, "5.7.1", "The HELO of this mail's client contains another address")
TOO_MANY_FORGED = Reply(550, "5.6.0", "Too many reserved header fields")
FORGED_FIELDS = Reply(550, "5.6.0", "Reserved header fields in an ambiguous header section")
LOSSY = Reply(451, "4.6.0", "The content was changed on its way to the scanner, try again later")
CANNOT_HOLD = Reply(451, "4.3.0", "The mail cannot be held here, try again later")

_RULE_OF_REFUSAL = {
    BARE: rule_names.LINE_ENDS,
    CONTINUES: rule_names.FIRST_LINE,
    TWO_CLIENTS: rule_names.CLIENT,
    TOO_MANY_FORGED: rule_names.OUR_FIELDS,
    FORGED_FIELDS: rule_names.OUR_FIELDS,
    LOSSY: rule_names.LOSSY,
    LONG_HEAD: rule_names.of_limit("header"),
    LOOP: rule_names.of_limit("max_received"),
    SATURATED: rule_names.EXHAUSTED,
    NO_STORAGE: rule_names.SPOOL,
    UNCERTAIN_DOMAIN: rule_names.RECIPIENT_DOMAIN,
}

_INTERNAL = _reply_of(BridgeError)
_REFUSED = Reply(550, "5.7.1", "The message was refused")
_UNDECIDED = Reply(451, "4.7.1", "The scan came to no decision, try again later")


def cause_of(refusal: Reply) -> BridgeError | None:
    """The error behind a refusal during the transfer of the content; None when the mail itself was refused."""
    if refusal == SATURATED:
        return Saturated("the limit on bytes being processed was reached during the transfer")
    if refusal == NO_STORAGE:
        return SpoolFull("cannot write to the spool: its disk is full, or does not respond")
    return None


def rule_of_refusal(reply: Reply) -> str:
    """The name of the rule by which the intake, or the pipeline before the scan, refuses a mail with this reply."""
    if reply.code == 552:
        return rule_names.TOO_LARGE
    return _RULE_OF_REFUSAL.get(reply, rule_names.CONTENT)


def reply_for(case: Case, rule: Rule, error: BaseException | None, wanted: str = "") -> Reply:
    """The reply of a reject or a tempfail, before our id is added. `wanted`: the scanner's words, if allowed."""
    if rule.action is Action.TEMPFAIL:
        default = _UNDECIDED if error is None else reply_to_error(error)
        if not default.is_temporary:
            default = _INTERNAL
    else:
        default = reply_to_error(error) if case is Case.TOO_LARGE and error is not None else _REFUSED
    code = rule.code or default.code
    return Reply(code, default.status, rule.text if rule.text is not None else wanted or default.text)


def as_configured(refusal: Reply, policy: Policy) -> Reply:
    """A refusal by the intake, with the policy's own code and text if it has a rule for it (mail that is too large)."""
    rule = policy[Case.TOO_LARGE]
    is_own = rule.action is Action.TEMPFAIL or rule.code is not None or rule.text is not None
    if not is_own or rule_of_refusal(refusal) != rule_names.TOO_LARGE:
        return refusal
    return reply_for(Case.TOO_LARGE, rule, MessageTooLarge())


_GGRID = re.compile(r"[0-9A-Za-z-]{1,64}")  # a UUID; anything else that the scanner sends stays out of replies


def with_id(reply: Reply, mail_id: str, ggrid: str = "") -> Reply:
    """Adds the mail's id to one of our own replies, so that the mail server's log leads to our log."""
    ids = f"id={mail_id} ggrid={ggrid}" if _GGRID.fullmatch(ggrid) else f"id={mail_id}"
    return Reply(reply.code, reply.status, f"{reply.text} ({ids})")


def accepted(mail_id: str) -> Reply:
    """For a dropped or quarantined mail: the sender cannot tell it from a delivered one."""
    return Reply(250, "2.0.0", f"Ok: queued as {mail_id}")
