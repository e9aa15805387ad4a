"""The story of one mail in sentences that a postmaster can forward.

Everything here is text made from what was recorded; this file reads nothing itself. Today's configuration
(`Surroundings`) and the quarantine (`Kept`) supply what the history does not contain. The sentences contain text that
was written by strangers: the caller must make it harmless before showing it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.api.scanning import readable_reasons
from bridge.filter import rule_names
from bridge.history.entry import ACCEPTED_LATE, REFUSED_LATE, LaterEvent, MailEntry
from bridge.history.mails import Mail, is_open
from bridge.history.next_commands import PERSONAL, lists_of, matched_entry, next_commands
from bridge.history.query import CANCELLED
from bridge.history.rule_words import ACTIONS, ERRORS, FAILURES, chosen, decided
from bridge.mail.action import Action
from bridge.quarantine.worst_tags_first import worst_first

# States of `Kept`, in addition to those of the quarantine. `not_here`: another machine may have it.
GONE, NOT_HERE, UNKNOWN = "gone", "not_here", "unknown"
_GIVES_UP_S = 5 * 86_400.0  # when most mail servers return a mail that they could not deliver
_AT_STAGE = {"connect": "when it connected", "mail": "at MAIL", "rcpt": "at RCPT", "data": "at DATA"}
_MANY = 5  # recipients that are named
_SERVER_IN_FRONT = "the mail server in front of the bridge"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What today's configuration says about the path of a mail."""

    protocol: str = ""  # of the listener; "" if there is no such listener any more
    is_after_queue: bool = False  # the mail server had accepted the mail before we saw it
    is_direct: bool = True  # the client that we talk to sends its own mail; otherwise it is our mail server
    lists: tuple[str, ...] = ()  # those that the listener enforces
    next_hop: str = ""  # as the configuration spells it
    next_hops: Mapping[str, str] = field(default_factory=dict)  # by recipient, if they have different ones
    tenant_domain: str = ""  # the first one of the mail's tenant
    scores: Mapping[str, float] = field(default_factory=dict)  # of tags, by the included service's defaults

    @property
    def is_delivered_in_front(self) -> bool:
        """Whether the mail server in front of us delivers the mail itself."""
        return self.protocol in ("milter", "mta-hooks")

    @property
    def client(self) -> str:
        """Who receives our answers. Before its queue, the mail server in front of us passes them on to its client."""
        return _SERVER_IN_FRONT if self.is_after_queue else "the client"

    @property
    def peer(self) -> str:
        """Who is connected to us."""
        return "the client" if self.is_direct else _SERVER_IN_FRONT

    @property
    def maildir(self) -> str:
        """The path of the next hop, if it is a Maildir."""
        return self.next_hop.removeprefix("maildir:") if self.next_hop.startswith("maildir:") else ""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the quarantine knows about a mail."""

    state: str
    delivered: tuple[str, ...] = ()  # the recipients to whom it was released
    until: float | None = None  # when retention deletes it
    problem: str = ""  # why the state is unknown


@dataclass(frozen=True, slots=True)
class Step:
    at: float | None  # Unix time; None: that of the previous step
    text: str
    ended_at: float | None = None  # as far as is known
    is_rule: bool = False  # this is the rule that decided


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
        steps += _attempt(attempt, around, number if len(mail.attempts) > 1 else 0)
    steps += [Step(event.at, _later(event, around), event.at) for event in mail.later]
    steps += _others(mail)
    state = kept.state if kept is not None and kept.state not in (GONE, NOT_HERE, UNKNOWN) else ""
    is_milter, is_after_queue = around.protocol == "milter", around.is_after_queue
    commands = next_commands(mail, around.maildir, state, is_milter=is_milter, is_after_queue=is_after_queue)
    return Story(_fate(mail, around, kept), tuple(steps), _now(mail, around, kept, moment), tuple(commands))


# The first lines


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
        when = f" {_AT_STAGE.get(last.kind.stage, '')}, before its content was sent".replace(" ,", ",")
    elif last.kind.action == CANCELLED:
        when = " while it was being handed on" if _is_on_its_way(last) else " before a decision was made"
    answers = _Answers.of(mail)
    if answers.unsure:
        when += ", and may have been delivered"
    elif answers.late and not answers.refused:
        word, when = "delivered to the next hop", f", which answered too late for {around.client}"
    elif answers.refused:
        when += ", and then refused by the next hop" + (" for some recipients" if answers.late else "")
    count = sum(map(is_open, mail.attempts[:-1]))
    if count and not is_open(last):
        word = f"deferred {_times(count)}, then {word}"
    elif len(mail.attempts) > 1:
        word = f"{word} {_times(len(mail.attempts))}"
    if recipients_with_mail(last):
        word += " for some recipients, and delivered to others"
    if last.kind.stage == "connect":
        return f"A connection from {last.row.client or 'a client'} was refused"
    return f"Mail from {_person(last.row.sender)} to {_people(last)} was {word}{when}"


def _handed_on(entry: MailEntry, around: Surroundings) -> tuple[str, str]:
    """Where the mail is now. We know that the recipient has it only if we delivered it to a mailbox ourselves."""
    if around.is_delivered_in_front:
        queue = f" (queue id {entry.row.queue_id})" if entry.row.queue_id else ""
        return "accepted by the mail server", f", which delivers it{queue}"
    return ("delivered", "") if around.maildir else ("delivered to the next hop", "")


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _person(address: str) -> str:
    return f"<{address}>"


def _people(entry: MailEntry) -> str:
    return _named(entry.recipients) or "unknown recipients"


def _named(recipients: Sequence[str]) -> str:
    named = ", ".join(map(_person, recipients[:_MANY]))
    more = len(recipients) - _MANY
    return f"{named} and {more} more" if more > 0 else named


def _what(mail: Mail) -> Iterator[Step]:
    row = mail.last.row
    facts = [
        f'its subject is "{row.subject}"' if row.subject else "",
        f"its Message-ID is {row.message_id}" if row.message_id else "",
        f"its size is {row.size:,} bytes" if row.size else "",
    ]
    if text := _joined(facts):
        yield Step(None, _sentence(text))


def _joined(texts: Sequence[str]) -> str:
    """`a`, `a and b`, or `a, b, and c`."""
    known = [text for text in texts if text]
    if len(known) < 3:
        return " and ".join(known)
    return f"{', '.join(known[:-1])}, and {known[-1]}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _before(mail: Mail, around: Surroundings) -> Iterator[Step]:
    if mail.before:
        last = mail.before[-1].row
        count = sum(entry.row.mails for entry in mail.before)
        client = around.client if around.is_after_queue else "the same client"
        yield Step(
            last.at,
            f"Earlier, {client} was deferred {_times(count)} at MAIL for this sender, "
            f"perhaps with this mail. It received: {last.reply or 'a 4xx'}",
        )


@dataclass(frozen=True, slots=True)
class _Answers:
    """What is known about the recipients of the last attempt for whom the next hop did not answer in time."""

    unsure: list[str]  # still without an answer
    late: list[str]  # accepted, after the client had gone away
    refused: list[str]  # refused or deferred after that

    @classmethod
    def of(cls, mail: Mail) -> _Answers:
        unsure: list[str] = mail.last.more.get("unsure") or []
        own = [event for event in mail.later if event.id == mail.last.row.id]
        late, refused = (
            [to for event in own if event.event == name for to in event.recipients]
            for name in (ACCEPTED_LATE, REFUSED_LATE)
        )
        return cls([to for to in unsure if to not in (*late, *refused)], late, refused)


def _is_on_its_way(entry: MailEntry) -> bool:
    """Whether it was cancelled when the decision had been made, which is then not recorded."""
    return entry.kind.action == CANCELLED and entry.row.relay_s > 0 and not entry.kind.decision


# One attempt


def _attempt(entry: MailEntry, around: Surroundings, number: int) -> Iterator[Step]:
    row, rule = entry.row, decided(entry.kind.rule, entry.kind.would or entry.kind.action, entry.kind.error)
    if entry.kind.action == CANCELLED and not entry.kind.stage:
        rule = chosen(entry.kind.rule)
    if around.tenant_domain:  # people do not know a tenant by its UUID
        tenant = f"tenant {entry.kind.tenant}"
        rule = rule.replace(tenant, f"{tenant} ({around.tenant_domain})")
    scanned = row.at - row.relay_s
    came = scanned - row.scan_s - row.wait_s
    yield Step(came, _arrival(entry, around, number), came)
    yield from _steps(came, _lists(entry, around))
    yield from _steps(scanned, *_scan(entry, around))
    yield from (replace(step, is_rule=True) for step in _steps(scanned, rule))
    yield from _steps(row.at, _shadow(entry), *_relay(entry, around), *_answer(entry, around))


def _steps(ended_at: float, *texts: str) -> Iterator[Step]:
    return (Step(None, text, ended_at) for text in texts if text)


def _arrival(entry: MailEntry, around: Surroundings, number: int) -> str:
    row, kind = entry.row, entry.kind
    who, send, sent = _sender(entry), "send", "sent"
    if around.is_after_queue and kind.stage != "connect":
        had = f", which had accepted it from {who.removesuffix(',')}," if row.client and number < 2 else ""
        who, send, sent = f"{_capital(_SERVER_IN_FRONT)}{had}", "pass", "passed"
    if kind.rule == rule_names.CLIENT_GONE:
        why = "which closed before the end" if entry.more.get("stopped") else "but did not finish"
        text = f"{who} started to {send} it to listener {kind.listener}, {why}"
    elif kind.stage:
        verb = "was refused" if kind.action == Action.REJECT else "was deferred"
        text = f"{who} {verb} {_AT_STAGE.get(kind.stage, '')} by listener {kind.listener}"
        if row.mails > 1:
            text += f"; {row.mails:,} attempts at about this time are combined in this entry"
    else:
        text = f"{who} {sent} it{' again' if number > 1 else ''} to listener {kind.listener}"
    ids = [
        f"our id is {row.id}" if row.id else "",
        f"the mail server's queue id is {row.queue_id}" if row.queue_id else "",
    ]
    named = _joined(ids)
    prefix = f"Attempt {number}: " if number else ""
    return f"{prefix}{text}." + (f" {_sentence(named)}" if named else "")


def _sender(entry: MailEntry) -> str:
    """The client that sent the mail to the mail server in front of us, or to us."""
    client = entry.row.client or "A client with an unknown address"
    helo = f" (HELO {entry.row.helo})" if entry.row.helo else ""
    login = f", logged in as {entry.more['login']}," if entry.more.get("login") else ""
    return f"{client}{helo}{login}"


def _lists(entry: MailEntry, around: Surroundings) -> str:
    if entry.kind.list:
        matched = entry.more.get("entry")
        which = f" ({matched})" if matched else ""
        checked = f"The lists {_joined(_checked(entry, around))} were checked. " if len(around.lists) > 1 else ""
        whose = "personal list of a recipient" if entry.kind.rule in PERSONAL else f"list {entry.kind.list}"
        return f"{checked}The {whose} has a matching entry{which}."
    is_checked = not entry.kind.stage and entry.kind.action != CANCELLED
    if around.lists and is_checked and not entry.kind.rule.startswith(("limits.", "content")):
        names, missing = _checked(entry, around), _unchecked(entry)
        if not names:
            return missing
        several = len(names) > 1
        text = f"The {'lists' if several else 'list'} {_joined(names)} {'were' if several else 'was'} checked"
        return f"{text}: no entry matches. {missing}".rstrip()
    return ""


def _checked(entry: MailEntry, around: Surroundings) -> list[str]:
    missing = entry.more.get("unchecked") or ()
    return [name for name in around.lists if name not in missing]


def _unchecked(entry: MailEntry) -> str:
    missing = entry.more.get("unchecked") or ()
    several = len(missing) > 1
    names = f"The {'lists' if several else 'list'} {_joined(missing)} {'were' if several else 'was'} not checked"
    return f"{names}: there was no local copy yet." if missing else ""


def _scan(entry: MailEntry, around: Surroundings) -> Iterator[str]:
    row, kind = entry.row, entry.kind
    if row.wait_s >= 0.001:
        yield f"It waited {_duration(row.wait_s)} for a free processing slot."
    host = kind.scanner or "the scanner"
    if kind.decision:
        yield _verdict(entry, around, host)
        if not kind.list and (names := lists_of(entry)):
            yield _found_in_lists(entry, names)
        if why := readable_reasons(entry.more.get("reasons")):
            yield f"Reasons for suspicion: {'; '.join(why)}."
    elif kind.error in ERRORS:
        after = f" after {_duration(row.scan_s)}" if kind.scanner else ""
        yield f"{_capital(host)} gave no decision{after}: {ERRORS[kind.error]}{_why(entry)}."
    elif _is_on_its_way(entry) and kind.scanner:
        yield f"{_capital(host)} scanned it in {_duration(row.scan_s)}."
    elif kind.action == CANCELLED and kind.scanner and entry.more.get("stopped"):
        yield f"{_capital(host)} was scanning it when the listener was closed, after {_duration(row.scan_s)}."
    elif kind.action == CANCELLED and kind.scanner:
        yield f"{_capital(host)} was scanning it when {around.peer} disconnected, after {_duration(row.scan_s)}."
    elif kind.error in FAILURES:
        yield f"{FAILURES[kind.error]}{_why(entry)}."
    elif not kind.stage:
        yield "It was not scanned."
    if kind.late == "awaited":
        yield "The scan continued after the deadline. If it succeeds, its decision is kept for the next attempt."
    elif kind.late == "running":
        yield "The scan of an earlier attempt was still running."
    if kind.unscanned:
        yield f"It was passed on without a decision ({kind.unscanned})."
    if entry.more.get("limit"):
        yield f"It exceeded the limit {entry.more['limit']}."


def _verdict(entry: MailEntry, around: Surroundings, host: str) -> str:
    row, kind = entry.row, entry.kind
    if kind.late == "hit":
        text = f"The decision comes from the scan of an earlier attempt: {kind.decision}"
    else:
        text = f"{_capital(host)} scanned it in {_duration(row.scan_s)}: decision {kind.decision}"
    text += f", verdict {kind.verdict}" if kind.verdict else ""
    if tags := worst_first(entry.tags, around.scores):
        text += f", {'tags' if len(tags) > 1 else 'tag'} {', '.join(_tag(tag, around) for tag in tags)}"
        if any(tag in around.scores for tag in tags):
            text += " (scores: defaults of the included service)"
    return f"{text}." + (f" Its ggrid is {row.ggrid}." if row.ggrid else "")


def _found_in_lists(entry: MailEntry, names: list[str]) -> str:
    matched = [matched_entry(entry, name) for name in names]
    shown = [f"{name} ({found})" if found else name for name, found in zip(names, matched, strict=True)]
    about = "" if all(matched) else " (for its sender, its client, a link or a file)"
    lists = "lists" if len(names) > 1 else "list"
    return f"The scanner found a matching entry in the {lists} {_joined(shown)}{about}."


def _tag(tag: str, around: Surroundings) -> str:
    return f"{tag} {around.scores[tag]:g}" if tag in around.scores else tag


def _why(entry: MailEntry) -> str:
    return f" ({entry.more['why']})" if entry.more.get("why") else ""


def _shadow(entry: MailEntry) -> str:
    if not entry.kind.would:
        return ""
    return (
        "This listener is in shadow mode, so the decision was only reported, "
        f"and the mail was passed on ({entry.kind.action})."
    )


def _relay(entry: MailEntry, around: Surroundings) -> Iterator[str]:
    row, kind = entry.row, entry.kind
    hop = _next_hop(around.next_hop)
    unsure: list[str] = entry.more.get("unsure") or []
    if kind.action == Action.RELAY and not around.is_delivered_in_front and not kind.stage:
        taken = _taken(entry, around, entry.recipients)
        for one in taken:
            named = f" as {one.queue_id}" if one.queue_id else ""
            whose = f" for {_named(one.recipients)}" if len(taken) > 1 else ""
            yield f"{_next_hop(one.hop)} accepted it{whose}{named} after {_duration(row.relay_s)}."
    elif unsure:
        if have := recipients_with_mail(entry):
            yield f"{hop} accepted it for {_named(have)}."
        whose = f" for {_named(unsure)}" if len(unsure) < len(entry.recipients) else ""
        why = _why(entry) if kind.error else ""
        yield f"{hop} received all of it, but its answer{whose} did not come in time{why}: it may have accepted it."
    elif kind.error == "next_hop":
        whose = " for all recipients" if recipients_with_mail(entry) else ""
        yield f"{hop} did not accept it{whose}{_why(entry)}."


@dataclass(slots=True)
class _Taken:
    """A next hop that has accepted the mail."""

    hop: str
    queue_id: str
    recipients: list[str] = field(default_factory=list)


def _taken(entry: MailEntry, around: Surroundings, recipients: Sequence[str]) -> list[_Taken]:
    next_ids: dict[str, list[str]] = entry.more.get("next_ids") or {entry.row.next_id: list(entry.recipients)}
    found: dict[tuple[str, str], _Taken] = {}
    for to in recipients or ("",):
        hop = around.next_hops.get(to, around.next_hop)
        queue_id = next((queue_id for queue_id, own in next_ids.items() if to in own), "" if to else entry.row.next_id)
        found.setdefault((hop, queue_id), _Taken(hop, queue_id)).recipients.append(to)
    return list(found.values())


def _next_hop(name: str) -> str:
    return f"The next hop {name}" if name else "The next hop"


def _answer(entry: MailEntry, around: Surroundings) -> Iterator[str]:
    row, kind = entry.row, entry.kind
    if kind.action == CANCELLED and entry.more.get("stopped"):
        yield f"The listener was closed, and {around.peer} received no answer for this mail."
    elif kind.action == CANCELLED:
        yield f"{_capital(around.peer)} disconnected before it received an answer."
    elif around.is_delivered_in_front and kind.action not in (Action.REJECT, Action.TEMPFAIL):
        yield "The mail server answered its client itself."
    elif row.reply:
        yield f"{_capital(around.client)} received: {row.reply}"
    for address, reply in (entry.more.get("replies") or {}).items():
        yield f"For {_person(address)}, {around.client} received: {reply}"


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" if text.startswith("the ") else text


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def recipients_with_mail(entry: MailEntry) -> list[str]:
    """Those for whom the next hop accepted a mail that it refused for others."""
    if entry.kind.action not in (Action.REJECT, Action.TEMPFAIL, CANCELLED):
        return []
    replies: dict[str, str] = entry.more.get("replies") or {}
    return entry.more.get("accepted") or [to for to, reply in replies.items() if reply.startswith("2")]


# What happened later


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
        fates = [f"{ACTIONS.get(part.kind.action, part.kind.action)} for {_people(part)}" for part in last]
        yield Step(None, f"The same mail was {_joined(fates)}.")
    if others := [other for other in mail.others if other not in parts]:
        ids = ", ".join(attempts[-1].row.id for attempts in others[:_MANY] if attempts[-1].row.id)
        count = len(others)
        mails = "a separate mail" if count == 1 else f"{count} separate mails"
        yield Step(None, f"The same message also arrived as {mails}: {ids}.")


# Where it is


def _now(mail: Mail, around: Surroundings, kept: Kept | None, moment: float) -> str:
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
            text = _at_next_hops(_taken(last, around, last.recipients))
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
            who = _SERVER_IN_FRONT if around.is_after_queue else "the sending mail server"
            text = f"As far as we know, {who} has it and will try again later. No later attempt is recorded."
    answers = _Answers.of(mail)
    if answers.unsure:
        text += f" {_unsure(answers.unsure, around)}"
    elif answers.late:
        text += f" The next hop has it for {_named(answers.late)}, who may get it twice."
    if have := recipients_with_mail(last):
        text = f"{_accepted(last, around, have)} For the others: {text[:1].lower()}{text[1:]}"
    is_deleted = any(event.event == "deleted" for event in mail.later)
    return " ".join(filter(None, [text, _in_quarantine(kind.action, kept, is_deleted=is_deleted)]))


def _accepted(entry: MailEntry, around: Surroundings, recipients: list[str]) -> str:
    queue = f", queue id {entry.row.next_id}" if entry.row.next_id and not entry.more.get("next_ids") else ""
    taken = _taken(entry, around, recipients)
    return " ".join(
        f"{_capital(one.hop or 'the next hop')} accepted it for {_named(one.recipients)}"
        f"{f', queue id {one.queue_id}' if one.queue_id else queue}."
        for one in taken
    )


def _at_next_hops(taken: Sequence[_Taken]) -> str:
    several = len(taken) > 1
    has_it = [
        f"{_capital(one.hop or 'the next hop')} has it"
        + (f" for {_named(one.recipients)}" if several else "")
        + (f", queue id {one.queue_id}" if one.queue_id else "")
        for one in taken
    ]
    if several:
        return f"{'. '.join(has_it)}. They may have delivered it already; see their logs."
    return f"{has_it[0]}, or has delivered it already; see its log."


def _unsure(recipients: list[str], around: Surroundings) -> str:
    hops = _joined(list(dict.fromkeys(around.next_hops.get(to, around.next_hop) for to in recipients)))
    return (
        f"It is unknown whether {hops or 'the next hop'} has accepted it for {_named(recipients)}: look for it in that "
        "server's log. If so, the next attempt delivers it a second time."
    )


def _refused(entry: MailEntry, around: Surroundings) -> str:
    if around.is_after_queue:
        return "Not here: the mail server in front of the bridge has returned it to the sender (bounce)."
    who = "the sending mail server has it" if entry.kind.stage == "" else "the sending mail server still has it"
    return f"Not here: {who}, and returns it to the sender as undeliverable (bounce)."


def _deferred(entry: MailEntry, around: Surroundings, moment: float) -> str:
    who = _capital(_SERVER_IN_FRONT) if around.is_after_queue else "The sending mail server"
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
    have = ", ".join(map(_person, kept.delivered))
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
