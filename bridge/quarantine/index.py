"""The quarantine's index: its records in the state database, for searching.

The store is the truth. Everything in the index can be read from the store again, so a missing index is
created, a damaged one is set aside and rebuilt, and a failing one never costs a mail: it raises
IndexFailed, and storing the mail continues.

Several processes read and write it (the daemon and the command line), on several machines if the
database is PostgreSQL; the column `place` separates their mail. Each process has one connection, opened
on first use. Writers do not wait for each other: a row is replaced by its key, and several are replaced in the order of
their ids, so that two processes never deadlock.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Table,
    delete,
    func,
    or_,
    select,
    text,
)
from sqlalchemy.exc import DataError, SQLAlchemyError

from bridge.errors import StoreError
from bridge.quarantine import record
from bridge.quarantine.index_search import Query, conditions, is_address
from bridge.quarantine.index_tables import (
    MIGRATIONS,
    VERSION_TABLE,
    columns_of,
    indexed_text,
    mails,
    recipient_text,
    recipients,
    search_text,
    tags,
)
from bridge.quarantine.record import MailRecord, StoredRecord
from bridge.runtime import database, durable_files, schema_version
from bridge.runtime.database import MEMORY, Database, DatabaseUnusable
from bridge.runtime.schema_version import DatabaseNewer
from bridge.runtime.tables import has_waited

log = logging.getLogger(__name__)

BUSY_S = 0.5  # short, because a mail's reply waits for it; missing records are added later
AWAY_S = 5.0  # a database server that failed is not tried again for this long
_BATCH = 200  # ids in one statement
_FEW = 500  # ids in a search
_MAX_REFUSED = 1_000  # ids that are remembered
_FEW_ARRIVALS, _MAX_ADDRESSES = 20, 5000  # read at a time: a mail may have a thousand recipients
_LOCK = 0x5CA7B12E  # an advisory lock that serialises migrations in PostgreSQL, as SQLite does by itself
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class IndexFailed(StoreError):
    """The index cannot be used now. Stored mail is not affected."""


class RecordRefused(IndexFailed):
    """The database refuses a record because of its content. Other records are not affected."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A mail and its recipients: each address as it came and, if it differs, a space and the form that is compared."""

    id: str
    kept_at: float
    addresses: list[str]


