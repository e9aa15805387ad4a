"""Shadow mode: for a share of the mail, decisions are only logged and counted, and the mail is delivered.

If this is wrong, mail is refused in a trial that must not change anything, or the log does not say what would happen.
"""

from __future__ import annotations

import random
from zlib import crc32

from bridge.filter import rule_names
from bridge.filter.outcome import Record
from bridge.filter.policy import Rule
from bridge.mail.action import Action
from bridge.mail.list_match import ListAction
from bridge.mail.session import Session

DELIVERS = Rule(Action.RELAY)

_dice = random.Random()  # noqa: S311 - selects a share of the mail, keeps no secret


def covers(percent: float, session: Session, sender: str, *, has_lists: bool) -> bool:
    """Whether this mail is one of the share."""
    if not has_lists or not 0 < percent < 100:
        return percent > 0 and _dice.random() * 100 < percent
    # Asked at MAIL, at RCPT and for the complete mail, which must all get the same answer, so it is not random.
    return crc32(f"{session.id} {sender}".encode("utf-8", "replace")) % 10_000 < percent * 100


def note(record: Record, rule: Rule, *, is_ambiguous: bool, keeps_refused: bool) -> None:
    """The action that would have been taken, and by which rule.

    An ambiguous mail would be refused before the lists are checked, and a list takes precedence over the decision.
    """
    record.would = rule.action
    if is_ambiguous:
        record.would, record.rule = Action.REJECT, rule_names.of_ambiguity(record.tx.session.listener)
        if keeps_refused:
            record.would = Action.QUARANTINE
    elif record.listed is not None:
        record.would = Action.REJECT if record.listed.action is ListAction.SHADOW_REFUSED else Action.RELAY
        record.rule = rule_names.of_list(record.listed.name)
