"""Used release tokens: each code of a token is used once.

SQLite serves all workers of this machine and survives a restart; PostgreSQL also serves several machines. A row is kept
until its token has expired. Everything is synchronous and must run in a thread. If this is wrong, someone who has seen
a released mail can send it once more, unscanned.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy import Column, Connection, Engine, Float, Index, LargeBinary, MetaData, Table, delete, insert, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from bridge.errors import BridgeError
from bridge.quarantine.release_token import VALID_S
from bridge.runtime import database
from bridge.runtime.database import Database

BUSY_S = 2.0  # longest wait for the lock, and for a statement
VERSION_TABLE = "used_release_token_schema"
_SPARE_S = 86400.0  # clocks of machines differ, and a row must outlive its token on all of them
_LOCK = 0x0DDC0DE5  # serialises writers in PostgreSQL, as SQLite does by itself

metadata = MetaData()
used_code = Table(
    "used_release_token",
    metadata,
    Column("code", LargeBinary(24), primary_key=True),
    Column("used_at", Float, nullable=False),  # seconds since 1970
    Index("used_release_token_used_at", "used_at"),
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[database.Step] = [_create]


class UsedTokensFailed(BridgeError):
    """The database cannot be used now: no token can be accepted."""


class UsedTokens:
    """Opened when the first token is used, and again in a new process."""

    def __init__(self, place: Database) -> None:
        self._place = place
        self._engine: Engine | None = None
        self._process = 0
        self._opening = threading.Lock()

    def take(self, codes: Collection[bytes], now: float) -> bool:
        """Mark these codes as used; False, and no change, if one of them is. Raises UsedTokensFailed."""
        try:
            with self._writing() as connection:
                connection.execute(delete(used_code).where(used_code.c.used_at < now - VALID_S - _SPARE_S))
                connection.execute(insert(used_code), [{"code": code, "used_at": now} for code in set(codes)])
        except IntegrityError:
            return False
        return True

    def has(self, codes: Collection[bytes]) -> bool:
        """Whether one of these codes was used. Raises UsedTokensFailed."""
        query = select(used_code.c.code)
        with _translated(), self._opened().connect() as connection:
            return any(connection.execute(query.where(used_code.c.code == code)).first() for code in codes)

    def give_back(self, codes: Collection[bytes]) -> None:
        """The mail was not delivered after all. Raises UsedTokensFailed."""
        with self._writing() as connection:
            for code in codes:
                connection.execute(delete(used_code).where(used_code.c.code == code))

    def close(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with _translated(), database.writing(self._opened(), _LOCK) as connection:
            yield connection

    def _opened(self) -> Engine:
        with self._opening:
            if self._engine is None or self._process != os.getpid():
                engine = self._place.engine(wait_s=BUSY_S, connections=1, statement_s=BUSY_S)
                database.prepare(engine, _LOCK, MIGRATIONS, VERSION_TABLE)
                weakref.finalize(self, engine.dispose)
                self._engine, self._process = engine, os.getpid()
            return self._engine


class UnmarkedTokens(UsedTokens):
    """Knows which codes were used, and marks none: for a mail that is only looked at."""

    def take(self, codes: Collection[bytes], now: float) -> bool:
        return not self.has(codes)

    def has(self, codes: Collection[bytes]) -> bool:
        path = self._place.path
        return (path is None or path.exists()) and super().has(codes)

    def give_back(self, codes: Collection[bytes]) -> None:
        """None was taken."""

    def _opened(self) -> Engine:
        with self._opening:
            if self._engine is None:
                self._engine = self._place.reading_engine(wait_s=BUSY_S)
                weakref.finalize(self, self._engine.dispose)
            return self._engine


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except IntegrityError:
        raise
    except (SQLAlchemyError, OSError) as exc:
        raise UsedTokensFailed(f"used release tokens: {database.reason(exc)}") from exc
    except (database.DatabaseNewer, database.DatabaseUnusable) as exc:
        raise UsedTokensFailed(f"used release tokens: {exc}") from exc
