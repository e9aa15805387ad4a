"""Databases by URL: SQLite in a local file, or PostgreSQL shared by several machines. One code path for both.

Everything is synchronous; callers in the event loop must use a thread. Errors and `repr` never contain the URL,
because it may contain a password.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    event,
    extract,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry, StaticPool

from bridge.errors import BridgeError
from bridge.runtime import durable_files
from bridge.runtime.storable import storable_row

MEMORY = "sqlite://"  # exists as long as the engine

# A server that disappeared is noticed within seconds, not after TCP's own timeouts.
_POSTGRESQL = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
_LONGER_S = 5.0  # longer than a statement may take: the server would have said so by then
_LONGEST_S = 900.0  # for a statement that has no limit, such as a change of the schema


class DatabaseUnusable(BridgeError):
    """The URL is wrong, or its driver is not installed; the text says which."""


@dataclass(frozen=True, slots=True)
class Database:
    """The URL, and the password if it is not part of the URL.

    `reread` reads the password again, because it may change while we run; None if it cannot be read.
    """

    url: str = field(repr=False)
    password: str | None = field(default=None, repr=False)
    reread: Callable[[], str | None] = field(default=lambda: None, repr=False, compare=False)

    @classmethod
    def file(cls, path: Path) -> Database:
        return cls(f"sqlite:///{path}")

    @property
    def is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @property
    def path(self) -> Path | None:
        """Its file; None for a server or a database in memory."""
        path = self.url.partition(":///")[2] if self.is_sqlite else ""
        return Path(path) if path else None

    def engine(
        self,
        *,
        wait_s: float = 10.0,
        connections: int = 5,
        synchronous: str = "FULL",
        statement_s: float = 0.0,
        longer_s: float = _LONGER_S,
    ) -> Engine:
        """An engine, not connected yet. `wait_s` limits waits for a lock or a server, `statement_s` one statement.

        A server that keeps no limit, because it is frozen, is given up `longer_s` later. Raises DatabaseUnusable.
        """
        try:
            if not self.is_sqlite:
                return self._server(wait_s, connections, statement_s, longer_s)
            if self.path is None:
                engine = create_engine(self.url, poolclass=StaticPool, connect_args={"check_same_thread": False})
            else:
                engine = create_engine(self.url, connect_args={"check_same_thread": False, "timeout": wait_s})
        except (SQLAlchemyError, ImportError, ValueError) as exc:
            raise DatabaseUnusable(reason(exc)) from exc
        if (path := self.path) is not None:
            event.listen(engine, "do_connect", lambda *_: _secure(path))
            event.listen(engine, "do_connect", lambda *_: _refuse_full(path))
        event.listen(engine, "connect", lambda opened, entry: _prepare_sqlite(opened, entry, wait_s, synchronous))
        event.listen(engine, "begin", lambda connection: _begin_sqlite(connection, self.path))
        _accept_any_text(engine)
        if self.path is not None:
            _close_late_returns(engine)
        return engine

    def reading_engine(self, *, wait_s: float = 10.0, statement_s: float = 0.0) -> Engine:
        """An engine that changes nothing: it creates no file and needs no right to write. Raises DatabaseUnusable."""
        if self.path is None:
            return self.engine(wait_s=wait_s, connections=1, statement_s=statement_s)
        path = self.path.absolute()
        engine = create_engine(f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true", connect_args={"timeout": wait_s})
        event.listen(engine, "do_connect", lambda *_: _refuse_planted(path))
        _accept_any_text(engine)
        return engine

    def _server(self, wait_s: float, connections: int, statement_s: float, longer_s: float) -> Engine:
        url = make_url(self.url)
        if url.drivername == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
        arguments: dict[str, Any] = {**_POSTGRESQL, "connect_timeout": max(2, min(5, round(wait_s)))}
        if statement_s:
            arguments["options"] = f"-c statement_timeout={statement_s * 1000:.0f}"
        engine = create_engine(
            url, pool_size=connections, max_overflow=connections, pool_pre_ping=True, pool_timeout=wait_s,
            connect_args=arguments,
        )  # fmt: skip
        event.listen(engine, "do_connect", lambda _dialect, _entry, _, values: self._add_password(values))
        if url.drivername == "postgresql+psycopg":
            from bridge.runtime.bounded_connection import bounded  # needs the driver, which is optional

            kind = bounded((statement_s or _LONGEST_S) + longer_s)
            event.listen(engine, "do_connect", lambda _dialect, _entry, given, values: kind.connect(*given, **values))
        _close_late_returns(engine)
        _accept_any_text(engine)
        return engine

    def newest_password(self) -> str | None:
        return self.reread() or self.password

    def _add_password(self, values: dict[str, Any]) -> None:
        if (password := self.newest_password()) is not None:
            values["password"] = password


@contextmanager
def writing(engine: Engine, lock: int | None = None) -> Iterator[Connection]:
    """One transaction that takes SQLite's write lock at its start, so it cannot fail to get it later.

    With `lock`, transactions that name the same number also run one after the other in PostgreSQL.
    """
    with engine.connect().execution_options(immediate=True) as connection, connection.begin():
        if lock is not None and engine.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(lock)))
        yield connection


def insert_into(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An insert statement that can say what to do if the row exists."""
    return (postgresql.Insert if connection.dialect.name == "postgresql" else sqlite.Insert)(table)


