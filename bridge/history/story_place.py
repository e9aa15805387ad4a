"""Where a mail is now, as far as the bridge can know."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bridge.history.entry import MailEntry
from bridge.history.mails import Mail
from bridge.history.story_answers import Acceptance, LateAnswers, acceptances, recipients_with_mail
from bridge.history.story_context import Kept, Surroundings
from bridge.history.story_wording import SERVER_IN_FRONT, capital, in_brackets, joined, named_recipients
from bridge.mail.action import Action

_GIVES_UP_S = 5 * 86_400.0  # when most mail servers return a mail that they could not deliver


def whereabouts(mail: Mail, around: Surroundings, kept: Kept | None, moment: float) -> str:
    last = mail.last
    kind, row = last.kind, last.row
    text = ""
    match kind.action:
        case Action.RELAY if around.is_delivered_in_front:
            queue = f" (queue id {row.queue_id})" if row.queue_id else ""
            text = f"The mail server in front of the bridge{queue} has it, or has delivered it already; see its log."
        case Action.RELAY if around.maildir:
            text = f"In the Maildir {around.maildir}, in a file with {row.id} in its name, unless someone has moved it."
        case Action.RELAY:
            text = _at_next_hops(acceptances(last, around, last.recipients))
        case Action.HOLD:
            queue = f" as {row.queue_id}" if row.queue_id else ""
            text = (
                f"In the hold queue of the mail server{queue}, unless someone has released or deleted it there; "
                "the bridge cannot see that."
            )
        case Action.DISCARD:
            text = "Nowhere: it was dropped, and the sender was not notified."
        case Action.REJECT:
            text = _refused(last, around)
        case Action.TEMPFAIL:
            text = _deferred(last, around, moment)
        case "cancelled":
            who = SERVER_IN_FRONT if around.is_after_queue else "the sending mail server"
            text = f"As far as we know, {who} has it and will try again later. No later attempt is recorded."
    answers = LateAnswers.of(mail)
    if answers.unsure:
        text += f" {_unsure(answers.unsure, around)}"
    elif answers.late:
        text += f" The next hop has it for {named_recipients(answers.late)}, who may get it twice."
    if have := recipients_with_mail(last):
        text = f"{_accepted(last, around, have)} For the others: {text[:1].lower()}{text[1:]}"
    is_deleted = any(event.event == "deleted" for event in mail.later)
    return " ".join(filter(None, [text, _in_quarantine(kind.action, kept, is_deleted=is_deleted)]))


def _accepted(entry: MailEntry, around: Surroundings, recipients: list[str]) -> str:
    queue = f", queue id {entry.row.next_id}" if entry.row.next_id and not entry.more.get("next_ids") else ""
    taken = acceptances(entry, around, recipients)
    return " ".join(
        f"{capital(one.hop or 'the next hop')} accepted it for {named_recipients(one.recipients)}"
        f"{f', queue id {one.queue_id}' if one.queue_id else queue}."
        for one in taken
    )


def _at_next_hops(taken: Sequence[Acceptance]) -> str:
    several = len(taken) > 1
    has_it = [
        f"{capital(one.hop or 'the next hop')} has it"
        + (f" for {named_recipients(one.recipients)}" if several else "")
        + (f", queue id {one.queue_id}" if one.queue_id else "")
        for one in taken
    ]
    if several:
        return f"{'. '.join(has_it)}. They may have delivered it already; see their logs."
    return f"{has_it[0]}, or has delivered it already; see its log."


def _unsure(recipients: list[str], around: Surroundings) -> str:
    hops = joined(list(dict.fromkeys(around.next_hops.get(to, around.next_hop) for to in recipients)))
    return (
        f"It is unknown whether {hops or 'the next hop'} has accepted it for {named_recipients(recipients)}: "
        "look for it in that server's log. If so, the next attempt delivers it a second time."
    )


def _refused(entry: MailEntry, around: Surroundings) -> str:
    if around.is_after_queue:
        return "Not here: the mail server in front of the bridge has returned it to the sender (bounce)."
    who = "the sending mail server has it" if entry.kind.stage == "" else "the sending mail server still has it"
    return f"Not here: {who}, and returns it to the sender as undeliverable (bounce)."


def _deferred(entry: MailEntry, around: Surroundings, moment: float) -> str:
    who = capital(SERVER_IN_FRONT) if around.is_after_queue else "The sending mail server"
    if moment - entry.row.at > _GIVES_UP_S:
        return f"{who} kept it and tried again; by now, it has probably given up and returned the mail to the sender."
    return f"{who} keeps it and tries again, usually for up to five days. No later attempt is recorded."


def _in_quarantine(action: str, kept: Kept | None, *, is_deleted: bool) -> str:
    """`is_deleted`: the steps say who deleted it."""
    if kept is None:
        return ""
    is_copy = action != Action.QUARANTINE
    there = "A copy is in the quarantine" if is_copy else "In the quarantine"
    end = f" until {_moment(kept.until)}" if kept.until else ""
    have = ", ".join(map(in_brackets, kept.delivered))
    match kept.state:
        case "kept" if have:
            return f"{there}{end}; released to {have}, but not to all recipients."
        case "kept":
            return f"{there}{end}; it has not been released."
        case "interrupted":
            return (
                f"{there}{end}; a release was interrupted, and its result is unknown. "
                "Look for the mail in the next hop's log before you release it again."
            )
        case "unsure":
            return (
                f"{there}{end}; the next hop did not answer a release, so recipients may have the mail. "
                "Look for the mail in the next hop's log before you release it again."
            )
        case "released":
            released = "A copy was released" if is_copy else "Released"
            return f"{released} to {have or 'its recipients'}; it is still in the quarantine{end}."
        case "gone":
            gone = "The copy is no longer" if is_copy else "No longer"
            why = "it was deleted" if is_deleted else "it was deleted, or its retention period has ended"
            return f"{gone} in the quarantine: {why}."
        case "not_here":
            return (
                "Not in this machine's quarantine: it is in another machine's quarantine, or was deleted there. "
                "Run this command on the machine that received the mail."
            )
    return f"{there}, which could not be read: {kept.problem}."


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))
