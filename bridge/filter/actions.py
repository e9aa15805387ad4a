"""Actions: does with a mail what the policy has chosen.

Hands it on, stores it, or only builds the reply. Decides nothing: the rule comes from `policy`. If this
is wrong, a client receives 250 for a mail that is neither delivered nor stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic
from typing import assert_never

from bridge.api.changes import Changes
from bridge.api.scanning import AnalysisResult
from bridge.errors import StoreError
from bridge.filter import changes, rule_names
from bridge.filter.changes import FieldEdit
from bridge.filter.headers import Fields, HeaderEditor
from bridge.filter.outcome import Outcome, Record
from bridge.filter.policy import (
    CANNOT_HOLD,
    LONG_HEAD,
    TOO_MANY_FORGED,
    Case,
    Rule,
    accepted,
    reply_for,
    reply_to_error,
    rule_of_refusal,
    with_id,
)
from bridge.mail.action import Action
from bridge.mail.address import has_certain_domain
from bridge.mail.next_hop import Interrupted, NextHopError
from bridge.mail.reply import Reply
from bridge.mail.transaction import Transaction
from bridge.quarantine.quarantine import Quarantine
from bridge.relay.relay import Mixed, Relay
from bridge.runtime import durable_files

log = logging.getLogger(__name__)

_TAKE_BACK_S = 5.0  # how long a reply may wait for the removal of a copy


class Actions:
    """Knows the next hop and the quarantine. Without a next hop (milter), the mail server delivers or holds."""

    def __init__(
        self, headers: HeaderEditor, quarantine: Quarantine, relay: Relay | None, keeps_refused: bool = False
    ) -> None:
        """`keeps_refused`: after a queue, a mail whose content we refuse is quarantined."""
        self._headers = headers
        self._quarantine = quarantine
        self._relay = relay
        self._keeps_refused = keeps_refused

    async def carry_out(self, record: Record, why: Case, rule: Rule, result: AnalysisResult | None) -> Outcome:
        tx, action = record.tx, rule.action
        try:
            if rule.keep_copy and not self._stores(action):
                await self._store(record, why, result, copy_of=action)
            match action:
                case Action.RELAY:
                    return await self._hand_on_or_take_back(record, result, str(why))
                case Action.DISCARD:
                    return Outcome(action, accepted(tx.id), result)
                case Action.REJECT | Action.TEMPFAIL:
                    reply = reply_for(why, rule, record.error, _wanted_text(result))
                    return Outcome(action, with_id(reply, tx.id, _ggrid(result)), result)
                case Action.HOLD if self._relay is None and not tx.can_hold:
                    session, record.rule = tx.session, rule_names.CANNOT_HOLD
                    text = "listener %s: %s: the mail server cannot hold mail; %s is deferred"
                    log.warning(text, session.listener, session.peer, tx.id)
                    await self.take_back(record)  # the next attempt would store another copy
                    return Outcome(Action.TEMPFAIL, with_id(CANNOT_HOLD, tx.id, _ggrid(result)), result)
                case Action.HOLD if self._relay is None and (refusal := _refusal(tx, result)) is not None:
                    return _refused(record, refusal, result)
                case Action.HOLD if self._relay is None:
                    stamp = self._stamp(tx, result, str(why)) + _added(result)
                    return Outcome(action, accepted(tx.id), result, stamp, edits=_edits(tx, result))
                case Action.HOLD | Action.QUARANTINE:  # see `_stores`
                    await self._store(record, why, result)
                    return Outcome(Action.QUARANTINE, accepted(tx.id), result)
                case _:
                    assert_never(action)
        except StoreError as exc:
            return not_stored(record, exc, result)

    def _stores(self, action: Action) -> bool:
        """Whether the mail itself goes to our quarantine: without a milter there is no hold queue but ours."""
        return action is Action.QUARANTINE or (action is Action.HOLD and self._relay is not None)

    def can_separate(self, tx: Transaction, withheld: Sequence[str]) -> bool:
        """Whether the other recipients can get the mail without these: with a milter, the mail server removes them.

        It may ignore the request if it keeps a recipient in another spelling: Postfix removes source routes.
        """
        return self._relay is not None or (tx.can_remove and all(map(has_certain_domain, withheld)))

    async def withhold(self, record: Record, action: Action, why: str, result: AnalysisResult | None) -> Outcome:
        """Quarantine the mail, or drop it, although the policy hands it on."""
        if action is Action.DISCARD:
            return Outcome(action, accepted(record.tx.id), result)
        try:
            await self._store(record, why, result)
        except StoreError as exc:
            return not_stored(record, exc, result)
        return Outcome(Action.QUARANTINE, accepted(record.tx.id), result)

    async def take_back(self, record: Record) -> None:
        """Remove the mail from the quarantine: the client will send it again, or was told that it was refused."""
        if not record.is_kept:
            return
        try:
            await durable_files.in_thread(
                lambda stop: self._quarantine.remove(record.tx.id), monotonic() + _TAKE_BACK_S
            )
            record.is_kept = False
        except (StoreError, OSError, durable_files.Stopped) as exc:
            why, mail_id = str(exc) or "no answer in time", record.tx.id
            log.warning(
                "mail %s: not accepted, but its copy could not be removed from the quarantine: %s", mail_id, why
            )

    async def keep_refused(self, record: Record, reply: Reply, result: AnalysisResult | None = None) -> Outcome:
        """Quarantine a mail that we would refuse. None of our fields are added: its first line might continue one."""
        tx = record.tx
        log.info("mail %s: quarantined instead of bounced: %s", tx.id, reply)
        stripped = self._headers.strip(tx.message.head())
        if stripped is not None:
            tx.message.replace_head(stripped)
        await self.take_back(record)  # a copy (`keep_copy`) has the mail's id, and hides it from its recipients
        try:
            await self._quarantine.keep(tx, b"", {"reason": "refused", "reply": str(reply), "rule": record.rule})
        except StoreError as exc:
            return not_stored(record, exc, result)
        record.is_kept = True
        return Outcome(Action.QUARANTINE, accepted(tx.id), result)

    async def hand_on(self, record: Record, result: AnalysisResult | None, unscanned: str = "") -> Outcome:
        """Relay the mail, or have the mail server deliver it. `unscanned`: why there is no result, for the header."""
        tx = record.tx
        if result is None:
            record.unscanned = unscanned.partition(" ")[0]
        stamp = self._stamp(tx, result, unscanned)
        edits: tuple[FieldEdit, ...] = ()
        if (refusal := _refusal(tx, result)) is not None:
            if not self._keeps_refused:
                return _refused(record, refusal, result)
            record.rule = rule_of_refusal(refusal)
            return await self.keep_refused(record, refusal, result)
        if result is not None and result.changes is not None:
            stamp += result.changes.add
            if self._relay is None:
                edits = _edits(tx, result)
            else:
                tx = _changed(tx, result.changes)
        if self._relay is None:
            return Outcome(Action.RELAY, accepted(tx.id), result, stamp, edits=edits)
        record.relay_at = monotonic()
        try:
            delivered = await self._relay.deliver(tx, self._headers.lines(tx, stamp), tx.deadline)
        except NextHopError as exc:
            return _not_handed_on(record, exc, result, stamp)
        except Interrupted as exc:
            record.unsure, record.accepted = exc.unsure, exc.accepted
            raise asyncio.CancelledError from None  # Python 3.11: `asyncio.timeout` does not know subclasses
        finally:
            record.relay_s = monotonic() - record.relay_at
        record.next_id = delivered.queue_id
        if "," in delivered.queue_id:
            record.next_replies = delivered.replies
        replies = delivered.replies if tx.is_per_recipient else ()
        return Outcome(Action.RELAY, delivered.reply, result, stamp, replies)

    async def _hand_on_or_take_back(self, record: Record, result: AnalysisResult | None, unscanned: str) -> Outcome:
        """The copy of a mail that the client will send again is removed: the next attempt stores its own."""
        try:
            outcome = await self.hand_on(record, result, unscanned)
        except BaseException:  # mostly cancellation
            await asyncio.shield(self.take_back(record))
            raise
        if all(reply.is_temporary for reply in outcome.replies or (outcome.reply,)) and not record.is_mixed:
            await self.take_back(record)
        return outcome

    def _stamp(self, tx: Transaction, result: AnalysisResult | None, unscanned: str) -> Fields:
        return self._headers.results(tx, result) + self._headers.stamp(tx.id, result, unscanned)

    async def _store(
        self, record: Record, why: Case | str, result: AnalysisResult | None, copy_of: Action | None = None
    ) -> None:
        """`copy_of`: what is done with the mail itself; its recipients are not told about a copy."""
        tx = record.tx
        facts: dict[str, object] = {"reason": str(why), "rule": record.rule}
        if copy_of is not None:
            facts["copy_of"] = str(copy_of)
        if result is not None:
            facts |= {"decision": str(result.decision), "verdict": result.verdict}
            facts |= {"tags": list(result.tags), "ggrid": result.ggrid}
            facts |= {"reasons": list(result.reasons)} if result.reasons else {}
            facts |= {"scoring": result.scoring.to_dict()} if result.scoring is not None else {}
        stamp = self._stamp(tx, result, str(why))
        await self._quarantine.keep(tx, self._headers.lines(tx, stamp), facts)
        record.is_kept = True


def not_stored(record: Record, exc: StoreError, result: AnalysisResult | None) -> Outcome:
    log.error("mail %s: could not be quarantined: %s", record.tx.id, exc)
    record.error, record.rule = exc, rule_names.QUARANTINE_FAILED
    return Outcome(Action.TEMPFAIL, with_id(reply_to_error(exc), record.tx.id, _ggrid(result)), result)


def _not_handed_on(record: Record, exc: NextHopError, result: AnalysisResult | None, stamp: Fields) -> Outcome:
    """The action agrees with the reply, even if some recipients have the mail and others do not."""
    record.relay_rule, record.error, record.rule = record.rule, exc, rule_names.NEXT_HOP
    record.unsure = exc.unsure
    tx, ggrid = record.tx, _ggrid(result)
    replies: tuple[Reply, ...] = ()
    if not isinstance(exc, Mixed):
        record.unscanned = ""
    else:
        record.next_id, record.is_mixed = exc.queue_id, exc.accepted > 0
        if "," in exc.queue_id:
            record.next_replies = exc.replies
        if tx.is_per_recipient:
            replies = tuple(_with_our_id(reply, tx.id, ggrid) for reply in exc.replies)
    action = Action.REJECT if exc.reply.code >= 500 else Action.TEMPFAIL
    return Outcome(action, _with_our_id(exc.reply, tx.id, ggrid), result, stamp, replies)


def _refusal(tx: Transaction, result: AnalysisResult | None) -> Reply | None:
    """Why the changes that the scanner wants cannot all be made: the mail is not delivered without them."""
    wanted = None if result is None else result.changes
    if wanted is None or not (wanted.remove or wanted.subject is not None):
        return None
    if changes.too_many(tx.message.head(), wanted):
        return TOO_MANY_FORGED
    return LONG_HEAD if tx.message.is_head_cut() else None


def _refused(record: Record, reply: Reply, result: AnalysisResult | None) -> Outcome:
    record.rule = rule_of_refusal(reply)
    return Outcome(Action.REJECT, with_id(reply, record.tx.id, _ggrid(result)), result)


def _with_our_id(reply: Reply, mail_id: str, ggrid: str) -> Reply:
    """A refusal in our own words gets our id; the next hop's words are passed on unchanged."""
    return reply if reply.is_foreign or reply.is_success else with_id(reply, mail_id, ggrid)


def _wanted_text(result: AnalysisResult | None) -> str:
    return result.changes.reply_text if result is not None and result.changes is not None else ""


def _added(result: AnalysisResult | None) -> Fields:
    return result.changes.add if result is not None and result.changes is not None else ()


def _edits(tx: Transaction, result: AnalysisResult | None) -> tuple[FieldEdit, ...]:
    """What a milter's mail server is to change in the fields of the mail."""
    if result is None or result.changes is None:
        return ()
    return changes.edits(tx.message.head(), result.changes)


def _changed(tx: Transaction, wanted: Changes) -> Transaction:
    """The mail as the next hop is to get it. The received one stays as it is: others may read it."""
    message = tx.message
    head = message.head()
    changed = changes.changed_head(head, wanted)
    return tx if changed is head else replace(tx, message=message.with_head(changed))


def _ggrid(result: AnalysisResult | None) -> str:
    return result.ggrid if result is not None else ""