class Index:
    """The index of one store; in memory if there is no database."""

    def __init__(
        self, where: Database | None, place: str = "", busy_s: float = BUSY_S, statement_s: float | None = None
    ) -> None:
        self._database = where or Database(MEMORY)
        self._path = self._database.path
        self._place = place
        self._busy_s = busy_s
        self._statement_s = 10 * busy_s if statement_s is None else statement_s
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._finalizer: Any = None
        self._identity: tuple[int, ...] = ()  # device and inode of the open file, and our process id
        self._away_until = 0.0
        self._refused: set[str] = set()  # ids of mails whose refusal was logged: each repair tries them again

    def another(self) -> Index:
        """The same index with its own connection, so that long operations do not block others."""
        made = Index(self._database, self._place, self._busy_s, self._statement_s)
        made._refused = self._refused
        return made

    def put(self, stored_records: Iterable[StoredRecord], *, skips_refused: bool = False) -> None:
        """Add or replace records. Raises IndexFailed. If one of several is refused, the others are stored.

        `skips_refused`: does not raise if a single record is refused, so that a repair does not fail because of it.
        """
        by_id = {stored.id: stored for stored in stored_records}
        in_order = [by_id[mail_id] for mail_id in sorted(by_id)]
        if not in_order:
            return
        try:
            self._put(in_order)
        except RecordRefused:
            if len(in_order) == 1 and not skips_refused:
                raise
            for stored in in_order:
                self._put_if_possible(stored)

    def _put_if_possible(self, stored: StoredRecord) -> None:
        try:
            self._put([stored])
        except RecordRefused as exc:
            if stored.id not in self._refused and len(self._refused) < _MAX_REFUSED:
                self._refused.add(stored.id)
                log.warning("quarantine index: searches will not find mail %s: %s", stored.id, exc)

    def _put(self, stored_records: Sequence[StoredRecord]) -> None:
        with self._transaction(writes=True) as connection:
            self._replace(connection, stored_records)

    def remove(self, ids: Iterable[str]) -> None:
        """Raises IndexFailed."""
        in_order = sorted(ids)
        with self._transaction(writes=True) as connection:
            for start in range(0, len(in_order), _BATCH):
                some = in_order[start : start + _BATCH]
                ours = select(mails.c.id).where(mails.c.place == self._place, mails.c.id.in_(some))
                locked = connection.execute(ours.order_by(mails.c.id).with_for_update()).scalars().all()
                # Not `some`: rows that other machines add now would be locked in any order; two could wait in a circle.
                self._delete(connection, locked, (mails, recipients, tags))

    def known(self) -> dict[str, int]:
        """All ids, with the size of their .releases. Raises IndexFailed."""
        sql = select(mails.c.id, func.length(mails.c.releases)).where(mails.c.place == self._place)
        with self._transaction() as connection:
            return {row[0]: row[1] for row in connection.execute(sql)}

    def search(self, query: Query) -> list[MailRecord]:
        """Newest first. Raises IndexFailed."""
        found = select(mails.c.id).where(mails.c.place == self._place, *conditions(query))
        found = found.order_by(mails.c.kept_at.desc(), mails.c.id.desc()).limit(query.limit or None)
        # Rows are wide: only those of the page are read. Python sorts them: SQLite would look for them in that order.
        sql = select(mails.c.id, mails.c.about, mails.c.releases, mails.c.kept_at).where(mails.c.place == self._place)
        with self._transaction() as connection:
            if query.recipient:
                found = found.where(self._has_recipient(connection, query.recipient))
            rows = connection.execute(sql.where(mails.c.id.in_(found))).all()
        ordered = sorted(rows, key=lambda row: (row.kept_at, row.id), reverse=True)
        return [record.read(StoredRecord(*row)) for row in ordered]

    def _has_recipient(self, connection: Connection, wanted: str) -> ColumnElement[bool]:
        """If few mails have the recipient, looks them up; otherwise, mails are read in order until the page is full."""
        ids = select(recipients.c.id).where(recipients.c.place == self._place)
        ids = ids.where(is_address(recipients.c.address, wanted))
        some = connection.execute(ids.distinct().limit(_FEW + 1)).scalars().all()
        return mails.c.id.in_(some) if len(some) <= _FEW else func.coalesce(mails.c.id, "").in_(ids)

    def count(self, tenants: frozenset[str] | None = None) -> int:
        """How many mails there are. Raises IndexFailed."""
        sql = select(func.count()).where(mails.c.place == self._place, *conditions(Query(tenants=tenants)))
        with self._transaction() as connection:
            return int(connection.execute(sql).scalar_one())

    def records(self, ids: list[str]) -> list[MailRecord]:
        """The mails with these ids that are in the index, in any order. Raises IndexFailed."""
        found: list[MailRecord] = []
        columns = (mails.c.id, mails.c.about, mails.c.releases, mails.c.kept_at)
        with self._transaction() as connection:
            for start in range(0, len(ids), _BATCH):
                some = mails.c.id.in_(ids[start : start + _BATCH])
                rows = connection.execute(select(*columns).where(mails.c.place == self._place, some))
                found += [record.read(StoredRecord(*row)) for row in rows]
        return found

    def arrivals(
        self, after: tuple[float, str], limit: int, max_addresses: int = _MAX_ADDRESSES, few: int = _FEW_ARRIVALS
    ) -> list[Arrival]:
        """The mails that follow this time and id, the oldest first; fewer if they have many recipients.

        Raises IndexFailed.
        """
        at, mail_id = after
        later = or_(mails.c.kept_at > at, (mails.c.kept_at == at) & (mails.c.id > mail_id))
        place = func.coalesce(mails.c.place, "") == self._place  # in the order of time, as in `search`
        sql = select(mails.c.id, mails.c.kept_at).where(place, mails.c.kept_at >= at, later)
        with self._transaction() as connection:
            rows = connection.execute(sql.order_by(mails.c.kept_at, mails.c.id).limit(limit)).all()
            found: dict[str, Arrival] = {}
            number = 0  # of addresses
            while len(found) < len(rows) and number < max_addresses:
                some = rows[len(found) : len(found) + few]
                found |= {row.id: Arrival(row.id, row.kept_at, []) for row in some}
                chosen = recipients.c.id.in_([row.id for row in some])
                wanted = select(recipients.c.id, recipients.c.address).where(recipients.c.place == self._place, chosen)
                for row in connection.execute(wanted):
                    found[row.id].addresses.append(row.address)
                    number += 1
        return list(found.values())

    def check(self) -> None:
        """Check a SQLite file for damage. Raises IndexFailed after setting a damaged file aside."""
        with self._transaction() as connection:
            result = "ok"
            if self._database.is_sqlite:
                result = str(connection.execute(text("PRAGMA quick_check(1)")).scalar())
        if result != "ok":
            with self._lock:
                self._set_aside()
            raise IndexFailed(f"state database: {result}")

    def close(self) -> None:
        if self._engine is not None:
            # After a fork, the parent's connection must not be closed here.
            self._engine.dispose(close=self._identity[-1:] in ((), (os.getpid(),)))
            self._engine = None
            self._finalizer.detach()

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        if not self._lock.acquire(timeout=self._busy_s):
            raise IndexFailed("state database: busy")
        try:
            if time.monotonic() < self._away_until:
                raise IndexFailed("state database: failed recently, not retried yet")
            engine = self._open()
            with database.writing(engine) if writes else engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, OSError) as exc:
            if getattr(getattr(exc, "orig", None), "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._set_aside()
            is_slow_search = not writes and has_waited(exc)  # the server is up, and others may query it
            is_refused = _is_refused(exc)
            if not self._database.is_sqlite and not is_slow_search and not is_refused:
                self._away_until = time.monotonic() + AWAY_S
            kind = RecordRefused if is_refused else IndexFailed
            raise kind(f"state database: {database.reason(exc)}") from exc
        except (DatabaseNewer, DatabaseUnusable) as exc:
            raise IndexFailed(f"state database: {exc}") from exc
        finally:
            self._lock.release()

    def _open(self) -> Engine:
        """Opens the database again in a new process, or if the file was replaced."""
        identity = (*_file_identity(self._path), os.getpid())
        if self._engine is not None:
            if identity == self._identity:
                return self._engine
            self.close()
        if self._path is not None:
            durable_files.refuse_planted_database(self._path)
            durable_files.make_private(self._path)
            durable_files.give_to_owner(self._path)
        self._identity = (*_file_identity(self._path), os.getpid())
        # synchronous=NORMAL: rows lost in a power cut are read from the store again.
        self._engine = self._database.engine(
            wait_s=self._busy_s, connections=1, synchronous="NORMAL", statement_s=self._statement_s
        )
        self._finalizer = weakref.finalize(self, self._engine.dispose)
        try:
            with database.writing(self._engine, _LOCK) as connection:
                schema_version.migrate(connection, MIGRATIONS, VERSION_TABLE)
        except BaseException:
            self.close()
            raise
        return self._engine

    def _set_aside(self) -> None:
        """Rename a damaged file to `.damaged`, for inspection, unless another process has done so."""
        if self._path is None or not _file_identity(self._path) or self._identity[:2] != _file_identity(self._path):
            return
        self.close()
        for suffix in ("-wal", "-shm", ""):
            part = self._path.with_name(self._path.name + suffix)
            try:
                part.replace(self._path.with_name(f"{self._path.name}.damaged{suffix}"))
            except OSError:  # it does not exist, or cannot be renamed
                pass

    def _delete(self, connection: Connection, ids: Sequence[str], tables: Iterable[Table]) -> None:
        for table in tables:
            connection.execute(delete(table).where(table.c.place == self._place, table.c.id.in_(ids)))

    def _replace(self, connection: Connection, stored_records: Sequence[StoredRecord]) -> None:
        """All rows of a table in one statement: ten times as fast as one statement for each mail.

        The row of the mail comes first: this locks it, and thereby all rows of this mail.
        """
        rows: dict[Table, list[dict[str, Any]]] = {mails: [], recipients: [], tags: []}
        for stored in stored_records:
            mail = record.read(stored)
            key = {"place": self._place, "id": stored.id}
            rows[mails].append({**key, **columns_of(mail), "about": stored.metadata, "releases": stored.releases})
            addresses = dict.fromkeys(map(recipient_text, mail.envelope.addresses))
            rows[recipients] += [{**key, "address": address} for address in addresses]
            of_mail = dict.fromkeys(indexed_text(search_text(tag)) for tag in mail.tags)
            rows[tags] += [{**key, "tag": tag} for tag in of_mail]
        connection.execute(database.replace_in(connection, mails), rows[mails])
        ids = [stored.id for stored in stored_records]
        for start in range(0, len(ids), _BATCH):
            self._delete(connection, ids[start : start + _BATCH], (recipients, tags))
        for table in (recipients, tags):
            if rows[table]:
                connection.execute(database.replace_in(connection, table), rows[table])


def _is_refused(exc: Exception) -> bool:
    """Whether the error is about values (22: data exception, 54: program limit exceeded), not about the database."""
    return isinstance(exc, DataError) or str(getattr(getattr(exc, "orig", None), "sqlstate", None))[:2] in ("22", "54")


def _file_identity(path: Path | None) -> tuple[int, ...]:
    try:
        status = path.stat() if path is not None else None
    except OSError:
        status = None
    return (status.st_dev, status.st_ino) if status is not None else ()
