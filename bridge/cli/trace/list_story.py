"""What each list says about a mail that is traced, and from which local copy.

Every list that the filter has looked into is asked once more, alone, by the same code (`EnvelopeLists`): the filter
itself stops at the first match.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from bridge.cli.trace.run import Run, Setup
from bridge.filter.envelope_lists import EnvelopeLists, EnvelopeListsSettings
from bridge.lists.copies import Copy, Wanted
from bridge.mail.list_match import ListMatch
from bridge.mail.session import Session
from bridge.runtime.counted import counted, spoken

Told = tuple[str, dict[str, Any]]


def told(setup: Setup, done: Run) -> Iterator[Told]:
    lists = setup.listener.lists
    if lists is None or setup.config.lists is None or not lists.names:
        yield "The listener enforces no lists before the scan.", {"list": None}
        return
    if not done.records:
        yield "No list was checked.", {"list": None}
        return
    session = done.records[0].tx.session
    for (name, tenant), copy in done.copies.asked.items():
        for role in ("block", "block_recipients", "skip_scan"):
            if name in getattr(lists, role):
                yield _told(setup, session, (name, tenant, copy), role)


def _told(setup: Setup, session: Session, asked: tuple[str, str | None, Copy | None], role: str) -> Told:
    name, tenant, copy = asked
    scope = f"of tenant {tenant}" if tenant else "of the deployment"
    facts: dict[str, Any] = {"list": name, "tenant": tenant, "role": role}
    if copy is None and (problem := _unreadable(setup, name, tenant)):
        text = f"The local copy of list {name} {scope} ({role}) cannot be read here: {problem}."
        return text, {**facts, "entries": None, "age_s": None, "entry": None, "problem": problem}
    if copy is None:
        lacks = setup.config.lists.without_copy if setup.config.lists else ""
        defers = lacks == "tempfail" and role != "skip_scan"  # without one of those, mail is scanned
        effect = "mail that it applies to is deferred" if defers else "it is not enforced"
        text = f"List {name} {scope} ({role}) has no local copy, so {effect} (lists.without_copy: {lacks})."
        return text, {**facts, "entries": None, "age_s": None, "entry": None}
    found = _match(setup, session, asked, role)
    age_s = copy.age_s if math.isfinite(copy.age_s) else None
    entries = copy.table.about.count
    facts |= {"entries": entries, "age_s": age_s, "entry": found.entry if found else None}
    meaning = "the mail is not scanned" if role == "skip_scan" else "it is refused"
    says = f"entry {found.entry} matches: {meaning}" if found else "no entry matches"
    return f"List {name} {scope} ({role}; {counted(entries, 'entry', 'entries')}, {_age(age_s)}): {says}.", facts


def _unreadable(setup: Setup, name: str, tenant: str | None) -> str:
    """Why; empty if there is no such file. The daemon may run as another user, who can read it."""
    try:
        (setup.state / "lists" / Wanted(name, tenant).file_name).open("rb").close()
    except FileNotFoundError:
        return ""
    except OSError as exc:
        return exc.strerror or type(exc).__name__
    return "it is damaged"


def _age(seconds: float | None) -> str:
    return "local copy of unknown age" if seconds is None else f"local copy {spoken(seconds)} old"


def _match(setup: Setup, session: Session, asked: tuple[str, str | None, Copy | None], role: str) -> ListMatch | None:
    name, tenant, copy = asked
    settings = EnvelopeListsSettings(
        block=(name,) if role == "block" else (),
        block_recipients=(name,) if role == "block_recipients" else (),
        skip_scan=(name,) if role == "skip_scan" else (),
    )
    alone = EnvelopeLists(settings, lambda _, scope: copy if scope == tenant else None)
    sender = setup.given.sender
    match role:
        case "block":
            return alone.blocked(session, sender, tenant)
        case "skip_scan":
            return alone.allowed(session, sender, tenant)
        case _:
            matches = (alone.blocked_recipient(address, tenant) for address in setup.given.recipients)
            return next(filter(None, matches), None)
