"""The story of one mail in sentences that a postmaster can forward.

Everything here is text made from what was recorded; this file reads nothing itself. Today's configuration
(`Surroundings`) and the quarantine (`Kept`) supply what the history does not contain. The sentences contain text that
was written by strangers: the caller must make it harmless before showing it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bridge.filter import rule_names
from bridge.history.entry import ACCEPTED_LATE, REFUSED_LATE, LaterEvent, MailEntry
from bridge.history.mails import Mail, is_open
from bridge.history.next_commands import next_commands
from bridge.history.query import CANCELLED
from bridge.history.rule_words import ACTIONS
from bridge.history.story_answers import LateAnswers, is_on_its_way, recipients_with_mail
from bridge.history.story_attempt import Step, attempt_steps
from bridge.history.story_context import GONE, NOT_HERE, UNKNOWN, Kept, Surroundings
from bridge.history.story_place import whereabouts
from bridge.history.story_wording import AT_STAGE, in_brackets, joined, number_of_times, recipients_of, sentence
from bridge.mail.action import Action

_MAX_NAMED = 5  # other mails that are named


@dataclass(frozen=True, slots=True)
class Story:
    fate: str  # one line
    steps: tuple[Step, ...]
    now: str  # where the mail is
    commands: tuple[str, ...]  # what to type next

    def to_dict(self) -> dict[str, Any]:
        return {
            "fate": self.fate,
            "story": [step.text for step in self.steps],
            "now": self.now,
            "next": list(self.commands),
        }


def tell(mail: Mail, around: Surroundings, kept: Kept | None, now: float | None = None) -> Story:
    moment = time.time() if now is None else now
    steps = [*_before(mail, around), *_what(mail)]
    for number, attempt in enumerate(mail.attempts, 1):
        steps += attempt_steps(attempt, around, number if len(mail.attempts) > 1 else 0)
    steps += [Step(event.at, _later(event, around), event.at) for event in mail.later]
    steps += _others(mail)
    state = kept.state if kept is not None and kept.state not in (GONE, NOT_HERE, UNKNOWN) else ""
    is_milter, is_after_queue = around.protocol == "milter", around.is_after_queue
    commands = next_commands(mail, around.maildir, state, is_milter=is_milter, is_after_queue=is_after_queue)
    return Story(_fate(mail, around, kept), tuple(steps), whereabouts(mail, around, kept, moment), tuple(commands))


def _fate(mail: Mail, around: Surroundings, kept: Kept | None) -> str:
    last = mail.last
    is_released = any(event.event == "released" for event in mail.later) or (kept is not None and kept.delivered)
    words = {
        Action.REJECT: "refused",
        Action.DISCARD: "accepted and dropped",
        Action.QUARANTINE: "quarantined and later released" if is_released else "quarantined",
        Action.HOLD: "put on hold by the mail server",
        Action.TEMPFAIL: "deferred",
        CANCELLED: f"abandoned by {around.client}",
    }
    word, when = words.get(last.kind.action, last.kind.action), ""
    if last.kind.action == Action.RELAY:
        word, when = _handed_on(last, around)
    if last.more.get("stopped"):
        word = "interrupted by a stop of the listener"
    if last.kind.rule == rule_names.CLIENT_GONE:
        word, when = word if last.more.get("stopped") else words[CANCELLED], " before all of its content was sent"
    elif last.kind.stage:
        when = f" {AT_STAGE.get(last.kind.stage, '')}, before its content was sent".replace(" ,", ",")
    elif last.kind.action == CANCELLED:
        when = " while it was being handed on" if is_on_its_way(last) else " before a decision was made"
    answers = LateAnswers.of(mail)
    if answers.unsure:
        when += ", and may have been delivered"
    elif answers.late and not answers.refused:
        word, when = "delivered to the next hop", f", which answered too late for {around.client}"
    elif answers.refused:
        when += ", and then refused by the next hop" + (" for some recipients" if answers.late else "")
    count = sum(map(is_open, mail.attempts[:-1]))
    if count and not is_open(last):
        word = f"deferred {number_of_times(count)}, then {word}"
    elif len(mail.attempts) > 1:
        word = f"{word} {number_of_times(len(mail.attempts))}"
    if recipients_with_mail(last):
        word += " for some recipients, and delivered to others"
    if last.kind.stage == "connect":
        return f"A connection from {last.row.client or 'a client'} was refused"
    return f"Mail from {in_brackets(last.row.sender)} to {recipients_of(last)} was {word}{when}"


def _handed_on(entry: MailEntry, around: Surroundings) -> tuple[str, str]:
    """Where the mail is now. We know that the recipient has it only if we delivered it to a mailbox ourselves."""
    if around.is_delivered_in_front:
        queue = f" (queue id {entry.row.queue_id})" if entry.row.queue_id else ""
        return "accepted by the mail server", f", which delivers it{queue}"
    return ("delivered", "") if around.maildir else ("delivered to the next hop", "")


def _what(mail: Mail) -> Iterator[Step]:
    row = mail.last.row
    facts = [
        f'its subject is "{row.subject}"' if row.subject else "",
        f"its Message-ID is {row.message_id}" if row.message_id else "",
        f"its size is {row.size:,} bytes" if row.size else "",
    ]
    if text := joined(facts):
        yield Step(None, sentence(text))


def _before(mail: Mail, around: Surroundings) -> Iterator[Step]:
    if mail.before:
        last = mail.before[-1].row
        count = sum(entry.row.mails for entry in mail.before)
        client = around.client if around.is_after_queue else "the same client"
        yield Step(
            last.at,
            f"Earlier, {client} was deferred {number_of_times(count)} at MAIL for this sender, "
            f"perhaps with this mail. It received: {last.reply or 'a 4xx'}",
        )


def _later(event: LaterEvent, around: Surroundings) -> str:
    who = f" by {event.by}" if event.by else ""
    text = f" {event.text}" if event.text.startswith("to ") else f": {event.text}" if event.text else ""
    words = {
        "released": f"It was released from the quarantine{who}",
        "deleted": f"It was deleted from the quarantine{who}",
    }
    words["digest sent"] = "A digest that lists it was sent"
    words["released in part"] = f"It was released in part from the quarantine{who}"
    words["release failed"] = f"It could not be released from the quarantine{who}"
    words[ACCEPTED_LATE] = f"After {around.client} had gone, the next hop accepted it"
    words[REFUSED_LATE] = f"After {around.client} had gone, the next hop did not accept it"
    words["release unsure"] = f"The next hop did not answer a release from the quarantine{who}"
    return f"{words.get(event.event, f'It was {event.event}{who}')}{text}".removesuffix(".") + "."


def _others(mail: Mail) -> Iterator[Step]:
    own = {attempt.row.id for attempt in mail.attempts} - {""}
    parts = [other for other in mail.others if not own.isdisjoint(attempt.row.id for attempt in other)]
    if parts:
        last = [attempts[-1] for attempts in parts]
        fates = [f"{ACTIONS.get(part.kind.action, part.kind.action)} for {recipients_of(part)}" for part in last]
        yield Step(None, f"The same mail was {joined(fates)}.")
    if others := [other for other in mail.others if other not in parts]:
        ids = ", ".join(attempts[-1].row.id for attempts in others[:_MAX_NAMED] if attempts[-1].row.id)
        count = len(others)
        mails = "a separate mail" if count == 1 else f"{count} separate mails"
        yield Step(None, f"The same message also arrived as {mails}: {ids}.")
