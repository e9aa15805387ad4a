"""New mails of the history as they arrive.

Each process writes its mails in batches, so a mail may appear after one that was finished later: the last seconds are
read again each time, and what was there before is remembered. A mail that is written later than that, because the
database was unavailable, is not shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from bridge.cli.history.session import HistorySession
from bridge.cli.terminal import say
from bridge.history.entry import MailEntry
from bridge.history.mails import identity
from bridge.history.query import HistoryQuery
from bridge.history.store import HistoryError

POLL_S = 1.0
_OVERLAP_S = 15.0


def new_mails(session: HistorySession, query: HistoryQuery) -> Iterator[list[MailEntry]]:
    """First the latest mails that are already there, then new ones; each time oldest first. Never ends."""
    store = session.store
    latest = session.read(lambda: store.find(query))[::-1] if query.limit else []
    recent = session.read(lambda: store.find(_window(query)))
    shown = {identity(entry): entry.row.at for entry in (*latest, *recent)}
    yield latest
    is_away = False
    while True:
        time.sleep(POLL_S)
        wanted = _window(query)
        try:
            found = store.find(wanted)[::-1]
        except HistoryError as exc:
            if not is_away:
                say(f"the history cannot be read, trying again: {exc}", err=True)
            is_away = True
            continue
        is_away = False
        new = [entry for entry in found if identity(entry) not in shown]
        oldest = wanted.since or 0.0
        shown = {known: at for known, at in shown.items() if at >= oldest}
        shown |= {identity(entry): entry.row.at for entry in new}
        if new:
            yield new


def _window(query: HistoryQuery) -> HistoryQuery:
    return replace(query, since=max(time.time() - _OVERLAP_S, query.since or 0.0), limit=0)
