"""Tables of one component in a database: opened at their first use, and again after each error.

So a database may come and go while a process runs. Everything is synchronous and must run in a thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from bridge.errors import BridgeError
from bridge.runtime import database, durable_files
from bridge.runtime.database import Database

WAIT_S = 5.0  # for a lock, a connection, one statement


class TableStoreError(BridgeError):
    """The tables cannot be used now."""


@dataclass(slots=True)
class TableStore:
    """A component inherits from it, and says which tables it has."""

    place: Database
    wait_s: float = WAIT_S
    _engine: Engine | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    steps: ClassVar[Sequence[database.Step]] = ()  # migrations
    version_table: ClassVar[str] = ""
    migration_lock: ClassVar[int] = 0  # in PostgreSQL
    failure: ClassVar[type[TableStoreError]] = TableStoreError
    what: ClassVar[str] = ""  # named in errors
    synchronous: ClassVar[str] = "FULL"  # in SQLite

    def close(self) -> None:
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    @contextmanager
    def writing(self, lock: int | None = None) -> Iterator[Connection]:
        """One transaction; with `lock`, after others that name the same number. Raises TableStoreError."""
        with self._errors(), database.writing(self._opened(), lock) as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Raises TableStoreError."""
        with self._errors(), self._opened().connect() as connection:
            yield connection

    def _opened(self) -> Engine:
        with self._lock:
            if self._engine is None:
                engine = self.place.engine(
                    wait_s=self.wait_s, statement_s=self.wait_s, synchronous=self.synchronous
                )  # fmt: skip
                if self.place.path is not None:  # before SQLite makes its journals, which get the same owner
                    durable_files.make_private(self.place.path)
                    durable_files.give_to_owner(self.place.path)
                with database.writing(engine, self.migration_lock) as connection:
                    database.migrate(connection, self.steps, self.version_table)
                self._engine = engine
            return self._engine

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (SQLAlchemyError, OSError, database.DatabaseNewer, database.DatabaseUnusable) as exc:
            self.close()
            why = str(exc) if isinstance(exc, BridgeError) else database.reason(exc)
            raise self.failure(f"{self.what} cannot be used: {why}") from exc
