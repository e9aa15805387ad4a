"""The quarantine's index: what is known of its mail, in the state database, where people can search it.

What the store has is the truth. Nothing is in here that cannot be read from it again, so an index
that is missing is made, one that is damaged is set aside and made anew, and one that fails costs
nobody a mail: its error is IndexFailed, and whoever adds to it goes on.

Readers and writers are several processes (the daemon, and people at the command line), on several
machines if the database is PostgreSQL; `place` tells apart whose mail lies where. One connection for
each process, opened when first needed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    LargeBinary,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    text,
)
from sqlalchemy import Index as TableIndex
from sqlalchemy.exc import SQLAlchemyError

from bridge.errors import StoreError
from bridge.quarantine import record
from bridge.quarantine.record import Item, Kept
from bridge.runtime import database, durable_files
from bridge.runtime.database import MEMORY, Database, DatabaseNewer, DatabaseUnusable

BUSY_S = 0.5  # a mail's reply waits for this, so it is short; what was missed is repaired later
AWAY_S = 5.0  # a server that failed is left alone for so long
VERSION_TABLE = "quarantine_schema"
_LOCK = 0x5CA7B12E  # writers follow each other in PostgreSQL, as they do in SQLite
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

metadata = MetaData()
mails = Table(
    "quarantine",
    metadata,
    Column("place", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("kept_at", Double, nullable=False),
    *(Column(name, Text, nullable=False) for name in ("sender", "subject", "listener", "tenant", "decision", "state")),
    Column("about", LargeBinary, nullable=False),
    Column("releases", LargeBinary, nullable=False),
    TableIndex("quarantine_kept_at", "kept_at"),
)
recipients = Table(
    "quarantine_recipient",
    metadata,
    *(Column(name, Text, primary_key=True) for name in ("place", "id", "address")),
    TableIndex("quarantine_recipient_address", "address"),
)
tags = Table("quarantine_tag", metadata, *(Column(name, Text, primary_key=True) for name in ("place", "id", "tag")))


def _create(connection: Connection) -> None:
    """`place` is new in version 2; before it there were SQLite files only, and their rows are taken over."""
    old = [table.name for table in metadata.sorted_tables if connection.dialect.has_table(connection, table.name)]
    for name in old:
        connection.execute(text(f"ALTER TABLE {name} RENAME TO {name}_1"))
    for index in ("quarantine_kept_at", "quarantine_recipient_address"):
        connection.execute(text(f"DROP INDEX IF EXISTS {index}"))
    metadata.create_all(connection)
    for name in old:
        columns = ", ".join(column.name for column in metadata.tables[name].columns if column.name != "place")
        connection.execute(text(f"INSERT INTO {name} (place, {columns}) SELECT '', {columns} FROM {name}_1"))  # noqa: S608  fixed names
        connection.execute(text(f"DROP TABLE {name}_1"))
    if connection.dialect.name == "sqlite":
        connection.execute(text("PRAGMA user_version=2"))  # where version 1 looks: it leaves the file alone


# Number n brings a database from version n to n + 1. Never change one that was released: add one.
MIGRATIONS: list[database.Step] = [_create]


class IndexFailed(StoreError):
    """The index cannot be used now; the mail is not touched by that."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for; everything that is given must hold. Texts without `*` match anywhere, but tags whole."""

    recipient: str = ""
    sender: str | None = None  # "": the null sender
    subject: str = ""
    tag: str = ""
    tenant: str = ""
    decision: str = ""
    listener: str = ""
    state: str = ""
    since: float | None = None  # seconds since 1970
    until: float | None = None
    limit: int = 0  # 0: all


