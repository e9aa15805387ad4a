"""A person's copy of a held mail, and what they may do with it. Everything a user does to mail goes through here.

The session or the link says which recipient is meant; the quarantine says whether the mail has that recipient, and
whether they already have it. If this is wrong, users see or release each other's mail.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from bridge.console import audit as audit_log
from bridge.console.checks import Refused
from bridge.digests.items import Item
from bridge.digests.listing import is_held_for
from bridge.digests.requests import ALLOW, GRANTED, REFUSED, RELEASE, WAITING, Notice, Request
from bridge.digests.settings import TenantSettings
from bridge.digests.signed_links import Link
from bridge.digests.why_held import Reason, reason_of, words_for
from bridge.errors import BridgeError
from bridge.lists.personal_store import BadEntry, PersonalListFull, sender_of_mail
from bridge.mail.address import comparable_address
from bridge.quarantine.quarantine import MailNotFound
from bridge.quarantine.record import MailRecord
from bridge.quarantine.store import is_id
from bridge.runtime.tables import TablesFailed
from bridge.user_pages import notices
from bridge.user_pages.actions import ActionResult
from bridge.user_pages.call import Call

log = logging.getLogger(__name__)

# With addresses in several tenants, a person may do what all of these tenants allow.
_STRICTEST_FIRST = ("nothing", "request", "release")
_STRICTEST_ALLOW_FIRST = ("nobody", "administrators", "users")


@dataclass(frozen=True, slots=True)
class Copy:
    """One mail, as far as it belongs to this person."""

    mail: MailRecord
    recipients: tuple[str, ...]  # the person's, in the form that is compared
    person: str
    settings: tuple[TenantSettings, ...]  # of each recipient

    @property
    def reason(self) -> Reason:
        return reason_of(self.mail)

    @property
    def why(self) -> str:
        return words_for(self.reason)

    @property
    def may_read(self) -> bool:
        return all(settings.users.preview for settings in self.settings)

    @property
    def may_delete(self) -> bool:
        return all(settings.users.delete for settings in self.settings)

    @property
    def is_held(self) -> bool:
        return any(is_held_for(recipient, self.mail) for recipient in self.recipients)

    @property
    def missing(self) -> tuple[str, ...]:
        """The person's addresses that do not have it, in the spelling of the envelope."""
        lacking = (each.address for each in self.mail.lacking(self.mail.envelope.recipients))
        return tuple(dict.fromkeys(each for each in lacking if comparable_address(each) in self.recipients))

    @property
    def is_only_theirs(self) -> bool:
        return all(comparable_address(each) in self.recipients for each in self.mail.envelope.addresses)


async def of_person(call: Call, mail_id: str) -> Copy:
    """The copies of the user who has signed in. Raises Refused."""
    items = await call.run(_items, call, mail_id) if is_id(mail_id) else []
    mail = await _read(call, mail_id) if items else None
    if mail is None:
        raise not_found(call)
    return _copy(call, mail, tuple(item.recipient for item in items), call.person)


def _items(call: Call, mail_id: str) -> list[Item]:
    """Those that belong to the person now: the stored owners may be slightly out of date."""
    items, person_of = call.sources.items.of_mail(call.person, mail_id), call.sources.people.person_of
    return [item for item in items if person_of(item.recipient) == call.person]


async def of_link(call: Call, link: Link) -> Copy:
    """The copy that a link is for, if it still belongs to the person who got the link. Raises Refused."""
    mail_id, recipient = link.mail, link.recipient
    person = await call.run(call.sources.people.person_of, recipient)
    mail = await _read(call, mail_id) if person == (link.person or recipient) else None
    is_theirs = mail is not None and any(comparable_address(each) == recipient for each in mail.envelope.addresses)
    if mail is None or person is None or not is_theirs:
        raise not_found(call)
    if await call.run(call.sources.items.is_hidden, mail_id, recipient):
        raise not_found(call)
    return _copy(call, mail, (recipient,), person)


def may_release(copy: Copy) -> str:
    """release, request or nothing."""
    allowed = {settings.may(copy.reason) for settings in copy.settings}
    return next(word for word in _STRICTEST_FIRST if word in allowed)


