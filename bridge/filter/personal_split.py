"""Carries out what is decided for each recipient, where `personal_rules` treats them differently.

What is withheld is stored first, and what is handed on comes after it: a copy too many in the quarantine can be taken
back, a delivered mail cannot. Each part has its own id, log line and entry in the history; the part that is handed on
keeps the id. If this is wrong, a recipient's mail is neither delivered nor stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from bridge.api.scanning import AnalysisResult
from bridge.errors import StoreError
from bridge.filter.actions import Actions, not_stored
from bridge.filter.outcome import Outcome, Record
from bridge.filter.personal_rules import Fate, PersonalLists
from bridge.filter.policy import Case, Rule
from bridge.mail.action import Action
from bridge.mail.reply import Reply, weightiest
from bridge.mail.transaction import Transaction, new_id


@dataclass(frozen=True, slots=True)
class Usual:
    """What the policy, or a list that skips the scan, has chosen for the whole mail."""

    rule: Rule
    carry_out: Callable[[Record, Rule], Awaitable[Outcome]]
    result: AnalysisResult | None = None


class PersonalSplit:
    """For one listener."""

    def __init__(self, personal: PersonalLists, actions: Actions, tell: Callable[[Record], None]) -> None:
        self.concern = personal.concern
        self._personal = personal
        self._actions = actions
        self._tell = tell

    async def carry_out(self, record: Record, why: Case, rule: Rule, result: AnalysisResult | None) -> Outcome:
        """What the policy has chosen, except for recipients whose entries say otherwise."""

        async def carry_out(part: Record, rule: Rule) -> Outcome:
            return await self._actions.carry_out(part, why, rule, result)

        return await self._by_recipient(record, Usual(rule, carry_out, result))

    async def hand_on_unscanned(self, record: Record, why: str) -> Outcome:
        """Hand on a mail that needs no scan, except to recipients who have blocked its sender."""

        async def hand_on(part: Record, rule: Rule) -> Outcome:
            return await self._actions.hand_on(part, None, why)

        return await self._by_recipient(record, Usual(Rule(Action.RELAY, name=record.rule), hand_on))

    # Private.

    async def _by_recipient(self, record: Record, usual: Usual) -> Outcome:
        tx = record.tx
        fates = self._personal.fates(
            tx.envelope, tx.message.head(), record.tenant, usual.rule, usual.result,
            is_head_cut=tx.message.is_head_cut(),
        )  # fmt: skip
        if len(fates) == 1:
            return await self._carry_out_one(record, fates[0], usual)
        getting, withheld = fates
        rule = self._possible(tx, withheld)
        if rule is None:
            return await usual.carry_out(record, usual.rule)
        return await self._carry_out_both(record, getting, replace(withheld, rule=rule), usual)

    def _possible(self, tx: Transaction, withheld: Fate) -> Rule | None:
        """The rule for the recipients who do not get the mail; None if there is no certain way to separate them."""
        rule = withheld.rule
        if tx.is_per_recipient:
            return rule
        addresses = [tx.envelope.recipients[index].address for index in withheld.indexes]
        if rule.action is Action.TEMPFAIL or not self._actions.can_separate(tx, addresses):
            return None
        if rule.action in (Action.REJECT, Action.HOLD):
            return Rule(Action.QUARANTINE, name=rule.name)
        return rule

    async def _carry_out_both(self, record: Record, getting: Fate, withheld: Fate, usual: Usual) -> Outcome:
        whole = record.tx
        other = Record(_part(whole, withheld.indexes, new_id()), record.size, record.tenant)
        other.message_id, other.subject, other.scanner = record.message_id, record.subject, record.scanner
        other.rule, other.doubts, other.unchecked = record.rule, record.doubts, record.unchecked
        other.late, other.wait_s, other.scan_s = record.late, record.wait_s, record.scan_s  # the same scan
        other.outcome = await self._carry_out_one(other, withheld, usual)
        if isinstance(other.error, StoreError) and not whole.is_per_recipient:
            return not_stored(record, other.error, usual.result)
        record.tx = _part(whole, getting.indexes, whole.id)
        try:
            outcome = await self._carry_out_first(record, getting, other, usual)
            if whole.is_per_recipient:
                record.answer = _joined(len(whole.envelope.recipients), (getting, outcome), (withheld, other.outcome))
            elif outcome.reply.is_success:
                outcome = replace(outcome, removed=other.tx.envelope.addresses)
            else:  # the client is told that nobody has the mail
                await self._actions.take_back(other)
                other.outcome, other.error = replace(outcome, stamp=()), record.error
            return outcome
        finally:
            self._tell(other)

    async def _carry_out_first(self, record: Record, getting: Fate, other: Record, usual: Usual) -> Outcome:
        try:
            return await self._carry_out_one(record, getting, usual)
        except BaseException as exc:  # mostly cancellation: the client has no answer, and sends the whole mail again
            await asyncio.shield(self._actions.take_back(other))
            other.outcome, other.error = None, exc
            raise

    async def _carry_out_one(self, record: Record, fate: Fate, usual: Usual) -> Outcome:
        if fate.listed is None:
            return await usual.carry_out(record, fate.rule)
        record.rule, record.listed = fate.rule.name, fate.listed
        if fate.rule.action is Action.RELAY:
            return await self._actions.hand_on(record, usual.result)
        return await self._actions.withhold(record, fate.rule.action, "personal block", usual.result)


def _part(tx: Transaction, indexes: Sequence[int], mail_id: str) -> Transaction:
    envelope = replace(tx.envelope, recipients=tuple([tx.envelope.recipients[index] for index in indexes]))
    return replace(tx, id=mail_id, envelope=envelope)


def _joined(count: int, *parts: tuple[Fate, Outcome]) -> Outcome:
    """One answer for a client that gets a reply for each recipient."""
    by_recipient: dict[int, Reply] = {}
    for fate, outcome in parts:
        by_recipient.update(zip(fate.indexes, outcome.replies or (outcome.reply,) * len(fate.indexes), strict=True))
    replies = tuple([by_recipient[index] for index in range(count)])
    first = parts[0][1]
    return replace(first, reply=weightiest(replies) or replies[0], replies=replies)
