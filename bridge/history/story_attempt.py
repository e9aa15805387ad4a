"""One attempt to send a mail, step by step: its arrival, the lists, the scan, the rule, the next hop, the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bridge.api.scanning import readable_reasons
from bridge.filter import rule_names
from bridge.history.entry import MailEntry
from bridge.history.next_commands import PERSONAL, lists_of, matched_entry
from bridge.history.query import CANCELLED
from bridge.history.rule_words import ERRORS, FAILURES, chosen, decided
from bridge.history.story_answers import acceptances, is_on_its_way, recipients_with_mail
from bridge.history.story_context import Surroundings
from bridge.history.story_wording import (
    AT_STAGE,
    SERVER_IN_FRONT,
    capital,
    in_brackets,
    joined,
    named_recipients,
    readable_duration,
    sentence,
)
from bridge.mail.action import Action
from bridge.quarantine.worst_tags_first import worst_first


@dataclass(frozen=True, slots=True)
class Step:
    at: float | None  # Unix time; None: that of the previous step
    text: str
    ended_at: float | None = None  # as far as is known
    is_rule: bool = False  # this is the rule that decided


def attempt_steps(entry: MailEntry, around: Surroundings, number: int) -> Iterator[Step]:
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
        who, send, sent = f"{capital(SERVER_IN_FRONT)}{had}", "pass", "passed"
    if kind.rule == rule_names.CLIENT_GONE:
        why = "which closed before the end" if entry.more.get("stopped") else "but did not finish"
        text = f"{who} started to {send} it to listener {kind.listener}, {why}"
    elif kind.stage:
        verb = "was refused" if kind.action == Action.REJECT else "was deferred"
        text = f"{who} {verb} {AT_STAGE.get(kind.stage, '')} by listener {kind.listener}"
        if row.mails > 1:
            text += f"; {row.mails:,} attempts at about this time are combined in this entry"
    else:
        text = f"{who} {sent} it{' again' if number > 1 else ''} to listener {kind.listener}"
    ids = [
        f"our id is {row.id}" if row.id else "",
        f"the mail server's queue id is {row.queue_id}" if row.queue_id else "",
    ]
    named = joined(ids)
    prefix = f"Attempt {number}: " if number else ""
    return f"{prefix}{text}." + (f" {sentence(named)}" if named else "")


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
        checked = f"The lists {joined(_checked(entry, around))} were checked. " if len(around.lists) > 1 else ""
        whose = "personal list of a recipient" if entry.kind.rule in PERSONAL else f"list {entry.kind.list}"
        return f"{checked}The {whose} has a matching entry{which}."
    is_checked = not entry.kind.stage and entry.kind.action != CANCELLED
    if around.lists and is_checked and not entry.kind.rule.startswith(("limits.", "content")):
        names, missing = _checked(entry, around), _unchecked(entry)
        if not names:
            return missing
        several = len(names) > 1
        text = f"The {'lists' if several else 'list'} {joined(names)} {'were' if several else 'was'} checked"
        return f"{text}: no entry matches. {missing}".rstrip()
    return ""


def _checked(entry: MailEntry, around: Surroundings) -> list[str]:
    missing = entry.more.get("unchecked") or ()
    return [name for name in around.lists if name not in missing]


def _unchecked(entry: MailEntry) -> str:
    missing = entry.more.get("unchecked") or ()
    several = len(missing) > 1
    names = f"The {'lists' if several else 'list'} {joined(missing)} {'were' if several else 'was'} not checked"
    return f"{names}: there was no local copy yet." if missing else ""


def _scan(entry: MailEntry, around: Surroundings) -> Iterator[str]:
    row, kind = entry.row, entry.kind
    if row.wait_s >= 0.001:
        yield f"It waited {readable_duration(row.wait_s)} for a free processing slot."
    host = kind.scanner or "the scanner"
    if kind.decision:
        yield _verdict(entry, around, host)
        if not kind.list and (names := lists_of(entry)):
            yield _found_in_lists(entry, names)
        if why := readable_reasons(entry.more.get("reasons")):
            yield f"Reasons for suspicion: {'; '.join(why)}."
    elif kind.error in ERRORS:
        after = f" after {readable_duration(row.scan_s)}" if kind.scanner else ""
        yield f"{capital(host)} gave no decision{after}: {ERRORS[kind.error]}{_why(entry)}."
    elif is_on_its_way(entry) and kind.scanner:
        yield f"{capital(host)} scanned it in {readable_duration(row.scan_s)}."
    elif kind.action == CANCELLED and kind.scanner and entry.more.get("stopped"):
        yield f"{capital(host)} was scanning it when the listener was closed, after {readable_duration(row.scan_s)}."
    elif kind.action == CANCELLED and kind.scanner:
        yield f"{capital(host)} was scanning it when {around.peer} disconnected, after {readable_duration(row.scan_s)}."
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
        text = f"{capital(host)} scanned it in {readable_duration(row.scan_s)}: decision {kind.decision}"
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
    return f"The scanner found a matching entry in the {lists} {joined(shown)}{about}."


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
        taken = acceptances(entry, around, entry.recipients)
        for one in taken:
            named = f" as {one.queue_id}" if one.queue_id else ""
            whose = f" for {named_recipients(one.recipients)}" if len(taken) > 1 else ""
            yield f"{_next_hop(one.hop)} accepted it{whose}{named} after {readable_duration(row.relay_s)}."
    elif unsure:
        if have := recipients_with_mail(entry):
            yield f"{hop} accepted it for {named_recipients(have)}."
        whose = f" for {named_recipients(unsure)}" if len(unsure) < len(entry.recipients) else ""
        why = _why(entry) if kind.error else ""
        yield f"{hop} received all of it, but its answer{whose} did not come in time{why}: it may have accepted it."
    elif kind.error == "next_hop":
        whose = " for all recipients" if recipients_with_mail(entry) else ""
        yield f"{hop} did not accept it{whose}{_why(entry)}."


def _answer(entry: MailEntry, around: Surroundings) -> Iterator[str]:
    row, kind = entry.row, entry.kind
    if kind.action == CANCELLED and entry.more.get("stopped"):
        yield f"The listener was closed, and {around.peer} received no answer for this mail."
    elif kind.action == CANCELLED:
        yield f"{capital(around.peer)} disconnected before it received an answer."
    elif around.is_delivered_in_front and kind.action not in (Action.REJECT, Action.TEMPFAIL):
        yield "The mail server answered its client itself."
    elif row.reply:
        yield f"{capital(around.client)} received: {row.reply}"
    for address, reply in (entry.more.get("replies") or {}).items():
        yield f"For {in_brackets(address)}, {around.client} received: {reply}"


def _next_hop(name: str) -> str:
    return f"The next hop {name}" if name else "The next hop"
