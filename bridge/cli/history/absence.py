"""A mail that is not in the history: what the history contains from that time, and what it never contains.

"We never saw it" is a strong statement, so the evidence is shown with it: how far back the history reaches, whether
rows were lost, and what else arrived from that client, sender and domain.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bridge.cli.history.kept import is_kept
from bridge.cli.history.search import Question
from bridge.cli.history.session import HistorySession
from bridge.daemon.history_place import has_server, older_history
from bridge.history.entry import MailEntry
from bridge.history.next_commands import in_mail_log
from bridge.history.query import made_at
from bridge.history.store import HistoryError
from bridge.mail.address import domain_of
from bridge.observe.admin_client import get
from bridge.runtime.counted import counted

_LOST = re.compile(rb'^scanbridge_history_total\{result="(?:overflow|failed)"\} ([0-9.e+]+)', re.MULTILINE)
_REPLACED = re.compile(rb"^scanbridge_worker_restarts_total ([0-9.e+]+)", re.MULTILINE)
_NEAR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Trace:
    """What is recorded about one sender, recipient or client."""

    what: str  # in words
    mails: int | None  # None: they could not be counted in time
    newest: list[MailEntry]

    @property
    def count(self) -> str:
        return "many mails" if self.mails is None else in_words(self.mails)


@dataclass(frozen=True, slots=True)
class Absence:
    since: float
    until: float
    oldest: float | None
    by_action: dict[str, int] | None  # of all mails from that time; None: they could not be counted in time
    traces: list[Trace]
    nameless: int  # refusals from that time that were added up without a sender
    lost: int | None  # mails that could not be recorded since the daemon started; None: it does not answer
    replaced: int  # workers that ended unexpectedly since then: what they had not yet written is not counted as lost
    missing: list[str]  # what the history does not contain
    commands: list[str]
    is_in_quarantine: bool = False  # the mail with this id: it is older than the history, or was not recorded

    def to_dict(self) -> dict[str, Any]:
        return {
            "since": _iso(self.since),
            "until": _iso(self.until),
            "history_begins": None if self.oldest is None else _iso(self.oldest),
            "mails_of_that_time": self.by_action,
            "around": [
                {"what": trace.what, "mails": trace.mails, "newest": [entry.to_dict() for entry in trace.newest]}
                for trace in self.traces
            ],
            "refusals_without_sender": self.nameless,
            "mails_not_recorded": self.lost,
            "would_not_be_there": self.missing,
            "is_in_quarantine": self.is_in_quarantine,
            "next": self.commands,
        }


def prove(session: HistorySession, question: Question) -> Absence:
    since, until = _period(question)
    wanted = {"since": since, "until": until}
    oldest = session.read(session.store.oldest)
    is_in_quarantine = made_at(question.what) is not None and is_kept(session, question.what.upper())
    return Absence(
        since,
        until,
        oldest,
        _count(session, wanted),
        [] if oldest is None else list(_traces(session, question, wanted)),
        _nameless(session, wanted),
        *_lost_and_replaced(session),
        list(_missing(session, question)),
        list(_commands(session, question, since, is_in_quarantine)),
        is_in_quarantine,
    )


def _period(question: Question) -> tuple[float, float]:
    """The period searched; for one of our ids, an hour before and after the time at which it was created."""
    now = time.time()
    if "since" not in question.wanted and (made := made_at(question.what)) is not None:
        return made - _NEAR_S, min(made + _NEAR_S, now)
    return question.wanted.get("since", 0.0), question.wanted.get("until", now)


def _count(session: HistorySession, wanted: dict[str, Any]) -> dict[str, int] | None:
    query = session.query(wanted)
    try:
        return {total.label: total.mails for total in session.store.count("action", query)}
    except HistoryError:  # counting millions of mails may take too long; the answer does not depend on it
        return None


def _traces(session: HistorySession, question: Question, period: dict[str, Any]) -> Iterator[Trace]:
    for words, wanted in _relatives(session, question):
        yield _trace(session, f"{words} during that time", {**wanted, **period})
        if words.startswith(("from <", "to <")):
            yield _trace(session, f"{words} in the whole history", wanted)


def _trace(session: HistorySession, words: str, wanted: dict[str, Any]) -> Trace:
    query = session.query(wanted, limit=3)
    numbers = _count(session, wanted)
    total = None if numbers is None else sum(numbers.values())
    return Trace(words, total, session.read(lambda: session.store.find(query)))


def _relatives(session: HistorySession, question: Question) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each address, domain and client that the question names, separately."""
    named: dict[str, str] = {}
    if question.is_address:
        named = {"sender": question.what, "recipient": question.what}
    named |= {name: question.wanted[name] for name in ("sender", "recipient") if name in question.wanted}
    for name, address in named.items():
        way = "from" if name == "sender" else "to"
        is_whole = "@" in address.strip("@<>")
        yield f"{way} <{address.strip('<>')}>" if is_whole else f"{way} {address}", {name: address}
        domain = domain_of(address) if is_whole else ""
        if domain and session.redaction.mode == "full":
            yield f"{way} the domain {domain}", {name: domain}
    if "client" in question.wanted:
        yield f"from the client {question.wanted['client']}", {"client": question.wanted["client"]}


