"""Mail: the search of `scanbridge history`, and the story of one mail."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from starlette.responses import Response

from bridge.console.call import Call
from bridge.console.tenant_history import TenantHistory
from bridge.explain.kept import kept
from bridge.explain.surroundings import surroundings
from bridge.history.entry import MailEntry
from bridge.history.hidden import HiddenAddresses
from bridge.history.mails import Mail, gather, whole
from bridge.history.parameters import FILTERS, PAGE, value_of
from bridge.history.query import ACTIONS, STAGES, may_be_address, pasted_key
from bridge.history.story import GONE, NOT_HERE, UNKNOWN, Kept, tell
from bridge.quarantine.record import MailRecord
from bridge.quarantine.store import MailNotFound
from bridge.runtime import moments

PER_PAGE = 50
DECISIONS = ("deliver", "quarantine", "bounce", "drop", "undecided")
FIELDS = (
    *("what", "recipient", "sender", "subject", "action", "since", "until", "client", "tag", "decision", "rule"),
    *("stage", "tenant", "listener"),
)
_ZONE = re.compile(r"[A-Za-z0-9_+/-]{1,64}")


@dataclass(frozen=True, slots=True)
class Search:
    """What was typed, what it means, and what is wrong with it."""

    typed: Mapping[str, str]
    wanted: dict[str, Any] = field(default_factory=dict)
    mistakes: dict[str, str] = field(default_factory=dict)
    before: str = ""

    @property
    def has_more_fields(self) -> bool:
        """Whether one of the fields that are folded away is used."""
        return any(self.typed[name] for name in FIELDS[7:])


async def search(call: Call) -> Response:
    asked = read(call.request.query_params)
    call.audit_detail = ", ".join(f"{name}: {value}" for name, value in asked.typed.items() if value)
    found: list[MailEntry] = []
    if not asked.mistakes:
        try:
            found = await call.run(_find, call.history, HiddenAddresses(call.sources.redaction), asked)
        except ValueError as exc:
            asked.mistakes["sender" if asked.typed["sender"] else "recipient"] = str(exc)
    more, found = len(found) > PER_PAGE, found[:PER_PAGE]
    oldest = await call.run(call.history.oldest) if not found and not asked.mistakes else None
    values = {"asked": asked, "mails": found, "oldest": oldest, "next": _next(call, asked, found) if more else ""}
    choices = {"actions": ACTIONS, "decisions": DECISIONS, "stages": STAGES}
    choices["listeners"] = tuple(listener.name for listener in call.sources.config.listeners)
    choices["tenants"] = tuple(t.uid for t in call.sources.config.tenants if call.person.may_see(t.uid))
    return call.page("mail.html", 400 if asked.mistakes else 200, **values, **choices)


async def story(call: Call) -> Response:
    mail = await call.run(_whole, call)
    found, told = await call.run(_told, call, mail)
    is_held = found is not None and found.state not in (GONE, NOT_HERE, UNKNOWN)
    return call.page("mail_story.html", mail=mail, entry=mail.last, story=told, is_held=is_held)


def read(given: Mapping[str, str]) -> Search:
    """From the query string. A mistake is kept with its field, so that the page can show both."""
    typed = {name: given.get(name, "").strip() for name in FIELDS}
    zone = reader_zone(given.get("zone", ""))
    asked = Search(typed, before=given.get("before", ""))
    for name, text in typed.items():
        if not text:
            continue
        try:
            if name in ("since", "until"):
                asked.wanted[name] = moments.parse(text[:100], zone=zone)
            else:
                asked.wanted[name] = value_of(name, text, FILTERS[name])
        except ValueError as exc:
            asked.mistakes[name] = str(exc)
    try:
        if asked.before:
            value_of("before", asked.before, PAGE["before"])
    except ValueError:
        asked.mistakes["before"] = "the link to this page is damaged; search again"
    return asked


def reader_zone(name: str) -> tzinfo:
    """The reader's time zone; a script fills it in."""
    try:
        return ZoneInfo(name) if _ZONE.fullmatch(name) else UTC
    except (ValueError, OSError, KeyError):
        return UTC


def _find(history: TenantHistory, hidden: HiddenAddresses, asked: Search) -> list[MailEntry]:
    """By key first; what is no key may be an address. Raises ValueError."""
    wanted, page = dict(asked.wanted), {"before": asked.before, "limit": PER_PAGE + 1}
    key = pasted_key(wanted.pop("what", ""))
    if not key:
        return history.find(hidden.query(wanted, **page))
    for spelling in hidden.spellings(key):
        if found := history.find(hidden.query(wanted, what=hidden.key(spelling), **page)):
            return found
    if not may_be_address(key):
        return []
    return history.find(hidden.query({**wanted, "address": key.strip("<>")}, **page))


def _next(call: Call, asked: Search, found: list[MailEntry]) -> str:
    """The page after this one. Moments are written out: `2h` means something else by then."""
    typed = dict(asked.typed)
    for name in ("since", "until"):
        if name in asked.wanted:
            typed[name] = datetime.fromtimestamp(asked.wanted[name], UTC).isoformat()
    return call.renderer.url("/mail", **typed, before=found[-1].cursor)


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
    return found, tell(mail, surroundings(sources.config, mail.last, scores), found)