class Index:
    """Of the mail in one place; in memory when there is no database."""

    def __init__(self, where: Database | None, place: str = "", busy_s: float = BUSY_S) -> None:
        self._database = where or Database(MEMORY)
        self._path = self._database.path
        self._place = place
        self._busy_s = busy_s
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._end: Any = None
        self._identity: tuple[int, ...] = ()  # of the open file, and of the process that opened it
        self._away_until = 0.0

    def put(self, items: Iterable[Item]) -> None:
        """Add, or replace what is known of them. Raises IndexFailed."""
        with self._transaction(writes=True) as connection:
            for item in items:
                self._delete(connection, item.id)
                self._insert(connection, item)

    def remove(self, ids: Iterable[str]) -> None:
        """Raises IndexFailed."""
        with self._transaction(writes=True) as connection:
            for mail_id in ids:
                self._delete(connection, mail_id)

    def known(self) -> dict[str, int]:
        """The ids, each with the size of its .releases. Raises IndexFailed."""
        sql = select(mails.c.id, func.length(mails.c.releases)).where(mails.c.place == self._place)
        with self._transaction() as connection:
            return {row[0]: row[1] for row in connection.execute(sql)}

    def search(self, query: Query) -> list[Kept]:
        """Newest first. Raises IndexFailed."""
        sql = select(mails.c.id, mails.c.about, mails.c.releases, mails.c.kept_at)
        sql = sql.where(mails.c.place == self._place, *_conditions(query))
        sql = sql.order_by(mails.c.kept_at.desc(), mails.c.id.desc()).limit(query.limit or None)
        with self._transaction() as connection:
            rows = connection.execute(sql).all()
        return [record.read(*row) for row in rows]

    def check(self) -> None:
        """Look at every page. Raises IndexFailed; a damaged file has then been set aside."""
        with self._transaction() as connection:
            word = "ok"
            if self._database.is_sqlite:
                word = str(connection.execute(text("PRAGMA quick_check(1)")).scalar())
        if word != "ok":
            with self._lock:
                self._set_aside()
            raise IndexFailed(f"state database: {word}")

    def close(self) -> None:
        if self._engine is not None:
            # What another process opened is not ours to close.
            self._engine.dispose(close=self._identity[-1:] in ((), (os.getpid(),)))
            self._engine = None
            self._end.detach()

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        if not self._lock.acquire(timeout=self._busy_s):
            raise IndexFailed("state database: busy")
        try:
            if time.monotonic() < self._away_until:
                raise IndexFailed("state database: it failed a moment ago")
            engine = self._open()
            with database.writing(engine, _LOCK) if writes else engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as exc:
            if getattr(getattr(exc, "orig", None), "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._set_aside()
            if not self._database.is_sqlite:
                self._away_until = time.monotonic() + AWAY_S
            raise IndexFailed(f"state database: {database.reason(exc)}") from exc
        except (DatabaseNewer, DatabaseUnusable) as exc:
            raise IndexFailed(f"state database: {exc}") from exc
        finally:
            self._lock.release()

    def _open(self) -> Engine:
        """A new one in a new process, or when the file is not the same any more."""
        identity = (*_file(self._path), os.getpid())
        if self._engine is not None:
            if identity == self._identity:
                return self._engine
            self.close()
        if self._path is not None:
            database.make_private(self._path)
            durable_files.give_to_owner(self._path)
        self._identity = (*_file(self._path), os.getpid())
        # What a power cut takes is read from the store again.
        self._engine = self._database.engine(
            wait_s=self._busy_s, connections=1, synchronous="NORMAL", statement_s=10 * self._busy_s
        )
        self._end = weakref.finalize(self, self._engine.dispose)
        try:
            with database.writing(self._engine, _LOCK) as connection:
                database.migrate(connection, MIGRATIONS, VERSION_TABLE)
        except BaseException:
            self.close()
            raise
        return self._engine

    def _set_aside(self) -> None:
        """Keep a damaged file for whoever wants to look, unless another process already did."""
        if self._path is None or not _file(self._path) or self._identity[:2] != _file(self._path):
            return
        self.close()
        for end in ("-wal", "-shm", ""):
            part = self._path.with_name(self._path.name + end)
            try:
                part.replace(self._path.with_name(f"{self._path.name}.damaged{end}"))
            except OSError:  # not there, or nothing we could do about it
                pass

    def _delete(self, connection: Connection, mail_id: str) -> None:
        for table in (mails, recipients, tags):
            connection.execute(delete(table).where(table.c.place == self._place, table.c.id == mail_id))

    def _insert(self, connection: Connection, item: Item) -> None:
        mail = record.read(item.id, item.about, item.releases, item.kept_at)
        key = {"place": self._place, "id": item.id}
        connection.execute(
            insert(mails),
            {
                **key,
                "kept_at": mail.time.timestamp(),
                "sender": _text(mail.envelope.sender),
                "subject": _text(mail.subject),
                "listener": _text(mail.listener),
                "tenant": _text(mail.tenant),
                "decision": _text(mail.decision),
                "state": mail.state,
                "about": item.about,
                "releases": item.releases,
            },
        )
        for table, column, values in (
            (recipients, "address", mail.envelope.addresses),
            (tags, "tag", mail.tags),
        ):
            if values:
                connection.execute(
                    insert(table), [{**key, column: value} for value in dict.fromkeys(map(_text, values))]
                )


def _file(path: Path | None) -> tuple[int, ...]:
    try:
        found = path.stat() if path is not None else None
    except OSError:
        found = None
    return (found.st_dev, found.st_ino) if found is not None else ()


def _text(value: str) -> str:
    """As it is searched for: in lower case, and without what a database cannot hold."""
    return value.lower().replace("\0", "").encode("utf-8", "replace").decode()


def _conditions(query: Query) -> Iterator[ColumnElement[bool]]:
    if query.recipient:
        yield _of_one(recipients, recipients.c.address.like(_pattern(query.recipient), escape="\\"))
    if query.tag:
        yield _of_one(tags, tags.c.tag.like(_pattern(query.tag, whole=True), escape="\\"))
    if query.sender is not None:
        yield mails.c.sender.like(_pattern(query.sender, whole=not query.sender), escape="\\")
    if query.subject:
        yield mails.c.subject.like(_pattern(query.subject), escape="\\")
    for name in ("tenant", "decision", "listener", "state"):
        if wanted := getattr(query, name):
            yield mails.c[name] == _text(wanted)
    if query.since is not None:
        yield mails.c.kept_at >= query.since
    if query.until is not None:
        yield mails.c.kept_at < query.until


def _of_one(table: Table, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """One of the mail's recipients, or of its tags, is so."""
    return mails.c.id.in_(select(table.c.id).where(table.c.place == mails.c.place, condition))


def _pattern(wanted: str, whole: bool = False) -> str:
    """For LIKE: `*` stands for anything; without one the text may stand anywhere."""
    pattern = _text(wanted)
    for special in "\\%_":
        pattern = pattern.replace(special, "\\" + special)
    return pattern.replace("*", "%") if whole or "*" in pattern else f"%{pattern}%"
