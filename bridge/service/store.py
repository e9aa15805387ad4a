"""The database: SQLite by default, PostgreSQL by URL, one code path for both.

Synchronous SQLAlchemy Core; callers in the event loop must use a thread. Several processes may
share one database: migrations run under a lock, and every change to a list first locks the single
row of `clock`. That row makes changes commit in the order of their numbers, so a reader that has
seen change 7 has seen all earlier ones, in PostgreSQL too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from bridge.errors import BridgeError
from bridge.runtime import database, durable_files, schema_version
from bridge.runtime.database import Database, DatabaseUnusable
from bridge.runtime.schema_version import DatabaseNewer
from bridge.service import learning_tables

PROBE_S = 5.0
LOCK_S = 10.0  # in PostgreSQL: for a lock; in SQLite, its engine has the same limit
MIGRATION_LOCK = 0x5CA7B12D  # an arbitrary number for the advisory lock

metadata = MetaData()

clock = Table(
    "clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", BigInteger, nullable=False),
)
list_state = Table(
    "list_state",
    metadata,
    Column("scope", String(36), primary_key=True),  # a tenant's UUID, or "" for the deployment-global scope
    Column("name", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
)
list_entry = Table(
    "list_entry",
    metadata,
    Column("scope", String(36), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("entry", Text, primary_key=True),  # in canonical spelling
    Column("shown", Text),  # as it was written, if that differs
    Column("comment", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Index("list_entry_seq", "seq"),
    sqlite_with_rowid=False,
)
list_removal = Table(
    "list_removal",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("scope", String(36), nullable=False),
    Column("name", String(64), nullable=False),
    Column("entry", Text, nullable=False),
    Column("removed_at", Float, nullable=False),
)
api_key = Table(
    "api_key",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256 of the key, hex
    Column("name", String(100), nullable=False),
    Column("created_at", String(32), nullable=False),
    Column("revoked_at", String(32)),
)
analysis = Table(
    "analysis",
    metadata,
    Column("ggrid", String(36), primary_key=True),
    Column("tenant", String(36), nullable=False),
    Column("created", String(32), nullable=False),
    Column("completed", String(32), nullable=False),
    Column("decision", String(16), nullable=False),
    Column("verdict", String(64), nullable=False),
    Column("tags", Text, nullable=False),  # JSON array
    Column("score", Float, nullable=False),
    Column("size", BigInteger, nullable=False),
    Index("analysis_completed", "completed"),
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)
    connection.execute(insert(clock).values(id=1, value=0))


# Migration n takes a database from version n to n + 1. Never change a released migration: append a new one.
MIGRATIONS: list[schema_version.Step] = [_create]


class StoreUnavailable(BridgeError):
    """The database cannot be opened, or is newer than this program; the text says what to do."""

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary  # a server may answer later; a file does not repair itself


STORAGE_ERRORS = (SQLAlchemyError, StoreUnavailable)  # what an unavailable database raises


def _place(url: str) -> str:
    """For messages. Those of PostgreSQL name the server themselves, and its URL may contain a password."""
    path = Database(url).path
    return f" {path}" if path is not None else ""


DATABASE_ID = "x-scan-database"  # a header of status answers, for the service in front of a core node


class Store:
    """One database; after `open` it has the newest schema."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None
        self._identity = ""

    def identity(self) -> str:
        """Differs between two SQLite files, on any machine, and between SQLite and PostgreSQL. Empty if unknown."""
        self._identity = self._identity or _identity(Database(self._url))
        return self._identity

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise StoreUnavailable("the database is not open", temporary=True)
        return self._engine

    def open(self) -> None:
        """Connect and migrate, unless already open. Raises StoreUnavailable."""
        if self._engine is not None:
            return
        target = Database(self._url)
        try:
            if target.path is not None:
                durable_files.make_directory(target.path.parent)
            engine = target.engine()
        except (DatabaseUnusable, OSError) as exc:
            why = database.reason(exc) if isinstance(exc, OSError) else exc
            raise StoreUnavailable(f"cannot use the database{_place(self._url)}: {why}") from exc
        try:
            schema_version.prepare(engine, MIGRATION_LOCK, MIGRATIONS)
            schema_version.prepare(engine, MIGRATION_LOCK, learning_tables.MIGRATIONS, learning_tables.VERSION_TABLE)
        except SQLAlchemyError as exc:
            may_recover = isinstance(exc, OperationalError) and engine.dialect.name == "postgresql"
            text = f"cannot use the database{_place(self._url)}: {database.reason(exc)}"
            raise StoreUnavailable(text, temporary=may_recover) from exc
        except DatabaseNewer as exc:
            raise StoreUnavailable(f"the database was {exc}") from exc
        self._engine = engine

    def probe(self) -> None:
        """Connect, and change nothing. Raises StoreUnavailable."""
        try:
            engine = Database(self._url).engine(wait_s=PROBE_S, statement_s=PROBE_S)
            try:
                engine.connect().close()
            finally:
                engine.dispose()
        except (DatabaseUnusable, SQLAlchemyError) as exc:
            why = database.reason(exc) if isinstance(exc, SQLAlchemyError) else exc
            raise StoreUnavailable(f"cannot use the database{_place(self._url)}: {why}") from exc

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            _limit_waits(connection)
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that takes the write lock at its start, so it cannot fail halfway for lack of it."""
        with database.writing(self.engine) as connection:
            _limit_waits(connection)
            yield connection


def _limit_waits(connection: Connection) -> None:
    """Waiting for a table that somebody has locked, for a backup or a repair, fails after a while."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_S * 1000:.0f}"))


def _identity(target: Database) -> str:
    if not target.is_sqlite:
        return "postgresql"
    if target.path is None or str(target.path) == ":memory:":
        return f"sqlite-{secrets.token_hex(8)}"
    try:
        found = target.path.stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        return ""
    return "sqlite-" + hashlib.sha256(f"{boot}:{found.st_dev}:{found.st_ino}".encode()).hexdigest()[:16]


def next_numbers(connection: Connection, count: int) -> int:
    """Reserve `count` change numbers, take the lock that orders changes, and return the first number."""
    connection.execute(update(clock).values(value=clock.c.value + count))
    return int(connection.execute(select(clock.c.value)).scalar_one()) - count + 1


_LISTS = (clock, list_state, list_entry)
_LEARNED = (learning_tables.learning_scope, learning_tables.learning_vote)  # an older version has none
_ROWS = 10_000  # copied at a time


def copy_knowledge(source: str, target: Store) -> bool:
    """Copy what decisions depend on, the lists and what was learned, from a database that is only read.

    `target` is empty. False: there is no file `source`. Raises StoreUnavailable.
    """
    place = Database(source)
    if place.path is not None and not place.path.exists():
        return False
    try:
        engine = place.reading_engine(wait_s=PROBE_S)
        try:
            with engine.connect() as reading, target.writing() as writing:
                learned = [table for table in _LEARNED if inspect(reading).has_table(table.name)]
                for table in (*_LISTS, *learned):
                    writing.execute(table.delete())
                    rows = reading.execution_options(yield_per=_ROWS).execute(select(table))
                    for part in rows.mappings().partitions():
                        writing.execute(insert(table), [dict(row) for row in part])
        finally:
            engine.dispose()
    except (DatabaseUnusable, SQLAlchemyError) as exc:
        why = database.reason(exc) if isinstance(exc, SQLAlchemyError) else exc
        raise StoreUnavailable(f"its lists and reports cannot be read from the database: {why}") from exc
    return True
