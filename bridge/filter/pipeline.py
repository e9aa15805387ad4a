"""Pipeline: the path of every mail through the bridge, from the complete content to the reply.

Every intake builds a transaction, calls `process` and passes the outcome to its client. The steps are those of
docs/understand/flow.md: check the header, find the tenant, check the lists, use a late decision or scan in a slot,
apply the policy, carry out the action, report. What a mail is refused for before it is complete is in `early_refusals`.
Only here do errors become actions. If this is wrong, a client receives 250 for a mail that is neither delivered nor
stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, assert_never

from bridge.api.scanning import AnalysisResult
from bridge.errors import AmbiguousMail, Saturated, ScanError, ScanRefused, ScanTimeout
from bridge.filter import rule_names, shadow
from bridge.filter.actions import Actions
from bridge.filter.adaptive_limit import AdaptiveLimit
from bridge.filter.admission import Admission
from bridge.filter.early_refusals import EarlyRefusals
from bridge.filter.envelope_lists import EnvelopeLists
from bridge.filter.header_checks import HeaderChecks
from bridge.filter.headers import HeaderEditor, message_id, subject
from bridge.filter.late.decisions import LateDecisions, LateStatus
from bridge.filter.mail_rates import MailRates
from bridge.filter.outcome import Outcome, Record
from bridge.filter.personal_rules import PersonalLists
from bridge.filter.personal_split import PersonalSplit
from bridge.filter.policy import (
    AMBIGUOUS,
    CONTINUES,
    NO_STORAGE,
    TENANTS_CHANGED,
    Case,
    Policy,
    case_of_decision,
    case_of_error,
    cause_of,
    reply_to_error,
    rule_of_refusal,
    with_id,
)
from bridge.filter.released import ReleasedMail
from bridge.filter.scan_request import request_for
from bridge.filter.scan_slots import Slots
from bridge.filter.settings import FilterSettings
from bridge.filter.split_by_tenant import process_split, recipients_by_tenant
from bridge.mail.action import Action
from bridge.mail.list_match import ListAction
from bridge.mail.message import Message
from bridge.mail.reply import Reply
from bridge.mail.trace_context import Trace
from bridge.mail.transaction import Transaction
from bridge.mime import ambiguity, structure
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.release_token import Token
from bridge.relay.relay import Relay
from bridge.scanner.client import ScanGoesOn, Scanner

log = logging.getLogger(__name__)

_INLINE_BYTES = 64 * 1024  # reading the structure of a larger mail could keep the event loop from other mail


class Filter:
    """One per listener, with its own policy; scanner, admission, relay and quarantine are shared by all."""

    is_stopping = False  # the listener closes its connections, whatever they are doing

    def __init__(
        self,
        settings: FilterSettings,
        *,
        scanner: Scanner,
        admission: Admission,
        headers: HeaderEditor,
        quarantine: Quarantine,
        relay: Relay | None,  # None: the mail server delivers by itself (milter)
        report: Callable[[Record], None],
        trace: Callable[[], Trace | None] | None = None,
        released_mail: ReleasedMail | None = None,
        late: LateDecisions | None = None,
        limit: AdaptiveLimit | None = None,
        envelope_lists: EnvelopeLists | None = None,
        personal: PersonalLists | None = None,
        rates: MailRates | None = None,
    ) -> None:
        self._settings = settings
        self._scanner = scanner
        self._slots = Slots(admission, limit, scanner)
        self._headers = headers
        self._header_checks = HeaderChecks(headers, settings.max_received, settings.keeps_refused)
        self._actions = Actions(headers, quarantine, relay, settings.keeps_refused)
        self._report = report
        self._trace = trace
        self._released_mail = released_mail
        self._late = _late_of(settings.policy, late)
        self._late_of_tenant = {uid: _late_of(policy, late) for uid, policy in settings.tenant_policies.items()}
        self._envelope_lists = envelope_lists
        self._personal = None if personal is None else PersonalSplit(personal, self._actions, self._tell)
        self.early = EarlyRefusals(
            settings, self._slots, self._tell, envelope_lists=envelope_lists, personal=personal, rates=rates
        )
        self.deadline_s = settings.deadline_s
        self.header_prefix, self.own_results = headers.prefix, headers.own_results
        # The last part of the deadline is reserved for passing the mail on, or for the reply alone.
        self._reserve_s = min(10.0 if relay is not None else 1.0, settings.deadline_s * 0.1)

    def process(self, tx: Transaction) -> Coroutine[Any, Any, Outcome]:
        """Run all steps. Raises nothing but CancelledError; closes the message."""
        if tx.is_per_recipient and len(parts := recipients_by_tenant(tx, self._settings.tenant_of)) > 1:
            return self._process_split(tx, parts)
        return self._process(tx)

    async def _process_split(self, tx: Transaction, parts: list[list[int]]) -> Outcome:
        try:
            # A mail that could not be written is not read: `_run_steps` defers it, for each part.
            is_kept = not tx.message.is_in_file or await tx.message.is_kept()
            head = tx.message.head() if is_kept else b""
            lower = head.lower()
            token = None
            # If some cannot be removed, none are: each part is refused.
            if self._headers.may_be_in(lower) and not self._headers.is_hidden(tx.message, head, lower):
                token = await self._strip_our_fields(tx, head)
            del head, lower
            if token is None:
                return await process_split(tx, parts, lambda part: self._process(part, is_part=True))
            return await self._process_split_released(tx, parts, token)
        finally:
            tx.message.close()

    async def _process_split_released(self, tx: Transaction, parts: list[list[int]], token: Token) -> Outcome:
        """Each part settles the token for its own recipients. A part that did not begin cannot, so this does."""
        assert self._released_mail is not None
        waiting = {recipient.address: recipient for recipient in tx.envelope.recipients}

        def process_part(part: Transaction) -> Coroutine[Any, Any, Outcome]:
            for address in part.envelope.addresses:
                waiting.pop(address, None)
            return self._process(part, is_part=True, token=token)

        try:
            return await process_split(tx, parts, process_part)
        finally:
            if waiting:
                unused = replace(tx, envelope=replace(tx.envelope, recipients=tuple(waiting.values())))
                await self._released_mail.settle(token, unused, None)

    async def _process(self, tx: Transaction, is_part: bool = False, token: Token | None = None) -> Outcome:
        record = Record(tx, tx.message.size, trace=self._trace() if self._trace is not None else None)
        try:
            record.outcome = await self._run_steps(record, token)
        except Exception as exc:
            log.exception("mail %s: unexpected error", tx.id)
            record.error, record.rule = exc, rule_names.INTERNAL_ERROR
            record.outcome = Outcome(Action.TEMPFAIL, with_id(reply_to_error(exc), tx.id))
        finally:
            self._tell(record)
            if record.error is not None:
                # Breaks a reference cycle (its frames hold the record), so that no garbage collection is needed.
                record.error.__traceback__ = None
            if not is_part:  # other parts still read it
                tx.message.close()
        return record.answer or record.outcome

    async def _run_steps(self, record: Record, token: Token | None) -> Outcome:
        tx = record.tx
        if token is None and tx.message.is_in_file and not await tx.message.is_kept():
            record.error, record.rule = cause_of(NO_STORAGE), rule_of_refusal(NO_STORAGE)
            return Outcome(Action.TEMPFAIL, with_id(NO_STORAGE, tx.id))
        head = tx.message.head()
        lower = head.lower()
        record.message_id = message_id(head, lower)
        record.subject = subject(head, lower)
        refusal = self._header_checks.refuse(record, head, lower)
        if refusal is None and token is None and self._headers.may_be_in(lower):
            token = await self._strip_our_fields(tx, head)
        del head, lower  # thousands of mails may wait for the scanner: each keeps only what is needed
        if token is not None:
            return await self._hand_on_released(record, token, refusal)
        refusal = self._refusal_before_scan(record, refusal)
        if refusal is not None:
            return await self._refuse(record, refusal)
        is_shadow = shadow.covers(
            self._settings.shadow_percent, tx.session, tx.envelope.sender, has_lists=self._envelope_lists is not None
        )
        is_refused = self._settings.refuse_ambiguous_mime and await self._is_ambiguous(record)
        if is_refused and not is_shadow:
            record.error, record.rule = AmbiguousMail(), rule_names.of_ambiguity(tx.session.listener)
            return await self._refuse(record, AMBIGUOUS)
        if self._envelope_lists is not None:
            outcome = await self._apply_lists(self._envelope_lists, record, is_shadow)
            if outcome is not None:
                return outcome
        policy = self._settings.tenant_policies.get(record.tenant or "", self._settings.policy)
        late = None if is_shadow else self._late_of_tenant.get(record.tenant or "", self._late)
        result: AnalysisResult | None = None
        try:
            result = await self._decision(record, policy, late)
            why = case_of_decision(result.decision)
            rule = policy[why]
        except (ScanError, Saturated) as exc:
            why = _no_decision(record, exc)
            rule = policy[why]
            if why is Case.SLOW:  # operators know only one deadline
                why = Case.DEADLINE
        record.rule = rule.name
        if is_shadow:
            shadow.note(record, rule, is_ambiguous=is_refused, keeps_refused=self._settings.keeps_refused)
            rule = shadow.DELIVERS
            result = replace(result, changes=None) if result is not None and result.changes else result
        elif self._personal is not None and self._personal.concern(tx.envelope):
            return await self._personal.carry_out(record, why, rule, result)
        return await self._actions.carry_out(record, why, rule, result)

    def refuse_content(self, tx: Transaction, reply: Reply) -> Coroutine[Any, Any, Outcome]:
        """Refuse a complete mail that the intake cannot pass on; after a queue, it is quarantined, for each tenant."""
        if tx.is_per_recipient and len(parts := recipients_by_tenant(tx, self._settings.tenant_of)) > 1:
            return self._refuse_split(tx, parts, reply)
        return self._refuse_content(tx, reply)

    async def _refuse_split(self, tx: Transaction, parts: list[list[int]], reply: Reply) -> Outcome:
        try:
            return await process_split(tx, parts, lambda part: self._refuse_content(part, reply, is_part=True))
        finally:
            tx.message.close()

    async def _refuse_content(self, tx: Transaction, reply: Reply, is_part: bool = False) -> Outcome:
        record = Record(tx, tx.message.size, rule=rule_of_refusal(reply))
        try:
            record.outcome = await self._refuse(record, reply)
        finally:
            self._tell(record)
            if not is_part:  # other parts still read it
                tx.message.close()
        return record.outcome

    # The steps.

    async def _refuse(self, record: Record, reply: Reply) -> Outcome:
        """Refuse a mail for its content. After a queue, a bounce would return it, unscanned, to a forged sender."""
        record.rule = record.rule or rule_of_refusal(reply)
        if reply.is_temporary:
            return Outcome(Action.TEMPFAIL, with_id(reply, record.tx.id))
        if not self._settings.keeps_refused:
            return Outcome(Action.REJECT, with_id(reply, record.tx.id))
        return await self._actions.keep_refused(record, reply)

    async def _is_ambiguous(self, record: Record) -> bool:
        """Whether mail programs may read the mail differently: its structure is one that they seldom or never write."""
        message = record.tx.message
        takes_long = message.is_in_file or message.size > _INLINE_BYTES
        reasons = await asyncio.to_thread(_rare_doubts, message) if takes_long else _rare_doubts(message)
        record.doubts = tuple(reasons)
        return bool(reasons)

    async def _strip_our_fields(self, tx: Transaction, head: bytes) -> Token | None:
        """Removes our fields, which are forged, except a valid release token, which is returned and marked as used."""
        token = await self._released_mail.accept(tx, head) if self._released_mail is not None else None
        stripped = self._headers.strip(head)
        if stripped is not None:
            tx.message.replace_head(stripped)
        return token

    async def _hand_on_released(self, record: Record, token: Token, refusal: Reply | None) -> Outcome:
        """The token is in use: however this ends, it is settled."""
        assert self._released_mail is not None
        outcome = None
        try:
            refusal = self._refusal_before_scan(record, refusal)
            if refusal is not None:
                outcome = await self._refuse(record, refusal)
            else:
                record.rule = rule_names.RELEASED
                outcome = await self._actions.hand_on(record, None, "released")
            return outcome
        finally:
            await self._released_mail.settle(token, record.tx, outcome)

    def _refusal_before_scan(self, record: Record, refusal: Reply | None) -> Reply | None:
        """Why a mail is neither scanned nor passed on; None for any other, whose tenant is recorded."""
        tx = record.tx
        if refusal is not None:
            return refusal
        if tx.message.begins_with_space():  # it would continue our last field
            return CONTINUES
        if not self._settings.tenant_by_domain:
            record.tenant = self._settings.default_tenant
            return None
        record.tenant = self._settings.tenant_of(tx.envelope.recipients[0].address)
        if self._has_other_tenants(tx, record.tenant):
            record.tenant, record.rule = None, rule_names.RELOADED  # no tenant may see the others' recipients
            return TENANTS_CHANGED
        return None

    def _has_other_tenants(self, tx: Transaction, tenant: str | None) -> bool:
        """The intake keeps tenants apart at RCPT, but a reload may have changed them since."""
        return any(self._settings.tenant_of(address) != tenant for address in tx.envelope.addresses[1:])

    async def _apply_lists(self, lists: EnvelopeLists, record: Record, is_shadow: bool) -> Outcome | None:
        """The outcome of a mail that a list refuses or exempts from scanning; None if it is to be scanned."""
        tx = record.tx
        record.unchecked = lists.unchecked(record.tenant)
        if is_shadow:
            found = lists.match_in_shadow(tx.session, tx.envelope, record.tenant, self._settings.tenant_of)
        else:
            found = lists.match_mail(tx.session, tx.envelope.sender, record.tenant)
        record.listed = found
        if found is None:
            return None
        record.rule = rule_names.of_list(found.name)
        match found.action:
            case ListAction.REFUSED:
                return Outcome(Action.REJECT, with_id(lists.refusal, tx.id))
            case ListAction.SKIPPED:
                if self._personal is not None and self._personal.concern(tx.envelope):
                    return await self._personal.hand_on_unscanned(record, f"list {found.name}")
                return await self._actions.hand_on(record, None, f"list {found.name}")
            case ListAction.SHADOW_REFUSED | ListAction.SHADOW_SKIPPED | ListAction.BLOCKED | ListAction.ALLOWED:
                return None
            case _:
                assert_never(found.action)

    def _decision(
        self, record: Record, policy: Policy, late: LateDecisions | None
    ) -> Coroutine[Any, Any, AnalysisResult]:
        """The decision on this mail. Raises ScanError, Saturated.

        Not a coroutine itself: thousands of mails may wait for the scanner, and each would keep one more frame.
        """
        if late is None or late.is_empty():
            return self._scan(record, policy, late)
        return self._late_decision_or_scan(record, policy, late)

    async def _late_decision_or_scan(self, record: Record, policy: Policy, late: LateDecisions) -> AnalysisResult:
        found = await late.look_up(record.tenant, record.tx.envelope, record.tx.message)
        if found is None:
            return await self._scan(record, policy, late)
        if isinstance(found, AnalysisResult):
            record.late = LateStatus.HIT
            return found
        record.late = found
        # While it runs, the mail is deferred even where other mail may pass after the deadline.
        raise ScanTimeout("the scan of this mail is still running", policy[Case.DEADLINE].action is not Action.TEMPFAIL)

    async def _scan(self, record: Record, policy: Policy, late: LateDecisions | None) -> AnalysisResult:
        tx = record.tx
        deadline = tx.deadline - self._reserve_s
        trace_header = b"" if record.trace is None else record.trace.header
        asked: list[str] = []  # not a method of the record: an error's frames would keep it alive
        try:
            async with self._slots.slot(record, deadline):
                return await self._scanner.submit(
                    request_for(tx, record.tenant), tx.message, deadline, late is not None, trace_header, asked.append
                )
        except ScanGoesOn as exc:
            assert late is not None
            if policy[case_of_error(exc)].action is not Action.TEMPFAIL:  # the client will not send the mail again
                exc.scan.abandon()
                self._slots.leave()
                raise
            record.late = LateStatus.AWAITED
            await late.follow(record.tenant, tx.envelope, tx.message, exc.scan, self._slots.leave)
            raise
        finally:
            record.scanner = asked[-1] if asked else ""

    def _tell(self, record: Record) -> None:
        record.is_stopped = record.outcome is None and self.is_stopping
        try:
            self._report(record)
        except Exception:  # the outcome is decided; a failing log or metric must not change it
            log.exception("mail %s: could not be logged or counted", record.tx.id)


def _late_of(policy: Policy, late: LateDecisions | None) -> LateDecisions | None:
    """A scan that continues after the deadline is useful only if the client will send the mail again."""
    return late if Action.TEMPFAIL in (policy[Case.DEADLINE].action, policy[Case.SLOW].action) else None


def _no_decision(record: Record, exc: ScanError | Saturated) -> Case:
    record.error = exc
    if isinstance(exc, ScanRefused):
        log.error("the scanner refused the request: %s", exc)
    return case_of_error(exc)


def _rare_doubts(message: Message) -> list[str]:
    with message.original() as content:
        found = structure.doubts(content, structure.Bounds())
    return sorted(found & ambiguity.REFUSED)
