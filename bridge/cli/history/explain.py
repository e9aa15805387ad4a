"""`scanbridge explain`: what happened to a mail, in sentences that can be forwarded."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bridge.cli.config_option import config_option
from bridge.cli.history.filters import with_filters
from bridge.cli.single_values import Command
from bridge.cli.terminal import say, say_json, width
from bridge.runtime.visible_text import visible

if TYPE_CHECKING:
    from bridge.cli.history.absence import Absence
    from bridge.cli.history.search import Question
    from bridge.cli.history.session import HistorySession
    from bridge.history.mails import Mail
    from bridge.history.story import Story

_LISTED = 50  # entries that are read; the stories of a few of them are told
_INDENT = "  "
_TIME_WIDTH = len("2026-11-16 10:30:01")


@click.command(cls=Command)
@config_option
@click.argument("what", required=False, default="")
@lambda command: with_filters(command, brief=True)
@click.option(
    "--limit",
    type=click.IntRange(1, _LISTED),
    default=3,
    show_default=True,
    help="Maximum number of mails to explain.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def explain(path: Path | None, what: str, wanted: dict[str, Any], limit: int, as_json: bool) -> None:
    """Explain what happened to a mail.

    WHAT is the bridge's id for the mail or the session, the mail's queue id on the mail server in front of the bridge
    or behind it, a Message-ID, a ggrid, the address or domain of the sender or a recipient, or the client's IP address.
    A search for an address covers the mail since yesterday, unless --since is given. The options narrow the search;
    they can also be used without WHAT.

    Exit code 0: found. 3: not found; the output then shows what was recorded in the period searched, and what is
    never recorded.
    """
    from bridge.cli.history.search import ask
    from bridge.cli.history.session import EXIT_NOT_FOUND, HistorySession

    if not what and not wanted:
        raise click.UsageError("no mail was named: give an id, a queue id, a Message-ID, a ggrid or an address")
    session = HistorySession.open(path)
    question = ask(session, what, wanted, _LISTED)
    if question.found:
        _tell_all(session, question, limit, as_json)
        return
    from bridge.cli.history.absence import prove

    absence = prove(session, question)
    if as_json:
        say_json({"what": question.what, "matches": 0, "mails": [], "absence": absence.to_dict()}, indent=2)
    else:
        _say_absence(session, question, absence)
    sys.exit(EXIT_NOT_FOUND)


def _tell_all(session: HistorySession, question: Question, limit: int, as_json: bool) -> None:
    from bridge.history.mails import gather

    mails = gather(question.found)
    told = [(mail, *_story(session, mail)) for mail in _whole(session, mails, limit)]
    if as_json:
        say_json(_as_json(question, mails, told), indent=2)
        return
    if len(mails) > 1:
        _say_list(session, question, mails, limit)
    for number, (_, story, _) in enumerate(told, 1):
        if number > 1 or len(mails) > 1:
            say()
        _say_story(session, story, f"{number}. " if len(mails) > 1 else "")
    _say_hidden(session, question)


def _whole(session: HistorySession, mails: list[Mail], limit: int) -> list[Mail]:
    """The newest, each with all its attempts. Removes from `mails` those that prove to be attempts of a newer one."""
    from bridge.history.mails import identity, whole

    made: list[Mail] = []
    while len(made) < min(limit, len(mails)):
        mail = session.read(lambda: whole(session.store, mails[len(made)]))
        known = set(map(identity, mail.attempts))
        mails[len(made) + 1 :] = [other for other in mails[len(made) + 1 :] if identity(other.last) not in known]
        made.append(mail)
    return made


def _story(session: HistorySession, mail: Mail) -> tuple[Story, dict[str, Any] | None]:
    from dataclasses import asdict
    from datetime import UTC, datetime

    from bridge.cli.history.kept import kept
    from bridge.cli.quarantine.scores import default_scores
    from bridge.explain.surroundings import surroundings
    from bridge.history.story import tell

    found = kept(session, mail)
    shown = None if found is None else asdict(found)
    if shown and shown["until"] is not None:
        shown["until"] = datetime.fromtimestamp(shown["until"], UTC).isoformat(timespec="seconds")
    scores = default_scores() if mail.last.tags else {}
    return tell(mail, surroundings(session.config, mail.last, scores), found), shown


def _as_json(question: Question, mails: list[Mail], told: list[tuple[Mail, Story, Any]]) -> dict[str, Any]:
    return {
        "what": question.what,
        "matches": len(mails),
        "more_matches": question.is_cut,
        "mails": [
            {
                **story.to_dict(),
                "attempts": [entry.to_dict() for entry in mail.attempts],
                "later": [event.to_dict() for event in mail.later],
                "quarantine": kept,
            }
            for mail, story, kept in told
        ],
        "others": [mail.last.to_dict() for mail in mails[len(told) :]],
    }


# Text


def _say_list(session: HistorySession, question: Question, mails: list[Mail], limit: int) -> None:
    from bridge.cli.mail_table import first_of
    from bridge.cli.table import cut

    more = " (and older ones: narrow the search, or use `scanbridge history`)" if question.is_cut else ""
    say(f"{len(mails)} mails match{_asked(question)}, newest first{more}:")
    for number, mail in enumerate(mails, 1):
        row, kind = mail.last.row, mail.last.kind
        subject = f' "{row.subject}"' if row.subject else ""
        line = f"{number:3}  {_time(row.at)}  {row.id or '-':19}  {kind.action:10}  "
        line += f"<{row.sender}> to {first_of(mail.last.recipients) or '-'}{subject}"
        say(line if (columns := width()) is None else cut(visible(line), columns))
    if len(mails) > limit:
        told = "one is" if limit == 1 else f"{limit} are"
        say(f"The newest {told} explained below; for any other, run `{session.command('explain')} ID`.")


def _asked(question: Question) -> str:
    words = f" {question.what}" if question.what else ""
    return f"{words} since {_time(question.wanted['since'])}" if "since" in question.wanted else words


def _say_story(session: HistorySession, story: Story, number: str) -> None:
    from bridge.cli.history.session import with_configuration

    _say_wrapped(f"{number}{story.fate}.", "")
    for step in story.steps:
        when = _time(step.at) if step.at is not None else ""
        _say_wrapped(f"{_INDENT}{when:{_TIME_WIDTH}}  {step.text}", " " * (_TIME_WIDTH + 4))
    _say_wrapped(f"{_INDENT}{'Where it is now':{_TIME_WIDTH}}  {story.now}", " " * (_TIME_WIDTH + 4))
    for place, command in enumerate(story.commands):
        label = "Next" if place == 0 else ""
        say(f"{_INDENT}{label:{_TIME_WIDTH}}  {with_configuration(command, session.path)}")


def _say_hidden(session: HistorySession, question: Question) -> None:
    if session.redaction.mode == "domain" and (question.is_address or {"sender", "recipient"} & set(question.wanted)):
        say("log.addresses is domain: these are the mails of everyone in that domain.", err=True)


def _say_absence(session: HistorySession, question: Question, absence: Absence) -> None:
    named = ", ".join(filter(None, [question.what, *(f"{name} {value}" for name, value in _options(question))]))
    until = "now" if time.time() - absence.until < 60 else _time(absence.until)
    period = f" between {_time(absence.since)} and {until}" if absence.since else ""
    if absence.is_in_quarantine:
        say(f"{named} is in the quarantine, but the history has no record of it{period}.")
    else:
        say(f"No mail was found for {named}{period}: as far back as the history goes, the bridge has not seen it.")
    say()
    say("What the history contains:")
    for line in _evidence(session, absence, question):
        _say_wrapped(f"{_INDENT}- {line}", _INDENT * 2)
    say()
    say("What the history does not contain:")
    for line in absence.missing:
        _say_wrapped(f"{_INDENT}- {line}", _INDENT * 2)
    say()
    for place, command in enumerate(absence.commands):
        say(f"{'Next:' if place == 0 else '':6}{command}")


def _options(question: Question) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in question.wanted.items() if name not in ("since", "until"))


def _evidence(session: HistorySession, absence: Absence, question: Question) -> Iterator[str]:
    from bridge.cli.history.absence import in_words
    from bridge.history.query import OUR_ID_LENGTH, is_like_our_id, made_at
    from bridge.runtime.counted import counted

    made = made_at(question.what)
    if made is not None:
        when = _time(made)
        yield f"{question.what} is an id that the bridge created at {when}; the search covered the time around it."
    elif is_like_our_id(question.what):
        length = len(question.what)
        yield f"The bridge's ids have {OUR_ID_LENGTH} characters, but this one has {length}: copy the id again."
    elif question.what and not question.is_address:
        yield (
            f"{question.what} was looked for as an id: give an address or a domain in full, and words of the subject "
            "with --subject."
        )
    if absence.oldest is None:
        yield f"Nothing: no mail is recorded in {session.place}."
    else:
        late = ", later than the start of the period searched" if absence.oldest > absence.since > 0 else ""
        yield f"It starts at {_time(absence.oldest)}{late}."
        yield _numbers(absence)
    for trace in absence.traces:
        newest = f"; the newest: {', '.join(map(_brief, trace.newest))}" if trace.newest else ""
        yield f"{trace.what[:1].upper()}{trace.what[1:]}: {trace.count}{newest}."
    if absence.nameless:
        refusals = counted(absence.nameless, "refusal")
        verb = "was" if absence.nameless == 1 else "were"
        yield f"{refusals} from that time {verb} recorded without the sender and counted per client."
    if absence.lost is None:
        yield "Whether all mails were recorded is unknown, because the daemon does not answer at its admin address."
    elif absence.lost:
        yield f"Since the daemon started, {in_words(absence.lost)} could not be recorded."
    elif not absence.replaced:
        yield "Since the daemon started, every mail has been recorded."
    if absence.replaced:
        workers = counted(absence.replaced, "worker")
        missing = "mails from the last second of each may be missing"
        yield f"Since the daemon started, {workers} had to be replaced: {missing}."


def _numbers(absence: Absence) -> str:
    from bridge.cli.history.absence import in_words

    when = "For that time, it contains" if absence.since else "It contains"
    if absence.by_action is None:
        return f"{when} too many mails to count within the time limit."
    total = sum(absence.by_action.values())
    parts = ", ".join(f"{count:,} {action}" for action, count in absence.by_action.items())
    return f"{when} {in_words(total)}: {parts}." if parts else f"{when} no mails."


def _brief(entry: Any) -> str:
    return f"{entry.row.id or entry.row.client} at {_time(entry.row.at)} ({entry.kind.action})"


def _say_wrapped(text: str, indent: str) -> None:
    """On a terminal, lines are broken between words; in a pipe, they are not."""
    import textwrap

    columns = width()
    if columns is None or columns < 60:
        say(text)
        return
    for line in textwrap.wrap(
        visible(text), columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    ):
        say(line)


def _time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