async def release(call: Call, copy: Copy) -> str:
    """Release it, or ask for it; returns the notice. Raises Refused."""
    may = may_release(copy)
    if not copy.missing:
        raise _has_it(call)
    if may == "nothing":
        text = call.speak("Your organisation does not release such mail.")
        raise await refused(call, copy, "released own mail", 403, call.speak("Not allowed"), text)
    if may == "request":
        return await _request(call, copy, RELEASE)
    if not call.pages.tried.is_one_of_few(f"{copy.person} {copy.mail.id}"):
        text = call.speak("The mail could not be released. Try again later.")
        raise Refused(429, call.speak("Not released"), text, 3600)
    outcome = await call.pages.carry_out(_release(call, copy))
    if outcome.was_done_before:  # by another window, or a second click, at the same moment
        raise _has_it(call)
    if not outcome.is_known:
        text = call.speak("It may already have been delivered. Look for it in your mailbox, or ask your administrator.")
        raise Refused(409, call.speak("Not released"), text)
    if not outcome.is_done:
        text = call.speak("The mail could not be released. Try again later.")
        raise Refused(503, call.speak("Not released"), text, 60)
    return "released"


def _has_it(call: Call) -> Refused:
    text = call.speak("This mail has already been released to you. Look for it in your mailbox.")
    return Refused(409, call.speak("You already have it"), text)


async def _release(call: Call, copy: Copy) -> ActionResult:
    detail = f"to {', '.join(copy.missing)}"
    with call.pages.releasing.place(copy.person):
        async with call.audited("released own mail", mail=copy.mail.id, detail=detail, name=copy.person) as note:
            outcome = await call.run(call.sources.actions.release, copy.mail, copy.missing, copy.person)
            note.detail, note.result = f"{detail}: {outcome.text}", _result(outcome)
    return outcome


async def delete(call: Call, copy: Copy) -> str:
    """Delete their copies; the mail itself only once nobody has a copy left. Raises Refused."""
    if not copy.may_delete:
        text = call.speak("Your organisation does not let you delete held mail.")
        raise await refused(call, copy, "deleted own mail", 403, call.speak("Not allowed"), text)
    async with call.audited("deleted own mail", mail=copy.mail.id, detail="the copy", name=copy.person) as note:
        hidden = set(await call.run(call.sources.items.hide, copy.mail.id, copy.recipients))
        if all(comparable_address(each) in hidden for each in copy.mail.envelope.addresses):
            outcome = await call.run(call.sources.actions.delete, copy.mail, copy.person)
            note.detail, note.result = f"the mail: {outcome.text}", _result(outcome)
    return "deleted"


def _result(outcome: ActionResult) -> str:
    return audit_log.DONE if outcome.is_done else audit_log.FAILED


def may_block(copy: Copy) -> str:
    may_block_senders = all(settings.users.block_senders for settings in copy.settings)
    return "allow" if may_block_senders and copy.mail.envelope.sender else "nothing"


def may_allow(copy: Copy) -> str:
    """allow, request or nothing. Only an administrator may allow a sender of malware."""
    allowed_by = {settings.allow_by for settings in copy.settings}
    strictest = next(word for word in _STRICTEST_ALLOW_FIRST if word in allowed_by)
    if not copy.mail.envelope.sender or strictest == "nobody":
        return "nothing"
    return "allow" if strictest == "users" and copy.reason is not Reason.MALWARE else "request"


async def list_sender(call: Call, copy: Copy, kind: str) -> str:
    """Block or allow the sender for this person. Raises Refused."""
    lists = call.sources.lists
    may = may_block(copy) if kind == "block" else may_allow(copy)
    action = "blocked a sender" if kind == "block" else "allowed a sender"
    if lists is None or may == "nothing":
        text = call.speak("Your organisation does not let you do this.")
        raise await refused(call, copy, action, 403, call.speak("Not allowed"), text)
    if may == "request":
        return await _request(call, copy, ALLOW)
    change = lists.block if kind == "block" else lists.allow
    try:
        sender = sender_of_mail(copy.mail.envelope.sender)
        async with call.audited(action, mail=copy.mail.id, name=copy.person):
            for recipient in copy.recipients:
                await call.run(change, recipient, sender, f"user {copy.person}")
    except Refused:
        raise
    except PersonalListFull as exc:
        text = call.speak("Your list is full. Remove an entry from it first.")
        raise Refused(409, call.speak("Not done"), text) from exc
    except BadEntry as exc:
        raise Refused(409, call.speak("Not done"), call.speak("This sender cannot be put on a list.")) from exc
    except BridgeError as exc:
        log.warning("user pages: personal lists: %s", exc)
        text = call.speak("This cannot be done at the moment. Try again later.")
        raise Refused(503, call.speak("Not done"), text, 5) from exc
    return "blocked" if kind == "block" else "allowed"


