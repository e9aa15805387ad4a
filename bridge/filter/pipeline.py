"""The one path of a mail: admit, scan, choose, carry out.

Every intake builds a transaction, calls `process` and renders the outcome. Here, and only here,
errors become actions. What breaks if this is wrong: a 250 for a mail that is nowhere.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from time import monotonic, time
from typing import Any, Literal
from zlib import crc32

from bridge.api.scanning import AnalysisRequest, AnalysisResult, BorderMtaData
from bridge.errors import BridgeError, NextHopError, Saturated, ScanError, ScanRefused, ScanTimeout, StoreError
from bridge.filter import split_by_tenant
from bridge.filter.adaptive_limit import AdaptiveLimit
from bridge.filter.admission import Admission
from bridge.filter.envelope_lists import NO_COPY, Door
from bridge.filter.headers import Fields, HeaderEditor, count_received, message_id
from bridge.filter.late.decisions import Late, LateDecisions
from bridge.filter.outcome import Outcome, Record
from bridge.filter.policy import (
    LONG_HEAD,
    LOOP,
    Case,
    Policy,
    Rule,
    accepted,
    case_of_decision,
    case_of_error,
    cause_of,
    reply_for,
    reply_to_error,
    with_id,
)
from bridge.mail.action import Action
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.listed import ListAction, Listed
from bridge.mail.message import HEAD_LIMIT, Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.mail.trace import Trace
from bridge.mail.transaction import Transaction, new_id
from bridge.quarantine.quarantine import Quarantine
from bridge.quarantine.release_token import ReleaseTokens
from bridge.relay import commands, maildir, replies
from bridge.relay.relay import Mixed, Relay
from bridge.runtime import durable_files
from bridge.scanner.client import Scanner

log = logging.getLogger(__name__)


_dice = random.Random()  # noqa: S311 - a share of the mail, not a secret

# What delivery says in its own words, and so with our id; a next hop's reply goes on as it is.
_OURS = frozenset(
    value
    for module in (commands, maildir, replies)
    for name, value in vars(module).items()
    if isinstance(value, Reply) and name.isupper()
)


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """What one listener wants."""

    deadline_s: float
    policy: Policy
    tenant_policies: Mapping[str, Policy] = field(default_factory=dict)  # by tenantUid
    tenant_by_domain: Mapping[str, str] = field(default_factory=dict)
    default_tenant: str | None = None
    max_received: int = 99
    shadow_percent: float = 0.0  # of this share the decision is only logged and counted


class Filter:
    """One per listener: its policy, and the scanner, admission, relay and quarantine all share."""

    door: Door | None = None  # no lists, and nobody need ask

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
        marks: ReleaseTokens | None = None,
        late: LateDecisions | None = None,
        limit: AdaptiveLimit | None = None,
        door: Door | None = None,
    ) -> None:
        self._settings = settings
        self._scanner = scanner
        self._admission = admission
        self._headers = headers
        self._quarantine = quarantine
        self._relay = relay
        self._report = report
        self._trace = trace
        self._marks = marks
        self._late = late
        self._limit = limit
        self.door = door
        self._closed = self._early_refusal()
        self.deadline_s = settings.deadline_s
        self.header_prefix = headers.prefix
        # The last part of the deadline is kept for handing the mail on.
        self._reserve_s = min(10.0, settings.deadline_s * 0.1) if relay is not None else 1.0

    def _early_refusal(self) -> Reply | None:
        """What saturation is answered with at MAIL; None when some mail of this listener would not be refused."""
        policies = [self._settings.policy, *self._settings.tenant_policies.values()]
        if self._settings.shadow_percent >= 100 or any(
            policy[Case.SATURATED].action is not Action.TEMPFAIL for policy in policies
        ):
            return None
        return reply_for(Case.SATURATED, self._settings.policy[Case.SATURATED], Saturated(""))

    def closed_at_mail(self) -> Reply | None:
        """The 451 for MAIL when saturation is already known, else None."""
        limit = self._admission.settings.max_in_processing
        if self._limit is not None:
            limit = min(limit, self._limit.current)
        is_open = self._admission.lets_in(limit, monotonic()) and not self._scanner.is_saturated()
        return None if is_open else self._closed

    def closed(self) -> Reply | None:
        """The same before the content."""
        if not self._is_full() and not self._scanner.is_saturated():
            return None
        self._admission.came(monotonic())
        return self._closed

    def _is_full(self) -> bool:
        admission = self._admission
        return admission.is_full or (self._limit is not None and admission.in_processing >= self._limit.current)

    def refused_by_list(self, session: Session, sender: str, recipient: str | None = None) -> Reply | None:
        """Asked at MAIL, and at RCPT with the recipient: what it is refused with, or None."""
        door = self.door
        if door is None or self._is_shadow(session, sender):
            return None
        tenant, listed = None, None
        if recipient is None:
            listed = None if session.in_header else door.blocked(session, sender, None)  # else see _on_list
        else:
            tenant = self._tenant_of(recipient)
            if tenant is not None and not session.in_header:
                listed = door.blocked(session, sender, tenant)
            listed = listed or door.blocked_recipient(recipient, tenant)
        if listed is None:
            return NO_COPY if door.is_blind(tenant, at_recipient=recipient is not None) else None
        now = monotonic()
        envelope = Envelope(sender, () if recipient is None else (Recipient(recipient),))
        tx = Transaction(new_id(), session, envelope, Message(_NO_ROOM), now, now)
        outcome = Outcome(Action.REJECT, with_id(door.refusal, tx.id))
        stage: Literal["mail", "rcpt"] = "mail" if recipient is None else "rcpt"
        self._tell(Record(tx, 0, tenant, outcome, listed=listed, at=stage))
        return outcome.reply

    def process(self, tx: Transaction) -> Coroutine[Any, Any, Outcome]:
        """Admit, scan, decide, carry out. Raises nothing but CancelledError; closes the message."""
        if tx.each and len(parts := split_by_tenant.by_tenant(tx, self._tenant_of)) > 1:
            return self._process_apart(tx, parts)
        return self._process_one(tx)

    async def _process_apart(self, tx: Transaction, parts: list[list[int]]) -> Outcome:
        try:
            return await split_by_tenant.process(tx, parts, lambda part: self._process_one(part, is_part=True))
        finally:
            tx.message.close()

    async def _process_one(self, tx: Transaction, is_part: bool = False) -> Outcome:
        record = Record(tx, tx.message.size, trace=self._trace() if self._trace is not None else None)
        try:
            record.outcome = await self._process(tx, record)
        except Exception as exc:
            log.exception("mail %s: unexpected error", tx.id)
            record.error = exc
            record.outcome = Outcome(Action.TEMPFAIL, with_id(reply_to_error(exc), tx.id))
        finally:
            self._tell(record)
            if record.error is not None:
                record.error.__traceback__ = None  # its frames hold the record: only the collector would find them
            if not is_part:  # the other parts need it
                tx.message.close()
        return record.outcome

    def refuse(self, tx: Transaction, reply: Reply, size: int) -> Outcome:
        """A mail that cannot be taken (too large, not clean SMTP): no scan, but a line in the log."""
        action = Action.TEMPFAIL if reply.is_temporary else Action.REJECT
        outcome = Outcome(action, with_id(reply, tx.id))
        tx.message.close()
        self._tell(Record(tx, size, outcome=outcome, error=cause_of(reply)))
        return outcome

    def _tell(self, record: Record) -> None:
        try:
            self._report(record)
        except Exception:  # the mail's fate is sealed; a log that fails must not change it
            log.exception("mail %s: it could not be logged or counted", record.tx.id)

    async def _process(self, tx: Transaction, record: Record) -> Outcome:
        head = tx.message.head()
        lower = head.lower()
        record.message_id = message_id(head, lower)
        if count_received(lower) > self._settings.max_received:
            record.limit = "max_received"
            return Outcome(Action.REJECT, with_id(LOOP, tx.id))
        if tx.message.size > HEAD_LIMIT and self._headers.is_hidden(tx.message.chunks(), len(head)):
            record.limit = "header"
            return Outcome(Action.REJECT, with_id(LONG_HEAD, tx.id))
        mark = await self._strip(tx, head) if self._headers.may_be_in(lower) else None
        del head, lower  # thousands may wait for the scanner: each keeps only what is needed
        tenant = record.tenant = self._tenant(tx)
        if mark is not None:
            log.info("mail %s: it was released from the quarantine, and is not scanned again", tx.id)
            return await self._hand_on(tx, self._headers.stamp(tx.id, None, "released"), None, record)
        policy = self._settings.tenant_policies.get(tenant or "", self._settings.policy)
        shadow = self._settings.shadow_percent > 0 and self._is_shadow(tx.session, tx.envelope.sender)
        if self.door is not None:
            record.listed = self._on_list(self.door, tx, tenant, shadow)
            if record.listed is not None and record.listed.action is ListAction.REFUSED:
                return Outcome(Action.REJECT, with_id(self.door.refusal, tx.id))
            if record.listed is not None and record.listed.action is ListAction.SKIPPED:
                return await self._hand_on(
                    tx, self._headers.stamp(tx.id, None, f"list {record.listed.name}"), None, record
                )
        result: AnalysisResult | None = None
        try:
            # A scan that goes on is of use only if the mail comes back.
            waits = not shadow and policy[_DEADLINE].action is _TEMPFAIL
            late = self._late if waits else None
            if late is None or late.is_empty():
                result = await self._scan(tx, tenant, record, late)
            else:
                result = await self._late_or_new(tx, tenant, record, late)
            case = case_of_decision(result.decision)
        except (ScanError, Saturated) as exc:
            record.error, case = exc, case_of_error(exc)
            if isinstance(exc, ScanRefused):
                log.error("the scanner refuses us: %s", exc)
        rule = policy[case]
        if shadow:
            record.would, rule = _WOULD.get(record.listed.action) if record.listed else rule.action, _SHADOW
        return await self._carry_out(tx, case, rule, result, record)

    async def _strip(self, tx: Transaction, head: bytes) -> bytes | None:
        """Take fields of ours out, but for one that says that somebody released this very mail to these recipients."""
        marks, addresses = self._marks, tx.envelope.addresses
        fields = marks.find(head, time()) if marks is not None else []
        mark: bytes | None = None
        if marks is not None and fields:
            mark = await durable_files.in_thread(lambda stop: marks.valid(fields, tx.message, addresses), math.inf)
        stripped = self._headers.strip(head)
        if stripped is not None:
            tx.message.replace_head((mark or b"") + stripped)
        return mark

    def _on_list(self, door: Door, tx: Transaction, tenant: str | None, shadow: bool) -> Listed | None:
        """Whether it may go on unscanned; in shadow mode also what it would have been refused for.

        A client that is known only now is asked for now, in the lists of refusals too.
        """
        session, sender = tx.session, tx.envelope.sender
        if not shadow:
            blocked = door.blocked(session, sender, None) if session.in_header else None
            if blocked is None and session.in_header and tenant is not None:
                blocked = door.blocked(session, sender, tenant)
            return blocked or door.allowed(session, sender, tenant)
        listed = door.blocks(session, tx.envelope, self._tenant_of)
        if listed is None and (listed := door.allowed(session, sender, tenant)):
            listed = replace(listed, action=ListAction.SHADOW_SKIPPED)
        return listed

    def _is_shadow(self, session: Session, sender: str) -> bool:
        percent = self._settings.shadow_percent
        if self.door is None or not 0 < percent < 100:
            return percent > 0 and _dice.random() * 100 < percent
        # Asked at MAIL, at RCPT and at the end: the same mail must hear the same.
        return crc32(f"{session.id} {sender}".encode("utf-8", "replace")) % 10_000 < percent * 100

    def _tenant(self, tx: Transaction) -> str | None:
        """The first recipient's; the intake and `process` keep tenants apart."""
        return self._tenant_of(tx.envelope.recipients[0].address)

    def _tenant_of(self, address: str) -> str | None:
        if not self._settings.tenant_by_domain:
            return self._settings.default_tenant
        domain = address.rpartition("@")[2].lower()
        return self._settings.tenant_by_domain.get(domain, self._settings.default_tenant)

    async def _late_or_new(
        self, tx: Transaction, tenant: str | None, record: Record, late: LateDecisions
    ) -> AnalysisResult:
        """A late decision, if this mail was here before, else a new one. Raises ScanError, Saturated."""
        found = await late.look_up(tenant, tx.envelope, tx.message)
        if isinstance(found, AnalysisResult):
            record.late = Late.HIT
            return found
        if found is not None:
            record.late = found
            raise ScanTimeout("the scan of this mail still runs")
        return await self._scan(tx, tenant, record, late)

    async def _scan(
        self, tx: Transaction, tenant: str | None, record: Record, late: LateDecisions | None
    ) -> AnalysisResult:
        """The scanner's word, from within a slot. Raises ScanError, Saturated."""
        if self._scanner.is_saturated():
            raise Saturated("the scanner has said that it has no room")
        if self._limit is not None and self._is_full():
            raise Saturated("mail in processing is at its limit for now")
        self._admission.came(monotonic())
        delay = self._admission.enter(self._scanner.is_yellow)
        deadline = tx.deadline - self._reserve_s
        running = None
        try:
            if delay:
                await self._throttle(delay, deadline, record)
            header = b"" if record.trace is None else record.trace.header
            in_processing = 0 if self._limit is None else self._admission.in_processing
            record.scan_at = monotonic()
            try:
                result = await self._scanner.submit(
                    _request(tx, tenant), tx.message, deadline, late is not None, header
                )
            finally:
                record.scan_s = monotonic() - record.scan_at
        except (ScanTimeout, Saturated) as exc:
            if self._limit is not None:
                self._limit.overload()
            running = exc.running if isinstance(exc, ScanTimeout) else None
            if running is not None and late is not None:
                record.late = Late.AWAITED
                await late.follow(tenant, tx.envelope, tx.message, running, self._admission.leave)
            raise
        finally:
            if running is None:  # else the slot is the running scan's
                self._admission.leave()
        if self._limit is not None:
            self._limit.sample(record.scan_s, in_processing)
        return result

    async def _throttle(self, delay: float, deadline: float, record: Record) -> None:
        """Wait, but never beyond the deadline: the client's time is worth more than the scanner's peace."""
        began = record.wait_at = monotonic()
        try:
            await asyncio.sleep(min(delay, max(deadline - asyncio.get_running_loop().time(), 0.0)))
        finally:
            record.wait_s = monotonic() - began

    async def _carry_out(
        self, tx: Transaction, case: Case, rule: Rule, result: AnalysisResult | None, record: Record
    ) -> Outcome:
        action, ggrid = rule.action, result.ggrid if result else ""
        keeps = rule.keep_copy or action in _KEPT
        stamp = self._headers.stamp(tx.id, result, str(case)) if keeps else ()
        try:
            if rule.keep_copy and action is not _QUARANTINE:
                await self._keep(tx, case, stamp, result)
            if action is _RELAY:
                return await self._hand_on(tx, stamp, result, record)
            if action is _REJECT or action is _TEMPFAIL:
                return Outcome(action, with_id(reply_for(case, rule, record.error), tx.id, ggrid), result)
            if action is _DISCARD:
                return Outcome(action, accepted(tx.id), result)
            if action is _HOLD and self._relay is None:
                return Outcome(action, accepted(tx.id), result, stamp)
            await self._keep(tx, case, stamp, result)
            return Outcome(_QUARANTINE, accepted(tx.id), result)
        except StoreError as exc:
            log.error("mail %s: the quarantine failed: %s", tx.id, exc)
            return self._tempfail(tx, exc, result, record)

    def _tempfail(self, tx: Transaction, exc: BridgeError, result: AnalysisResult | None, record: Record) -> Outcome:
        record.error = exc
        ggrid = result.ggrid if result else ""
        return Outcome(Action.TEMPFAIL, with_id(reply_to_error(exc), tx.id, ggrid), result)

    async def _hand_on(self, tx: Transaction, stamp: Fields, result: AnalysisResult | None, record: Record) -> Outcome:
        if self._relay is None:
            return Outcome(_RELAY, accepted(tx.id), result, stamp)
        began = record.relay_at = monotonic()
        try:
            delivered = await self._relay.deliver(tx, self._headers.lines(tx, stamp), tx.deadline)
        except NextHopError as exc:
            record.error = exc
            each: tuple[Reply, ...] = ()
            if isinstance(exc, Mixed):
                record.next_id, record.is_mixed = exc.queue_id, exc.accepted > 0
                each = tuple(_with_our_id(one, tx, result) for one in exc.replies) if tx.each else ()
            return Outcome(Action.RELAY, _with_our_id(exc.reply, tx, result), result, stamp, each)
        finally:
            record.relay_s = monotonic() - began
        record.next_id = delivered.queue_id
        return Outcome(_RELAY, delivered.reply, result, stamp, delivered.replies if tx.each else ())

    async def _keep(self, tx: Transaction, case: Case, stamp: Fields, result: AnalysisResult | None) -> None:
        facts: dict[str, object] = {"reason": str(case)}
        if result is not None:
            facts |= {"decision": str(result.decision), "verdict": result.verdict}
            facts |= {"tags": list(result.tags), "ggrid": result.ggrid}
        await self._quarantine.keep(tx, self._headers.lines(tx, stamp), facts)


_SHADOW = Rule(Action.RELAY)
# Asked for each mail, and an enumeration takes its time to find a member.
_RELAY, _REJECT, _DISCARD, _TEMPFAIL = Action.RELAY, Action.REJECT, Action.DISCARD, Action.TEMPFAIL
_QUARANTINE, _HOLD, _DEADLINE = Action.QUARANTINE, Action.HOLD, Case.DEADLINE
_KEPT = (_RELAY, _HOLD, _QUARANTINE)
_WOULD = {ListAction.SHADOW_REFUSED: Action.REJECT, ListAction.SHADOW_SKIPPED: Action.RELAY}
_NO_ROOM = Spool(0)  # for a mail that is refused before it comes


def _with_our_id(reply: Reply, tx: Transaction, result: AnalysisResult | None) -> Reply:
    return with_id(reply, tx.id, result.ggrid if result else "") if reply in _OURS else reply


def _request(tx: Transaction, tenant: str | None) -> AnalysisRequest:
    return AnalysisRequest(
        BorderMtaData(
            envelope_from=tx.envelope.sender,
            envelope_recipients=tx.envelope.addresses,
            remote_address=tx.session.client.address,
            sender_helo=tx.session.client.helo,
        ),
        tenant,
    )