def replace_in(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An insert statement that replaces the row with the same primary key. Other writers need no lock for that."""
    statement = insert_into(connection, table)
    values = {column.name: statement.excluded[column.name] for column in table.columns if not column.primary_key}
    key = list(table.primary_key)
    if not values:
        return statement.on_conflict_do_nothing(index_elements=key)
    return statement.on_conflict_do_update(index_elements=key, set_=values)


def now(connection: Connection) -> float:
    """The time that all users of the database share: the server's, if they are on several machines."""
    if connection.dialect.name == "sqlite":
        return time.time()
    return float(connection.execute(select(extract("epoch", func.clock_timestamp()))).scalar_one())


def probe(database: Database) -> None:
    """Connect, create a table, roll back: tests server, password and rights. Raises DatabaseUnusable."""
    engine = database.engine(wait_s=5.0, connections=1, statement_s=5.0)
    table = Table("scanbridge_probe", MetaData(), Column("x", Integer))
    try:
        with engine.connect().execution_options(immediate=True) as connection, connection.begin() as transaction:
            table.create(connection)
            transaction.rollback()
    except SQLAlchemyError as exc:
        raise DatabaseUnusable(reason(exc)) from exc
    finally:
        engine.dispose()


def reason(exc: BaseException) -> str:
    """Why it failed: one line, without the URL."""
    if isinstance(exc, ImportError):
        return "its driver is not installed (pip install 'scanbridge[postgresql]')"
    if isinstance(exc, OSError):
        return exc.strerror or type(exc).__name__
    return (str(getattr(exc, "orig", None) or "") or type(exc).__name__).splitlines()[0]


def _close_late_returns(engine: Engine) -> None:
    """Close what another thread returns after `dispose`, which closes only the connections that nobody uses."""
    disposed = threading.Event()
    event.listen(engine, "engine_disposed", lambda _engine: disposed.set())
    event.listen(engine, "checkin", lambda _opened, entry: disposed.is_set() and entry.invalidate())


def _accept_any_text(engine: Engine) -> None:
    """NUL and half characters are changed on the way in, in what is written and in what is searched for alike."""

    def change(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, _many: bool) -> Any:
        if isinstance(values, list):
            return statement, [storable_row(row) for row in values]
        return statement, storable_row(values)

    event.listen(engine, "before_cursor_execute", change, retval=True)


def _secure(path: Path) -> None:
    _refuse_planted(path)
    with suppress(OSError):  # SQLite will report the same error
        durable_files.make_private(path)


def _refuse_planted(path: Path) -> None:
    try:
        durable_files.refuse_planted_database(path)
    except PermissionError as exc:
        raise sqlite3.OperationalError(f"{exc.filename} {exc.strerror}") from exc  # SQLAlchemy translates this one


def _refuse_full(path: Path) -> None:
    """Raises the same error as SQLite."""
    try:
        durable_files.refuse_full_database(path)
    except OSError as exc:
        if exc.errno == errno.ENOSPC:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
            raise error from exc


def _prepare_sqlite(connection: Any, _record: ConnectionPoolEntry, wait_s: float, synchronous: str) -> None:
    """Use WAL, so that readers never wait. Switching to it ignores the timeout, so we retry."""
    connection.isolation_level = None  # we send BEGIN ourselves
    deadline = time.monotonic() + wait_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as exc:
            if time.monotonic() > deadline or exc.sqlite_errorcode == sqlite3.SQLITE_READONLY:
                raise
            time.sleep(0.01)
    connection.execute(f"PRAGMA synchronous={synchronous}")


def _begin_sqlite(connection: Connection, path: Path | None) -> None:
    immediate = connection.get_execution_options().get("immediate", False)
    statement = "BEGIN IMMEDIATE" if immediate else "BEGIN"
    if immediate and path is not None:
        try:
            _refuse_full(path)
        except sqlite3.OperationalError as exc:  # SQLAlchemy does not translate this one
            raise OperationalError(statement, None, exc) from exc
    connection.exec_driver_sql(statement)