def _nameless(session: HistorySession, period: dict[str, Any]) -> int:
    total = 0
    for stage in ("connect", "mail"):
        query = session.query(period, stage=stage, sender="", limit=10_000)
        entries = session.read(lambda query=query: session.store.find(query))  # type: ignore[misc]
        total += sum(entry.row.mails for entry in entries)
    return total


def _lost_and_replaced(session: HistorySession) -> tuple[int | None, int]:
    page = get(session.config.admin.address, "/metrics", 2.0)
    if page is None or b"scanbridge_history_total" not in page:
        return None, 0
    lost, replaced = (int(sum(map(float, pattern.findall(page)))) for pattern in (_LOST, _REPLACED))
    return lost, replaced


def _missing(session: HistorySession, question: Question) -> Iterator[str]:
    conf = session.config
    if not conf.history.enabled:
        yield "mail that arrives now: history.enabled is false, so nothing is recorded"
    yield "mail that the mail server in front of the bridge refused, or still has in its queue: see its log"
    yield "mail that has not been sent yet, or is still on its way"
    yield (
        "mail with another envelope sender: mailing lists, forwarders and newsletters use their own, "
        "not the address in the From line"
    )
    if not has_server(conf):
        yield "mail that another machine handled: each machine has its own history, unless they share a state_database"
    if older := older_history(conf, session.state):
        yield f"mail from before state_database was set, or before the daemon was restarted with it: see {older}"
    days = f"{conf.history.retention / 86400:g} days"
    yield f"mail older than history.retention ({days}), or deleted earlier because of history.max_size"
    yield "mail from the last second before the bridge, or one of its workers, was killed"
    yield (
        "the sender of each refusal, if more than 50 mails a second are refused before their content is sent: "
        "further refusals are counted per client"
    )
    yield (
        "individual recipients that were refused because their address is invalid, because the mail had too many "
        "recipients, or because they belong to another tenant"
    )
    if session.redaction.mode == "domain":
        yield "full addresses: because log.addresses is `domain`, only their domains are recorded"
    if session.redaction.mode == "hashed":
        yield "addresses that were recorded before the key for log.addresses was changed"


def _commands(session: HistorySession, question: Question, since: float, is_in_quarantine: bool) -> Iterator[str]:
    if is_in_quarantine:
        yield session.command("quarantine", "show", question.what.upper())
    named = question.what or question.wanted.get("sender") or question.wanted.get("recipient")
    if named and named != "<>":
        yield from in_mail_log(named)
    begin = time.strftime("%Y-%m-%d %H:%M", time.localtime(since)) if since else "30d"
    yield session.command("history", "--since", begin)
    if question.is_address and (domain := domain_of(question.what)) and session.redaction.mode == "full":
        yield session.command("history", "--sender", domain, "--since", begin)


def in_words(mails: int) -> str:
    return counted(mails, "mail")


def _iso(moment: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