def may_be_ham(copy: Copy) -> bool:
    """Nobody may teach the filter that malware or phishing is wanted."""
    return copy.reason not in (Reason.MALWARE, Reason.PHISHING)


async def report(call: Call, copy: Copy, kind: str) -> str:
    """Report it as spam or as ham (not spam). Raises Refused."""
    if call.sources.feedback is None or kind not in ("spam", "ham"):
        raise not_found(call)
    if kind == "ham" and not may_be_ham(copy):
        text = call.speak("Your organisation does not let you do this.")
        raise await refused(call, copy, "reported as ham", 403, call.speak("Not allowed"), text)
    if not call.pages.reported.is_one_of_few(f"{copy.person} {copy.mail.id}"):
        text = call.speak("This cannot be done at the moment. Try again later.")
        raise Refused(429, call.speak("Not done"), text, 3600)
    with call.pages.reports.place(copy.person):
        try:
            async with call.audited(f"reported as {kind}", mail=copy.mail.id, name=copy.person):
                await call.send_report(call.sources.feedback, kind, copy.mail, copy.person)
        except Refused:
            raise
        except BridgeError as exc:
            log.warning("user pages: feedback on %s failed: %s", copy.mail.id, exc)
            text = call.speak("This cannot be done at the moment. Try again later.")
            raise Refused(503, call.speak("Not done"), text) from exc
    return "reported"


async def refused(call: Call, copy: Copy, action: str, status: int, title: str, text: str) -> Refused:
    """An error to be raised; the audit log records the first ones."""
    call.has_audited = True
    if call.pages.refused.is_one_of_few(f"{copy.person} {action}"):
        await call.audit(action, mail=copy.mail.id, detail="not allowed", result=audit_log.REFUSED, name=copy.person)
    return Refused(status, title, text)


def not_found(call: Call) -> Refused:
    """The same answer for mail that is gone and for mail that is somebody else's."""
    text = call.speak("There is no such mail for you. It may have expired or been deleted.")
    return Refused(404, call.speak("No such mail"), text)


async def _request(call: Call, copy: Copy, kind: str) -> str:
    asked: Request | None = None
    action = "requested a release" if kind == RELEASE else "requested to allow a sender"
    async with call.audited(action, mail=copy.mail.id, name=copy.person) as note:
        for recipient in copy.recipients:
            tenant = copy.mail.tenant or call.sources.settings.tenant_of(recipient)
            ask, about = call.sources.requests.ask, (kind, copy.mail.id, recipient, copy.person, tenant)
            asked = await call.run(ask, *about, has_notice=asked is None) or asked
        note.detail = "" if asked is not None else "already requested, or too many requests are waiting"
    if asked is not None:
        redacted = call.sources.redact(copy.person)
        log.warning("request is waiting for a releaser: kind=%s id=%s person=%s", kind, copy.mail.id, redacted)
        try:
            await notices.tell(call.sources, Notice(asked, ()), copy.mail)
        except TablesFailed as exc:
            log.warning("user pages: cannot record who was notified of a request: %s", exc)
    else:
        await _check_waits(call, copy, kind)
    return "requested"


async def _check_waits(call: Call, copy: Copy, kind: str) -> None:
    """Raises Refused if this was refused before, or if too many requests of the person are waiting."""
    asked = await call.run(call.sources.requests.of, copy.person, [copy.mail.id])
    states = {request.state for (of_kind, _, _), request in asked.items() if of_kind == kind}
    if states & {WAITING, GRANTED}:
        return
    if REFUSED in states:
        raise Refused(409, call.speak("Not done"), call.speak("Your organisation does not let you do this."))
    text = call.speak("This cannot be done at the moment. Try again later.")
    raise Refused(429, call.speak("Not done"), text, 3600)


def _copy(call: Call, mail: MailRecord, recipients: tuple[str, ...], person: str) -> Copy:
    return Copy(mail, recipients, person, tuple(map(call.sources.settings.of, recipients)))


async def _read(call: Call, mail_id: str) -> MailRecord | None:
    """None also for a copy that is kept for operators alone."""
    try:
        found = await call.run(call.sources.quarantine.read, mail_id)
    except MailNotFound:
        return None
    return None if found.is_copy else found
