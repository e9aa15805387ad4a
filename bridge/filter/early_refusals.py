"""Early refusals: what a mail is refused for before it is complete, so that its client need not send the rest.

At MAIL: no capacity, or too much mail from one client. At RCPT: a list, or a recipient whose tenant is uncertain.
During the transfer: a mail that is too large or not clean SMTP. Refusals that concern a mail or a recipient are logged
and counted here; those for lack of capacity are too many for that, and the intake counts them. If this is wrong, wanted
mail is refused, or the scanner gets more than it can take.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from bridge.errors import Saturated
from bridge.filter import rule_names, shadow
from bridge.filter.envelope_lists import NO_COPY, EnvelopeLists
from bridge.filter.mail_rates import MailRates
from bridge.filter.outcome import Outcome, Record
from bridge.filter.personal_rules import PersonalLists
from bridge.filter.policy import (
    TOO_MUCH_MAIL,
    UNCERTAIN_DOMAIN,
    Case,
    as_configured,
    cause_of,
    reply_for,
    rule_of_refusal,
    with_id,
)
from bridge.filter.scan_slots import Slots
from bridge.filter.settings import FilterSettings
from bridge.mail.action import Action
from bridge.mail.address import KnownDomains, has_certain_domain
from bridge.mail.envelope import Envelope, Recipient
from bridge.mail.list_match import ListMatch
from bridge.mail.message import Message, Spool
from bridge.mail.reply import Reply
from bridge.mail.session import Session
from bridge.mail.transaction import Transaction, new_id

_MAX_SIZE = 1 << 40  # a client may announce any number, and databases add sizes up in 64 bits
_NO_CONTENT = Spool(0)  # for the record of a mail that is refused before its content


class EarlyRefusals:
    """For one listener. `tell` logs and counts a refusal."""

    def __init__(
        self,
        settings: FilterSettings,
        slots: Slots,
        tell: Callable[[Record], None],
        *,
        envelope_lists: EnvelopeLists | None = None,
        personal: PersonalLists | None = None,
        rates: MailRates | None = None,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._tell = tell
        self.envelope_lists = envelope_lists  # without lists, the intake need not ask
        self._personal = personal
        self._refuses = settings.shadow_percent < 100
        self._rates = rates if self._refuses else None
        self._saturation_reply = self._reply_if_full()
        self.saturation_rule = settings.policy[Case.SATURATED].name

    def _reply_if_full(self) -> Reply | None:
        """The reply to saturation at MAIL; None if the policy would not refuse all mail of this listener."""
        policies = [self._settings.policy, *self._settings.tenant_policies.values()]
        if not self._refuses or any(policy[Case.SATURATED].action is not Action.TEMPFAIL for policy in policies):
            return None
        return reply_for(Case.SATURATED, self._settings.policy[Case.SATURATED], Saturated(""))

    # At MAIL, and before the content.

    def closed_at_mail(self) -> Reply | None:
        """The 451 for MAIL if saturation is already known, else None."""
        return None if self._slots.is_open_at_mail() else self._saturation_reply

    def closed_before_content(self) -> Reply | None:
        """The 451 for DATA if all slots are taken by now, else None."""
        return None if self._slots.is_open_before_content() else self._saturation_reply

    def refused_by_rate(self, client: str | None) -> Reply | None:
        """Counts a mail of this client; the 451 if it has sent too many in the last minute, else None."""
        if self._rates is None or self._rates.lets_in(client):
            return None
        self._slots.note_arrival()
        return TOO_MUCH_MAIL

    def refuse_mail(self, session: Session, sender: str, reply: Reply, size: int = 0) -> Reply:
        """Log and count a refusal at MAIL. Returns the reply, with our id."""
        tx = _without_content(session, Envelope(sender, ()))
        outcome = self._outcome(tx, reply)
        self._tell(Record(tx, min(size, _MAX_SIZE), outcome=outcome, at="mail", rule=rule_of_refusal(reply)))
        return outcome.reply

    # At RCPT.

    def may_be_another(self, recipient: str, known: KnownDomains) -> bool:
        """Whether a tenant, a route or a personal entry depends on who this is, and mail servers may disagree about it.

        `known`: the domains of tenants and routes.
        """
        if not self._refuses:
            return False
        if known and not has_certain_domain(recipient, known):
            return True
        return self._personal is not None and self._personal.may_miss(recipient)

    def refused_by_list(self, session: Session, sender: str, recipient: str, known: KnownDomains) -> Reply | None:
        """The refusal of a recipient; None if no list refuses it."""
        lists = self.envelope_lists
        if lists is None or shadow.covers(self._settings.shadow_percent, session, sender, has_lists=True):
            return None
        if lists.block_recipients and not has_certain_domain(recipient, known, are_all=False):
            return self.refuse_recipient(session, sender, recipient, UNCERTAIN_DOMAIN)
        tenant = self._settings.tenant_of(recipient)
        found = lists.match_at_rcpt(session, sender, recipient, tenant)
        if found is not None:
            return self.refuse_recipient(session, sender, recipient, lists.refusal, found)
        return self.refuse_recipient(session, sender, recipient, NO_COPY) if lists.lacks_copy(tenant) else None

    def refuse_recipient(
        self, session: Session, sender: str, recipient: str, reply: Reply, listed: ListMatch | None = None
    ) -> Reply:
        """Log and count a refusal at RCPT. Returns the reply, with our id."""
        tx = _without_content(session, Envelope(sender, (Recipient(recipient),)))
        outcome = self._outcome(tx, reply)
        record = Record(tx, 0, self._settings.tenant_of(recipient), outcome, listed=listed, at="rcpt")
        if listed is not None:
            record.rule = rule_names.of_list(listed.name)
            record.unchecked = self.envelope_lists.unchecked(record.tenant) if self.envelope_lists is not None else ()
        else:
            record.rule = rule_names.WITHOUT_COPY if reply is NO_COPY else rule_of_refusal(reply)
        self._tell(record)
        return outcome.reply

    # During the transfer.

    def refuse_transfer(self, tx: Transaction, reply: Reply, size: int) -> Outcome:
        """Refuse a mail whose content cannot be accepted (too large, not clean SMTP): no scan, but a log line."""
        outcome = self._outcome(tx, reply)
        tx.message.close()
        self._tell(Record(tx, size, outcome=outcome, error=cause_of(reply), rule=rule_of_refusal(reply)))
        return outcome

    def _outcome(self, tx: Transaction, reply: Reply) -> Outcome:
        answer = as_configured(reply, self._settings.policy_of(tx.envelope))
        action = Action.TEMPFAIL if answer.is_temporary else Action.REJECT
        return Outcome(action, with_id(answer, tx.id))


def _without_content(session: Session, envelope: Envelope) -> Transaction:
    now = monotonic()
    return Transaction(new_id(), session, envelope, Message(_NO_CONTENT), now, now)
