"""The database: SQLite by default, PostgreSQL by URL, one code path for both.

Synchronous SQLAlchemy Core; whoever calls from the event loop does so in a thread. Several
processes may share one database: migrations run under a lock, and every change of a list first
takes the one row of `clock`. That row makes changes commit in the order of their numbers, so a
reader that has seen change 7 has seen everything before it, in PostgreSQL too.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    create_engine,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from bridge.errors import BridgeError

BUSY_TIMEOUT_MS = 10_000
MIGRATION_LOCK = 0x5CA7B12D  # any number that nobody else uses as an advisory lock

# A server that vanished without a word is noticed within seconds, not when TCP gives up.
POSTGRESQL = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

metadata = MetaData()

schema_version = Table("schema_version", metadata, Column("version", Integer, nullable=False))
clock = Table(
    "clock",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("value", BigInteger, nullable=False),
)
list_state = Table(
    "list_state",
    metadata,
    Column("scope", String(36), primary_key=True),  # a tenant's UUID, or "" for the deployment
    Column("name", String(64), primary_key=True),
    Column("size", BigInteger, nullable=False),
)
list_entry = Table(
    "list_entry",
    metadata,
    Column("scope", String(36), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("entry", Text, primary_key=True),  # in its one spelling
    Column("shown", Text),  # as it was written, when that differs
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
    metadata.create_all(connection, [t for t in metadata.sorted_tables if t is not schema_version])
    connection.execute(insert(clock).values(id=1, value=0))


# Number n brings a database from version n to n + 1. Never change one that was released: add one.
MIGRATIONS: list[Callable[[Connection], None]] = [_create]


class StoreUnavailable(BridgeError):
    """The database cannot be opened or is newer than this program; the text says what to do."""

    def __init__(self, text: str, *, temporary: bool = False) -> None:
        super().__init__(text)
        self.temporary = temporary  # a server that does not answer now; a file never comes back by itself


STORAGE_ERRORS = (SQLAlchemyError, StoreUnavailable)  # what work on a database that is away raises


class Store:
    """A database; after `open` it is at the newest schema."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise StoreUnavailable("the database is not open", temporary=True)
        return self._engine

    def open(self) -> None:
        """Connect and migrate, if that was not done yet. Raises StoreUnavailable."""
        if self._engine is not None:
            return
        engine = _engine(self._url)
        try:
            _migrate(engine)
        except SQLAlchemyError as exc:
            engine.dispose()
            away = isinstance(exc, OperationalError) and engine.dialect.name == "postgresql"
            raise StoreUnavailable(f"the database cannot be used: {_reason(exc)}", temporary=away) from exc
        except BaseException:
            engine.dispose()
            raise
        self._engine = engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction that takes the write lock at its start, so it never fails half way for want of it."""
        with _writing(self.engine) as connection:
            yield connection


@contextmanager
def _writing(engine: Engine) -> Iterator[Connection]:
    with engine.connect().execution_options(immediate=True) as connection, connection.begin():
        yield connection


def _migrate(engine: Engine) -> None:
    with _writing(engine) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
        schema_version.create(connection, checkfirst=True)
        version = connection.execute(select(schema_version.c.version)).scalar()
        if version is None:
            connection.execute(insert(schema_version).values(version=0))
            version = 0
        if version > len(MIGRATIONS):
            raise StoreUnavailable("the database was made by a newer version of this program")
        for step in MIGRATIONS[version:]:
            step(connection)
        connection.execute(update(schema_version).values(version=len(MIGRATIONS)))


def next_numbers(connection: Connection, count: int) -> int:
    """Take `count` change numbers and the lock that orders them; the answer is the first."""
    connection.execute(update(clock).values(value=clock.c.value + count))
    return int(connection.execute(select(clock.c.value)).scalar_one()) - count + 1


def _engine(url: str) -> Engine:
    if url.startswith("postgresql://"):
        url = "postgresql+psycopg://" + url.removeprefix("postgresql://")
    try:
        if not url.startswith("sqlite"):
            return create_engine(
                url, pool_size=5, max_overflow=5, pool_pre_ping=True, pool_timeout=10, connect_args=POSTGRESQL
            )
        path = Path(url.partition(":///")[2])
        path.parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, connect_args={"check_same_thread": False, "timeout": BUSY_TIMEOUT_MS / 1000})
    except (SQLAlchemyError, ImportError, OSError) as exc:
        raise StoreUnavailable(f"the database cannot be used: {_reason(exc)}") from exc
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: ConnectionPoolEntry) -> None:
    assert isinstance(connection, sqlite3.Connection)
    connection.isolation_level = None  # we say BEGIN ourselves
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    _use_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")


def _use_wal(connection: sqlite3.Connection) -> None:
    """The change to WAL does not wait for the busy timeout: when two processes start, one must try again."""
    deadline = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _reason(exc: Exception) -> str:
    """Without the URL: it may hold a password."""
    if isinstance(exc, ImportError):
        return "its driver is not installed (pip install 'scanbridge[postgresql]')"
    return str(getattr(exc, "orig", None) or type(exc).__name__).splitlines()[0]
