"""The tables of one component, in a database that may come and go.

Opened at the first use, and again in a new process or after an error, unless that was only a wait that took too long.
In SQLite each component has its own file, so that none waits for another one's lock; in PostgreSQL all of them share a
database. Everything is synchronous.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from bridge.errors import BridgeError
from bridge.runtime import database, durable_files, schema_version
from bridge.runtime.database import Database

WAIT_S = 5.0  # longest wait for a lock, and for a statement
_WAITED = ("57014", "55P03", "40P01")  # PostgreSQL: query_canceled, lock_not_available, deadlock_detected


class TablesFailed(BridgeError):
    """The database cannot be used at the moment."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a component needs. `steps`: step n migrates from version n to n + 1."""

    name: str  # at the beginning of messages; "": their callers say it
    steps: Sequence[schema_version.Step]
    version_table: str
    lock: int  # serialises migrations and, unless they need none, writers in PostgreSQL, as SQLite does by itself
    error: type[BridgeError]  # raised if the database cannot be used
    synchronous: str = "FULL"  # in SQLite: NORMAL loses the last moments in a power cut, but not in a crash
    connections: int = 5  # to a server; briefly, twice as many


class Tables:
    def __init__(self, place: Database, schema: Schema, *, only_reads: bool = False, wait_s: float = WAIT_S) -> None:
        self._place = place
        self._wait_s = wait_s
        self._schema = schema
        self._only_reads = only_reads  # changes nothing, neither the file nor the schema
        self._engine: Engine | None = None
        self._process = 0
        self._opening = threading.Lock()

    def exists(self) -> bool:
        """Whether there may be rows: nobody has to create a file only to learn that there are none."""
        path = self._place.path
        return path is None or path.exists()

    @contextmanager
    def writing(self, lock: int | None = None, *, in_turn: bool = True) -> Iterator[Connection]:
        """One transaction, `in_turn` after those of other writers, or only of those that name the same lock.

        Without a turn, each statement must be right whatever others write to PostgreSQL at the same time. Raises the
        error of the schema.
        """
        number = (lock or self._schema.lock) if in_turn else None
        with self._translated(), database.writing(self._opened(), number) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Raises the error of the schema."""
        with self._translated(), self._opened().connect() as connection:
            yield connection

    def close(self) -> None:
        """Does not wait for a thread that is just opening the tables: a server that hangs would delay a stop."""
        if self._engine is None:
            return
        with self._opening:
            if self._engine is not None:
                self._engine = None
                self._dispose()

    def _opened(self) -> Engine:
        with self._opening:
            if self._engine is None or self._process != os.getpid():
                self._engine = None  # while it is being opened, there is nothing to close
                engine = self._reader() if self._only_reads else self._writer()
                self._dispose = weakref.finalize(self, _close, engine, os.getpid())
                self._engine, self._process = engine, os.getpid()
            return self._engine

    def _reader(self) -> Engine:
        return self._place.reading_engine(wait_s=self._wait_s, statement_s=self._wait_s)

    def _writer(self) -> Engine:
        schema, wait_s = self._schema, self._wait_s
        engine = self._place.engine(
            wait_s=wait_s, connections=schema.connections, statement_s=wait_s, synchronous=schema.synchronous
        )
        if self._place.path is not None:  # before SQLite makes its journals, which get the same owner
            durable_files.refuse_planted_database(self._place.path)
            durable_files.make_private(self._place.path)
            durable_files.give_to_owner(self._place.path)
        schema_version.prepare(engine, schema.lock, schema.steps, schema.version_table)
        return engine

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError) as exc:
            if not has_waited(exc):
                self.close()
            raise self._failed(database.reason(exc)) from exc
        except (schema_version.DatabaseNewer, database.DatabaseUnusable) as exc:
            self.close()
            raise self._failed(str(exc)) from exc

    def _failed(self, why: str) -> BridgeError:
        return self._schema.error(f"{self._schema.name}: {why}" if self._schema.name else why)


def has_waited(exc: Exception) -> bool:
    """Whether it only waited too long. Opening the tables again could wait for the same lock, even to read."""
    cause = getattr(exc, "orig", None)
    is_busy = getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
    return is_busy or getattr(cause, "sqlstate", None) in _WAITED


def _close(engine: Engine, process: int) -> None:
    """In a child process, the connections are its parent's, and stay open."""
    engine.dispose(close=process == os.getpid())
