"""The answers: from a query to the JSON that is sent.

Called by `searcher`, never by the daemon itself. A page ends early if it becomes large: a thousand mails with a
thousand recipients each would be a quarter of a gigabyte.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bridge.daemon.http_api.failures import ApiError
from bridge.errors import StoreError
from bridge.history.entry import MailEntry
from bridge.history.mails import recipients_of, share_recipients
from bridge.history.query import By, HistoryQuery
from bridge.history.store import HistoryError, HistoryStore
from bridge.quarantine import record
from bridge.quarantine.local_store import LocalStore
from bridge.quarantine.store import MailNotFound

DEFAULT_SPAN_S = 86_400.0  # for statistics without `since`
_CHUNK = 200  # mails read at a time
MAX_PAGE_BYTES = 8 * 1024 * 1024
_MAX_ATTEMPTS = 200

Tenants = frozenset[str] | None  # whose mail may be seen; None: all mail


def page(store: HistoryStore, query: HistoryQuery) -> bytes:
    """One page of mails, the newest first, and the cursor of the next one."""
    shown: list[bytes] = []
    size, last, more = 0, "", True
    while more and len(shown) < query.limit and size < MAX_PAGE_BYTES:
        wanted = min(_CHUNK, query.limit - len(shown))
        found = store.find(replace(query, before=last or query.before, limit=wanted + 1))
        more = len(found) > wanted
        for entry in found[:wanted]:
            shown.append(_encoded(_shown(entry, query.tenants)))
            size, last = size + len(shown[-1]), entry.cursor
            if size >= MAX_PAGE_BYTES:
                more = more or entry is not found[-1]
                break
    return b'{"mails":[%b],"next":%b}' % (b",".join(shown), _encoded(last if more else None))


def story(store: HistoryStore, mail_id: str, tenants: Tenants, quarantine: Path | None) -> bytes:
    """Everything about one mail. `quarantine`: its directory, if it has one. Raises ApiError if there is no mail."""
    mails = store.find(HistoryQuery(id=mail_id, tenants=tenants, limit=_CHUNK))[::-1]
    if not mails:
        raise ApiError("not_found", f"no mail {mail_id} in the history")
    attempts = _other_attempts(store, mails, tenants)
    ids = list(dict.fromkeys(entry.row.id for entry in (*attempts, *mails) if entry.row.id))
    answer = {
        "id": mail_id,
        "mails": [_shown(entry, tenants) for entry in mails],
        "attempts": [_shown(entry, tenants) for entry in attempts],
        "later": [(each if tenants is None else each.without_internals()).to_dict() for each in store.later(ids)],
        "quarantine": None if quarantine is None else [held for each in ids for held in _held(quarantine, each)],
    }
    return _encoded(answer)


def sums(store: HistoryStore, by: By, query: HistoryQuery) -> bytes:
    """Numbers of mails and bytes, the largest first; hours and days in order."""
    now = time.time()
    since = query.since if query.since is not None else min(query.until or now, now) - DEFAULT_SPAN_S
    counted = store.count(by, replace(query, since=since))
    in_time = by in ("hour", "day")
    chosen = counted[-query.limit :] if in_time else counted[: query.limit]
    answer = {
        "by": by,
        "since": _rfc3339(since),
        "until": _rfc3339(now if query.until is None else query.until),
        "sums": [{"label": _label(by, each.label), "mails": each.mails, "size": each.size} for each in chosen],
        "left_out": len(counted) - len(chosen),
    }
    return _encoded(answer)


# Searching


def _other_attempts(store: HistoryStore, mails: Sequence[MailEntry], tenants: Tenants) -> list[MailEntry]:
    keys = dict.fromkeys(entry.row.attempt for entry in mails if entry.row.attempt)
    found = [
        entry for key in keys for entry in store.find(HistoryQuery(attempt=key, tenants=tenants, limit=_MAX_ATTEMPTS))
    ]
    own = {(entry.row.at, entry.row.id) for entry in mails}
    recipients = [recipients_of(mail) for mail in mails]
    others = [
        entry
        for entry in found
        for theirs in [recipients_of(entry)]
        if (entry.row.at, entry.row.id) not in own and any(share_recipients(theirs, each) for each in recipients)
    ]
    return sorted(others, key=lambda entry: entry.row.at)


def _held(quarantine: Path, mail_id: str) -> Iterator[dict[str, Any]]:
    """The mail in the quarantine, if it is there."""
    try:
        mail = record.read(LocalStore(quarantine).read(mail_id))
    except MailNotFound:
        return
    except StoreError as exc:
        raise HistoryError(str(exc)) from exc
    yield {"id": mail_id, "state": mail.state, "time": mail.time.isoformat(timespec="milliseconds")}


# Showing


def _shown(entry: MailEntry, tenants: Tenants) -> dict[str, Any]:
    return (entry if tenants is None else entry.without_internals()).to_dict()


def _label(by: By, label: str) -> str:
    """Hours as in RFC 3339, like every other time."""
    return f"{label.replace(' ', 'T')}:00Z" if by == "hour" else label


def _rfc3339(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


_encode: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode


def _encoded(value: Any) -> bytes:
    return _encode(value).encode("ascii")
