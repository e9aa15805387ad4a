"""Lists in the database: their definitions, and the entries of each list per scope.

The predefined and the configured lists exist in every scope: each tenant, and the deployment-global
one. The size of a list is stored separately, because counting a million entries for each addition
would cost more than the addition.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select

from bridge.api.lists import ListFileInfo
from bridge.errors import BridgeError
from bridge.runtime.database import insert_into
from bridge.service.settings import ListDefinition
from bridge.service.store import Store, clock, list_entry, list_removal, list_state, next_numbers

GLOBAL = ""  # the deployment-global scope
PAGE = 500  # each entry may take 14 KB, if its comment is long and not ASCII
PREDEFINED_SIZE = 1_000_000
REMOVALS_KEPT_S = 86_400.0

PREDEFINED = [
    ListDefinition(name=name, displayName=title, category=category, description=description, maxSize=PREDEFINED_SIZE)
    for name, title, category, description in [
        ("blocked-senders", "Blocked senders", "sender", "Mail from these addresses is bounced."),
        (
            "allowed-senders",
            "Allowed senders",
            "sender",
            "Mail from these addresses is delivered unless it is malware, blocked, obvious spam or incomplete.",
        ),
        ("blocked-domains", "Blocked domains", "domain", "Mail from these domains is bounced."),
        (
            "allowed-domains",
            "Allowed domains",
            "domain",
            "Mail from these domains is delivered unless it is malware, blocked, obvious spam or incomplete.",
        ),
        ("blocked-networks", "Blocked networks", "network", "Mail from these networks is bounced."),
        (
            "allowed-networks",
            "Allowed networks",
            "network",
            "Mail from these networks is delivered unless it is malware, blocked, obvious spam or incomplete.",
        ),
        ("blocked-urls", "Blocked URLs", "url", "Mail with links to these hosts is bounced."),
        (
            "blocked-attachments",
            "Blocked attachments",
            "attachment",
            "Mail with an attachment that has one of these SHA-256 digests is bounced.",
        ),
        (
            "personal-blocked-senders",
            "Senders blocked by recipients",
            "personal",
            "Mail is quarantined if each of its recipients has an entry for its sender.",
        ),
        (
            "personal-allowed-senders",
            "Senders allowed by recipients",
            "personal",
            "Spam is delivered if each of its recipients has an entry for its sender, unless it is dangerous.",
        ),
    ]
]


class ListFull(BridgeError):
    """The addition would exceed the list's maxSize; nothing was added."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`key` is the canonical spelling that mail is matched against, `shown` is the spelling as written."""

    key: str
    shown: str
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One entry that was added (`present`) or removed; changes are ordered by `seq`."""

    seq: int
    scope: str
    name: str
    entry: str
    present: bool


class ListStore:
    def __init__(self, store: Store, configured: Iterable[ListDefinition]) -> None:
        self._store = store
        self.definitions = {definition.name: definition for definition in [*PREDEFINED, *configured]}

    def infos(self) -> list[ListFileInfo]:
        """All lists. Every scope has the same lists; only the entries differ."""
        return [
            ListFileInfo(name, definition.displayName or name, definition.category, definition.description,
                         definition.maxSize)
            for name, definition in self.definitions.items()
        ]  # fmt: skip

    def add(self, scope: str, name: str, entries: Sequence[Entry]) -> int:
        """Insert or update entries and return how many. Raises ListFull."""
        wanted = {entry.key: entry for entry in entries}  # if a key appears twice, the last one wins
        if not wanted:
            return 0
        with self._store.writing() as connection:
            first = next_numbers(connection, len(wanted))
            known = _existing(connection, scope, name, list(wanted))
            size = _size(connection, scope, name) + len(wanted) - len(known)
            if len(wanted) > len(known) and size > self.definitions[name].maxSize:
                raise ListFull(name)
            rows: list[dict[str, object]] = [
                {
                    "scope": scope,
                    "name": name,
                    "entry": key,
                    "comment": entry.comment,
                    "seq": first + i,
                    "shown": entry.shown if entry.shown != key else None,
                }
                for i, (key, entry) in enumerate(wanted.items())
            ]
            _upsert(connection, rows)
            _set_size(connection, scope, name, size)
        return len(wanted)

    def delete(self, scope: str, name: str, entries: Sequence[str], before: Mapping[str, str] | None = None) -> int:
        """Remove the entries that exist and return how many there were.

        `before`: keys that an earlier version would have used, each for an entry that was written like this.
        """
        wanted, before = list(dict.fromkeys(entries)), before or {}
        if not wanted and not before:
            return 0
        with self._store.writing() as connection:
            first = next_numbers(connection, len(wanted) + len(before))
            known = _existing(connection, scope, name, wanted)
            known += _of_earlier(connection, scope, name, {key: before[key] for key in before.keys() - set(wanted)})
            if known:
                now = time.time()
                here = (list_entry.c.scope == scope) & (list_entry.c.name == name)
                connection.execute(delete(list_entry).where(here, list_entry.c.entry.in_(known)))
                connection.execute(
                    insert(list_removal),
                    [
                        {"seq": first + i, "scope": scope, "name": name, "entry": entry, "removed_at": now}
                        for i, entry in enumerate(known)
                    ],
                )
                _set_size(connection, scope, name, _size(connection, scope, name) - len(known))
        return len(known)

    def page(self, scope: str, name: str, after: str | None) -> list[Entry]:
        """The next entries after `after`, ordered by key."""
        query = select(list_entry.c.entry, list_entry.c.shown, list_entry.c.comment)
        query = query.where(list_entry.c.scope == scope, list_entry.c.name == name)
        if after is not None:
            query = query.where(list_entry.c.entry > after)
        with self._store.reading() as connection:
            rows = connection.execute(query.order_by(list_entry.c.entry).limit(PAGE))
            return [Entry(key, shown or key, comment) for key, shown, comment in rows]

    # For the index in memory.

    def now(self) -> int:
        """The number of the newest change."""
        with self._store.reading() as connection:
            return int(connection.execute(select(clock.c.value)).scalar_one())

    def everything(self) -> Iterator[tuple[str, str, str]]:
        """(scope, name, entry) of all lists, streamed."""
        query = select(list_entry.c.scope, list_entry.c.name, list_entry.c.entry)
        with self._store.reading() as connection:
            result = connection.execution_options(stream_results=True, yield_per=10_000).execute(query)
            for row in result:
                yield row.scope, row.name, row.entry

    def changes(self, since: int, until: int) -> list[Change]:
        """All changes after number `since` up to `until`, a result of `now`, in order.

        PostgreSQL: each statement sees what was committed before it began. Without the limit, a removal that is
        committed between the two would be found without an addition that has a lower number, which would then be
        skipped.
        """
        added = select(list_entry.c.seq, list_entry.c.scope, list_entry.c.name, list_entry.c.entry)
        removed = select(list_removal.c.seq, list_removal.c.scope, list_removal.c.name, list_removal.c.entry)
        added = added.where(list_entry.c.seq > since, list_entry.c.seq <= until)
        removed = removed.where(list_removal.c.seq > since, list_removal.c.seq <= until)
        with self._store.reading() as connection:
            found = [Change(*row, present=True) for row in connection.execute(added)]
            found += [Change(*row, present=False) for row in connection.execute(removed)]
        return sorted(found, key=lambda change: change.seq)

    def expire_removals(self) -> None:
        """Delete removals older than a day; a process that missed them reloads all lists."""
        with self._store.writing() as connection:
            old = list_removal.c.removed_at < time.time() - REMOVALS_KEPT_S
            connection.execute(delete(list_removal).where(old))


def _existing(connection: Connection, scope: str, name: str, entries: list[str]) -> list[str]:
    query = select(list_entry.c.entry).where(
        list_entry.c.scope == scope, list_entry.c.name == name, list_entry.c.entry.in_(entries)
    )
    return list(connection.execute(query).scalars())


def _of_earlier(connection: Connection, scope: str, name: str, entries: Mapping[str, str]) -> list[str]:
    """Only those that were written like this: another entry may have the same key."""
    query = select(list_entry.c.entry, list_entry.c.shown).where(
        list_entry.c.scope == scope, list_entry.c.name == name, list_entry.c.entry.in_(entries)
    )
    rows = connection.execute(query) if entries else ()
    return [row.entry for row in rows if (row.shown or row.entry) == entries[row.entry]]


def _size(connection: Connection, scope: str, name: str) -> int:
    here = (list_state.c.scope == scope) & (list_state.c.name == name)
    return int(connection.execute(select(func.coalesce(func.max(list_state.c.size), 0)).where(here)).scalar_one())


def _upsert(connection: Connection, rows: list[dict[str, object]]) -> None:
    statement = insert_into(connection, list_entry)
    changed = {name: statement.excluded[name] for name in ("shown", "comment", "seq")}
    connection.execute(statement.on_conflict_do_update(index_elements=["scope", "name", "entry"], set_=changed), rows)


def _set_size(connection: Connection, scope: str, name: str, size: int) -> None:
    statement = insert_into(connection, list_state).values(scope=scope, name=name, size=size)
    connection.execute(statement.on_conflict_do_update(index_elements=["scope", "name"], set_={"size": size}))
