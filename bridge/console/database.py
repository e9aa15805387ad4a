"""The console's own tables: users, sessions, sign-in links, failed attempts, the audit log.

In the state database if that is a server, otherwise in an SQLite file of the console's own, so that its writing never
holds a lock that mail waits for. Everything is synchronous and must run in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import BigInteger, Column, Connection, Engine, Float, Index, Integer, MetaData, String, Table, Text
from sqlalchemy.exc import SQLAlchemyError

from bridge.errors import BridgeError
from bridge.runtime import database, durable_files
from bridge.runtime.database import Database

WAIT_S = 5.0  # for a lock, a connection, one statement
FILE = "console.sqlite"


class ConsoleStoreError(BridgeError):
    """The console's tables cannot be used now."""


metadata = MetaData()
users = Table(
    "console_user",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("password", String(300), nullable=False),  # argon2; "": signs in by a link only
    Column("role", String(20), nullable=False),
    Column("tenants", Text, nullable=False),
    Column("made_at", Float(53), nullable=False),
    Column("seen_at", Float(53), nullable=False, server_default="0"),  # the last sign-in
)
sessions = Table(
    "console_session",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("label", String(16), nullable=False, unique=True),  # names it on pages; says nothing about the session's id
    Column("name", String(100), nullable=False),
    Column("role", String(20), nullable=False),
    Column("tenants", Text, nullable=False),
    Column("provider", String(300), nullable=False),
    Column("address", String(64), nullable=False),
    Column("browser", String(300), nullable=False),
    Column("begun_at", Float(53), nullable=False),
    Column("used_at", Float(53), nullable=False),
    Index("console_session_name", "name"),
)
links = Table(
    "console_link",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("until", Float(53), nullable=False),
)
attempts = Table(
    "console_attempt",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("about", String(120), nullable=False),  # `user:NAME` or `from:ADDRESS`
    Column("at", Float(53), nullable=False),
    Index("console_attempt_about", "about", "at"),
)
audit = Table(
    "console_audit",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("name", String(100), nullable=False),
    Column("role", String(20), nullable=False),
    Column("address", String(64), nullable=False),
    Column("action", String(60), nullable=False),
    Column("mail", String(64), nullable=False),  # our id
    Column("detail", String(1000), nullable=False),
    Column("result", String(20), nullable=False),  # started, done, refused, failed
    Index("console_audit_name", "name", "seq"),
    Index("console_audit_mail", "mail", "seq"),
    Index("console_audit_at", "at"),
    sqlite_autoincrement=True,  # numbers are never used again: they are the order
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[database.Step] = [_create]
VERSION_TABLE = "console_schema"
_LOCK = 0xC0A501E  # for the migration, in PostgreSQL


@dataclass(slots=True)
class ConsoleStore:
    """Opened at its first use, again after each error, so a database may come and go."""

    place: Database
    wait_s: float = WAIT_S
    _engine: Engine | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def close(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextmanager
    def writing(self, lock: int | None = None) -> Iterator[Connection]:
        """One transaction; with `lock`, after others that name the same number. Raises ConsoleStoreError."""
        with self._errors(), database.writing(self._opened(), lock) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Raises ConsoleStoreError."""
        with self._errors(), self._opened().connect() as connection:
            yield connection

    def _opened(self) -> Engine:
        with self._lock:
            if self._engine is None:
                engine = self.place.engine(wait_s=self.wait_s, statement_s=self.wait_s)
                if self.place.path is not None:  # before SQLite makes its journals, which get the same owner
                    durable_files.make_private(self.place.path)
                    durable_files.give_to_owner(self.place.path)
                with database.writing(engine, _LOCK) as connection:
                    database.migrate(connection, MIGRATIONS, VERSION_TABLE)
                self._engine = engine
            return self._engine

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError, database.DatabaseNewer, database.DatabaseUnusable) as exc:
            self.close()
            why = str(exc) if isinstance(exc, BridgeError) else database.reason(exc)
            raise ConsoleStoreError(f"the console's database cannot be used: {why}") from exc
