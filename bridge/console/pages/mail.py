"""Mail: the search of `scanbridge history`, and the story of one mail."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from bridge.console.call import Call
from bridge.console.pages.held_mail import UNREADABLE
from bridge.console.search import DECISIONS, Search, reader_zone
from bridge.console.tenant_history import TenantHistory
from bridge.explain.kept import kept
from bridge.explain.surroundings import surroundings
from bridge.history.entry import MailEntry
from bridge.history.hidden_addresses import HiddenAddresses
from bridge.history.mails import Mail, gather, whole
from bridge.history.next_commands import with_file
from bridge.history.parameters import FILTERS, value_of
from bridge.history.query import ACTIONS, STAGES, client_address, may_be_address, pasted_key
from bridge.history.store import Found
from bridge.history.story import tell
from bridge.history.story_context import GONE, NOT_HERE, UNKNOWN, Kept
from bridge.quarantine.record import MailRecord
from bridge.quarantine.store import MailNotFound

PER_PAGE = 50
_SEARCH_S = 0.1  # a search goes back as far as it can in this time; the page offers to continue
FIELDS = (
    *("what", "recipient", "sender", "subject", "action", "since", "until", "client", "tag", "decision", "rule"),
    *("stage", "tenant", "listener"),
)
_VISIBLE = 7  # of these fields


async def search(call: Call) -> Response:
    asked = read(call.request.query_params)
    call.audit_detail = ", ".join(f"{name}: {value}" for name, value in asked.typed.items() if value)
    looked = Found([])
    if not asked.mistakes:
        try:
            looked = await call.run(_find, call.history, HiddenAddresses(call.sources.redaction), asked)
        except ValueError as exc:
            asked.mistakes["sender" if asked.typed["sender"] else "recipient"] = str(exc)
    more, found = len(looked.entries) > PER_PAGE, looked.entries[:PER_PAGE]
    oldest = await call.run(call.history.oldest) if not found and not asked.mistakes else None
    values = {"asked": asked, "mails": found, "oldest": oldest, "back_to": None if more else looked.back_to}
    cursor = found[-1].cursor if more else looked.cursor
    values["next"] = _next(call, asked, cursor) if cursor else ""
    choices = {"actions": ACTIONS, "decisions": DECISIONS, "stages": STAGES}
    choices["listeners"] = tuple(listener.name for listener in call.sources.config.listeners)
    choices["tenants"] = tuple(t.uid for t in call.sources.config.tenants if call.person.may_see(t.uid))
    return call.page("mail.html", 400 if asked.mistakes else 200, **values, **choices)


async def story(call: Call) -> Response:
    mail = await call.run(_whole, call)
    mail = mail if call.person.sees_everything else _for_tenant(mail)
    found, told = await call.run(_told, call, mail)
    is_held = found is not None and found.state not in (GONE, NOT_HERE, UNKNOWN)
    return call.page("mail_story.html", mail=mail, entry=mail.last, story=told, is_held=is_held)


def read(given: Mapping[str, str]) -> Search:
    """From the query string."""
    asked = Search({name: given.get(name, "").strip() for name in FIELDS}, _VISIBLE, given.get("before", ""))
    asked.interpret(lambda name, text: value_of(name, text, FILTERS[name]), reader_zone(given.get("zone", "")))
    return asked


def _find(history: TenantHistory, hidden: HiddenAddresses, asked: Search) -> Found:
    """By key first; what is not a key may be an address, including a client's. Raises ValueError."""
    wanted, page = dict(asked.wanted), {"before": asked.before, "limit": PER_PAGE + 1}
    key = pasted_key(wanted.pop("what", ""))
    if not key:
        return history.find_within(hidden.query(wanted, **page), _SEARCH_S)
    by_key, began = Found([]), time.monotonic()
    if spellings := list(map(hidden.key, hidden.spellings(key))):
        query = hidden.query(wanted, what=spellings[0], **page)
        by_key = history.find_within(replace(query, spellings=tuple(spellings[1:])), _SEARCH_S)
    if by_key.entries or not may_be_address(key):
        return by_key
    left_s = began + _SEARCH_S - time.monotonic()
    client = client_address(key) if "client" not in wanted else ""
    meant = {"client": client} if client else {"address": key.strip("<>")}
    by_address = history.find_within(hidden.query({**wanted, **meant}, **page), left_s)
    return _as_far(by_key, by_address)


def _as_far(one: Found, other: Found) -> Found:
    """What the second of two searches has found, only as far back as both of them have searched."""
    back_to = max((found.back_to for found in (one, other) if found.back_to is not None), default=None)
    entries = [entry for entry in other.entries if back_to is None or entry.row.at >= back_to]
    return Found(entries, back_to)


def _next(call: Call, asked: Search, cursor: str) -> str:
    """The page after this one."""
    return call.renderer.url("/mail", **asked.for_next_page(asked.typed), before=cursor)


def _whole(call: Call) -> Mail:
    own = gather(call.mails)[0]
    return whole(call.history, own)


def _told(call: Call, mail: Mail) -> tuple[Kept | None, Any]:
    sources = call.sources

    def record(mail_id: str) -> MailRecord:
        found = sources.held(mail_id, call.tenants)
        if found is None:
            raise MailNotFound(mail_id)
        return found

    found = kept(sources.config, sources.redaction, mail.last, mail.later, record, sources.is_shared)
    scores = sources.tag_scores if mail.last.tags else {}
    around = surroundings(sources.config, mail.last, scores)
    if call.person.sees_everything:
        story = tell(mail, around, found)
        path = sources.path.absolute() if sources.path else None
        return found, replace(story, commands=tuple(with_file(command, path) for command in story.commands))
    found = replace(found, problem=UNREADABLE) if found is not None and found.problem else found
    return found, replace(tell(mail, replace(around, next_hop="", next_hops={}), found), commands=())


def _for_tenant(mail: Mail) -> Mail:
    """For people of named tenants: without machines, and without the entries of lists that they may not see."""
    attempts, before, *others = (
        tuple(map(_entry_for_tenant, some)) for some in (mail.attempts, mail.before, *mail.others)
    )
    later = tuple(event.without_internals() for event in mail.later)
    return replace(mail, attempts=attempts, others=tuple(others), before=before, later=later)


def _entry_for_tenant(entry: MailEntry) -> MailEntry:
    kind = entry.kind._replace(scanner="the scanner" if entry.kind.scanner else "")
    return replace(entry.without_internals(), kind=kind)
