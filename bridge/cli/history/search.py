"""From what an operator types to the mails that are meant: a key, an address, or options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bridge.cli.history.session import HistorySession
from bridge.history.entry import MailEntry
from bridge.history.query import client_address, may_be_address, pasted_key
from bridge.runtime.moments import parse

DEFAULT_SINCE = "yesterday"  # since midnight: yesterday and today


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked for, and the mails that were found."""

    what: str  # "" if only options were given
    wanted: dict[str, Any]  # options; always includes `since` if the search was for an address
    found: list[MailEntry]
    is_address: bool  # `what` was taken for an address or a domain
    is_cut: bool = False  # there are more


def ask(session: HistorySession, what: str, wanted: dict[str, Any], limit: int) -> Question:
    """By key first, over all time unless a period is given; otherwise by address or client, since yesterday."""
    key = pasted_key(what)
    for spelling in session.hidden.spellings(key):
        query = session.query(wanted, what=session.hidden.key(spelling), limit=limit + 1)
        found = session.read(lambda query=query: session.store.find(query))  # type: ignore[misc]
        if found:
            return Question(key, wanted, found[:limit], False, len(found) > limit)
    timed = wanted if "since" in wanted else {**wanted, "since": parse(DEFAULT_SINCE)}
    if "client" not in wanted and (client := client_address(key)):
        key, timed = "", {**timed, "client": client}
    is_address = not key or may_be_address(key)
    if not is_address:
        return Question(key, wanted, [], False)
    address = {"address": key.strip("<>")} if key else {}
    query = session.query({**timed, **address}, limit=limit + 1)
    found = session.read(lambda: session.store.find(query))
    return Question(key, timed, found[:limit], bool(key), len(found) > limit)
