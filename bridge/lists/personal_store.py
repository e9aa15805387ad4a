"""Personal lists: senders that one recipient has blocked, or always wants mail from.

Stored in SQLite for all workers of this machine, in PostgreSQL for several machines. Each change increments `seq`, so
that a copy in memory (`bridge.lists.personal_table`) reads only what has changed. A removed entry stays for a day,
without a kind, so that every copy learns of it. Everything is synchronous and must run in a thread. Knows nothing of
policies: what an entry does to a mail is decided in `bridge.filter.personal_rules`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from bridge.errors import BridgeError
from bridge.matching import spelling
from bridge.runtime import schema_version
from bridge.runtime.counted import counted
from bridge.runtime.database import Database
from bridge.runtime.tables import WAIT_S, Schema, Tables, TablesFailed
from bridge.runtime.visible_text import visible

FILE = "personal.sqlite"
MAX_ENTRIES = 200
REMOVALS_KEPT_S = 86400.0
VERSION_TABLE = "personal_list_schema"
_PAGE = 10_000
_MAX_ADDRESS, _MAX_BY = 320, 400


class Kind(StrEnum):
    BLOCK = "block"
    ALLOW = "allow"


class PersonalListsFailed(TablesFailed):
    """The database cannot be used at the moment."""


class PersonalListFull(BridgeError):
    """The recipient has as many entries as allowed."""


class BadEntry(BridgeError):
    """Neither an address nor a domain."""


metadata = MetaData()
_entries = Table(
    "personal_list_entry",
    metadata,
    Column("recipient", String(_MAX_ADDRESS), primary_key=True),
    Column("sender", String(_MAX_ADDRESS), primary_key=True),
    Column("kind", String(10), nullable=False),  # "": removed
    Column("at", Float(53), nullable=False),
    Column("by", String(_MAX_BY), nullable=False),
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), nullable=False),
    Index("personal_list_entry_seq", "seq"),
)
_last = Table("personal_list_seq", metadata, Column("seq", BigInteger, nullable=False))


def _create(connection: Connection) -> None:
    metadata.create_all(connection)
    connection.execute(insert(_last).values(seq=0))


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[schema_version.Step] = [_create]
_SCHEMA = Schema("personal lists", MIGRATIONS, VERSION_TABLE, 0x9E250A1, PersonalListsFailed)


@dataclass(frozen=True, slots=True)
class PersonalEntry:
    """Recipient and sender in the spelling in which they are compared; the sender may be `@domain`."""

    recipient: str
    kind: str
    sender: str
    at: float  # Unix time
    by: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    recipient: str
    sender: str
    kind: str  # "": removed
    seq: int


class PersonalLists:
    """With `only_reads`, neither the file nor the schema is changed."""

    def __init__(
        self, place: Database, max_entries: int = MAX_ENTRIES, *, only_reads: bool = False, wait_s: float = WAIT_S
    ) -> None:
        self._tables = Tables(place, _SCHEMA, only_reads=only_reads, wait_s=wait_s)
        self._max_entries = max_entries

    def block(self, recipient: str, sender: str, by: str = "") -> bool:
        """False if it was already blocked. Raises BadEntry, PersonalListFull, PersonalListsFailed."""
        return self._add(Kind.BLOCK, recipient, sender, by)

    def allow(self, recipient: str, sender: str, by: str = "") -> bool:
        """False if it was already allowed. Raises BadEntry, PersonalListFull, PersonalListsFailed."""
        return self._add(Kind.ALLOW, recipient, sender, by)

    def remove(self, recipient: str, kind: str, sender: str) -> bool:
        """False if there was no such entry. Raises BadEntry, PersonalListsFailed.

        `sender` as `entries` returned it, or as a person writes it: the entry `*@example.org` is about one address.
        """
        mine = (_entries.c.recipient == normal_recipient(recipient)) & (_entries.c.kind == str(kind))
        with self._tables.writing() as connection:
            is_listed = connection.execute(select(_entries.c.sender).where(mine, _entries.c.sender == sender)).first()
            query = update(_entries).where(mine, _entries.c.sender == (sender if is_listed else normal_sender(sender)))
            return connection.execute(query.values(kind="", at=time.time(), seq=_next(connection))).rowcount > 0

    def entries(self, recipient: str | None = None, by: str | None = None) -> list[PersonalEntry]:
        """The entries of one recipient or of everybody, made by one person or by anyone; newest first.

        Raises BadEntry, PersonalListsFailed.
        """
        query = select(_entries).where(_entries.c.kind != "")
        if recipient is not None:
            query = query.where(_entries.c.recipient == normal_recipient(recipient))
        if by is not None:
            query = query.where(_entries.c.by == by[:_MAX_BY])
        if not self.exists():
            return []
        with self._tables.reading() as connection:
            found = connection.execute(query.order_by(_entries.c.at.desc(), _entries.c.sender)).mappings()
            return [_entry(row) for row in found]

    def close(self) -> None:
        self._tables.close()

    # For the copy in memory

    def exists(self) -> bool:
        """Whether there may be entries."""
        return self._tables.exists()

    def seq(self) -> int:
        """Different after every change. Raises PersonalListsFailed."""
        with self._tables.reading() as connection:
            return int(connection.execute(select(_last.c.seq)).scalar_one())

    def changes(self, after: int) -> list[Change]:
        """What has changed since then, in order. Raises PersonalListsFailed."""
        query = select(_entries.c.recipient, _entries.c.sender, _entries.c.kind, _entries.c.seq)
        with self._tables.reading() as connection:
            found = connection.execute(query.where(_entries.c.seq > after).order_by(_entries.c.seq))
            return [Change(*row) for row in found]

    def everything(self) -> Iterator[Change]:
        """All entries, page by page. Raises PersonalListsFailed."""
        query = select(_entries.c.recipient, _entries.c.sender, _entries.c.kind, _entries.c.seq)
        query = query.where(_entries.c.kind != "").order_by(_entries.c.seq).limit(_PAGE)
        seq = 0
        while True:
            with self._tables.reading() as connection:
                page = [Change(*row) for row in connection.execute(query.where(_entries.c.seq > seq))]
            yield from page
            if len(page) < _PAGE:
                return
            seq = page[-1].seq

    # Private.

    def _add(self, kind: Kind, recipient: str, sender: str, by: str) -> bool:
        key = {"recipient": normal_recipient(recipient), "sender": normal_sender(sender)}
        is_same = (_entries.c.recipient == key["recipient"]) & (_entries.c.sender == key["sender"])
        with self._tables.writing() as connection:
            there = connection.execute(select(_entries.c.kind).where(is_same)).scalar()
            if there == kind:
                return False
            if not there:
                self._check_room(connection, key["recipient"])
            values = {"kind": str(kind), "at": time.time(), "by": by[:_MAX_BY], "seq": _next(connection)}
            connection.execute(delete(_entries).where(_is_forgotten()))
            if there is None:
                connection.execute(insert(_entries).values(**key, **values))
            else:
                changed = connection.execute(update(_entries).where(is_same).values(**values))
                if not changed.rowcount:  # it was removed long ago, and forgotten just now
                    connection.execute(insert(_entries).values(**key, **values))
        return True

    def _check_room(self, connection: Connection, recipient: str) -> None:
        query = select(func.count()).where((_entries.c.recipient == recipient) & (_entries.c.kind != ""))
        if connection.execute(query).scalar_one() >= self._max_entries:
            most = counted(self._max_entries, "entry", "entries")
            raise PersonalListFull(f"{recipient} already has {most}, the maximum: delete one first")


def normal_recipient(text: str) -> str:
    """Raises BadEntry."""
    try:
        return _short(spelling.address(text.strip().strip("<>")))
    except ValueError as exc:
        raise BadEntry(_said(text, exc)) from exc


def normal_sender(text: str) -> str:
    """An address, or `@domain`, which also stands for its subdomains. Raises BadEntry."""
    text = text.strip().strip("<>")
    try:
        normal = _short(spelling.normalise("sender", text))
    except ValueError as exc:
        raise BadEntry(_said(text, exc)) from exc
    if normal.startswith("@") and "." not in normal:
        raise BadEntry(f"{normal[1:]} is not the domain of a single sender: use a domain such as example.org")
    return normal


def sender_of_mail(sender: str) -> str:
    """The entry that lists the sender of a mail, never a whole domain. Raises BadEntry."""
    try:
        return spelling.one_sender(sender)
    except ValueError as exc:
        raise BadEntry(_said(sender, exc)) from exc


def _said(text: str, exc: ValueError) -> str:
    shown = visible(text[:_MAX_ADDRESS]) or "an empty text"
    return f"{shown} is {exc}" if str(exc).startswith("not ") else f"{shown}: {exc}"


def _short(text: str) -> str:
    if len(text) > _MAX_ADDRESS:
        raise ValueError(f"not an address: it is longer than {_MAX_ADDRESS} characters")
    return text


def _next(connection: Connection) -> int:
    """Counts up. Writers run one after the other, so the order of numbers is that of the transactions."""
    connection.execute(update(_last).values(seq=_last.c.seq + 1))
    return int(connection.execute(select(_last.c.seq)).scalar_one())


def _is_forgotten() -> ColumnElement[bool]:
    return (_entries.c.kind == "") & (_entries.c.at < time.time() - REMOVALS_KEPT_S)


def _entry(row: RowMapping) -> PersonalEntry:
    return PersonalEntry(row["recipient"], row["kind"], row["sender"], row["at"], row["by"])
