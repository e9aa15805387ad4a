"""Databases by URL: SQLite in a file of ours, PostgreSQL when several machines share it. One code path for both.

Everything is synchronous; whoever calls from the event loop does so in a thread. No error's text
has the URL in it, because that may hold a password; `Database` shows none.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    func,
    insert,
    make_url,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from bridge.errors import BridgeError

MEMORY = "sqlite://"  # gone with the engine

# A server that vanished without a word is noticed within seconds, not when TCP gives up.
_POSTGRESQL = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

Step = Callable[[Connection], None]


class DatabaseNewer(BridgeError):
    """It was made by a newer version of this program."""


class DatabaseUnusable(BridgeError):
    """The URL is wrong, or its driver is missing; the text says which."""


@dataclass(frozen=True, slots=True)
class Database:
    """Where it is, and the password if that is not part of the URL."""

    url: str = field(repr=False)
    password: str | None = field(default=None, repr=False)

    @classmethod
    def file(cls, path: Path) -> Database:
        return cls(f"sqlite:///{path}")

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def path(self) -> Path | None:
        """Its file; None when it is on a server or in memory."""
        path = self.url.partition(":///")[2] if self.is_sqlite else ""
        return Path(path) if path else None

    def engine(
        self, *, wait_s: float = 10.0, connections: int = 5, synchronous: str = "FULL", statement_s: float = 0.0
    ) -> Engine:
        """Not connected yet. `wait_s` is for a lock or a server, `statement_s` for one statement of a server.

        Raises DatabaseUnusable.
        """
        try:
            if not self.is_sqlite:
                return self._server(wait_s, connections, statement_s)
            if self.path is None:
                engine = create_engine(self.url, poolclass=StaticPool, connect_args={"check_same_thread": False})
            else:
                engine = create_engine(self.url, connect_args={"check_same_thread": False, "timeout": wait_s})
        except (SQLAlchemyError, ImportError, ValueError) as exc:
            raise DatabaseUnusable(reason(exc)) from exc
        if (path := self.path) is not None:
            event.listen(engine, "do_connect", lambda *_: _make_private_if_possible(path))
        event.listen(engine, "connect", lambda one, _record: _prepare_sqlite(one, _record, wait_s, synchronous))
        event.listen(engine, "begin", _begin_sqlite)
        return engine

    def _server(self, wait_s: float, connections: int, statement_s: float) -> Engine:
        url = make_url(self.url)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        if self.password is not None:
            url = url.set(password=self.password)
        arguments: dict[str, Any] = {**_POSTGRESQL, "connect_timeout": max(2, min(5, round(wait_s)))}
        if statement_s:
            arguments["options"] = f"-c statement_timeout={statement_s * 1000:.0f}"
        return create_engine(
            url, pool_size=connections, max_overflow=connections, pool_pre_ping=True, pool_timeout=wait_s,
            connect_args=arguments,
        )  # fmt: skip


@contextmanager
def writing(engine: Engine, lock: int | None = None) -> Iterator[Connection]:
    """One transaction that takes SQLite's write lock at its start, so it never fails half way for want of it.

    With `lock` the transactions that name the same number follow each other in PostgreSQL too.
    """
    with engine.connect().execution_options(immediate=True) as connection, connection.begin():
        if lock is not None and engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(lock)))
        yield connection


def probe(database: Database) -> None:
    """Connect, make a table, and take it back: the server, the password, the rights. Raises DatabaseUnusable."""
    engine = database.engine(wait_s=5.0, connections=1)
    table = Table("scanbridge_probe", MetaData(), Column("x", Integer))
    try:
        with engine.connect().execution_options(immediate=True) as connection, connection.begin() as transaction:
            table.create(connection)
            transaction.rollback()
    except SQLAlchemyError as exc:
        raise DatabaseUnusable(reason(exc)) from exc
    finally:
        engine.dispose()


def migrate(connection: Connection, steps: Sequence[Step], table: str = "schema_version") -> None:
    """Bring a schema to the newest version, which `table` remembers. Raises DatabaseNewer.

    Step n brings it from version n to n + 1. Parts that may share a database have a `table` each.
    The transaction is one of `writing` with a lock: several processes may start at once.
    """
    schema = Table(table, MetaData(), Column("version", Integer, nullable=False))
    schema.create(connection, checkfirst=True)
    version = connection.execute(select(schema.c.version)).scalar()
    if version is None:
        connection.execute(insert(schema).values(version=0))
        version = 0
    if version > len(steps):
        raise DatabaseNewer("made by a newer version of this program")
    if version < len(steps):
        for step in steps[version:]:
            step(connection)
        connection.execute(update(schema).values(version=len(steps)))


def reason(exc: BaseException) -> str:
    """Why it failed, in one line, without the URL."""
    if isinstance(exc, ImportError):
        return "its driver is not installed (pip install 'scanbridge[postgresql]')"
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    return (str(getattr(exc, "orig", None) or "") or type(exc).__name__).splitlines()[0]


def make_private(path: Path) -> None:
    """A new file is for our eyes only; SQLite, which gives its journals the same mode, would take the umask's.

    One that exists is not opened: closing it again would end every lock that this process has on it, and another
    process, which then takes itself for the last one, would remove the journal that we still write to.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        pass


def _make_private_if_possible(path: Path) -> None:
    with suppress(OSError):  # SQLite finds it, too, and says it in its own words
        make_private(path)


def _prepare_sqlite(connection: Any, _record: ConnectionPoolEntry, wait_s: float, synchronous: str) -> None:
    """WAL, so that readers never wait. The change to it does not wait by itself: when two start, one tries again."""
    connection.isolation_level = None  # we say BEGIN ourselves
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    connection.execute(f"PRAGMA synchronous={synchronous}")


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")
