"""Used release tokens: each code of a token is used once.

SQLite serves all workers of this machine and survives a restart; PostgreSQL also serves several machines. A row is kept
until its token has expired. Everything is synchronous and must run in a thread. If this is wrong, someone who has seen
a released mail can send it once more, unscanned.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Column, Connection, Float, Index, LargeBinary, MetaData, Table, delete, insert, select

from bridge.quarantine.release_token import VALID_S
from bridge.runtime import schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import Schema, Tables, TablesFailed

BUSY_S = 2.0  # longest wait for the lock, and for a statement
VERSION_TABLE = "used_release_token_schema"
_SPARE_S = 86400.0  # clocks of machines differ, and a row must outlive its token on all of them

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
MIGRATIONS: list[schema_version.Step] = [_create]


class UsedTokensFailed(TablesFailed):
    """The database cannot be used now: no token can be accepted."""


_SCHEMA = Schema(
    "used release tokens", MIGRATIONS, VERSION_TABLE, 0x0DDC0DE5, UsedTokensFailed, connections=1
)  # fmt: skip


class UsedTokens:
    """Opened when the first token is used, and again in a new process."""

    _only_reads = False

    def __init__(self, place: Database, wait_s: float = BUSY_S) -> None:
        self._tables = Tables(place, _SCHEMA, only_reads=self._only_reads, wait_s=wait_s)

    def take(self, codes: Collection[bytes], now: float) -> bool:
        """Mark these codes as used; False, and no change, if one of them is. Raises UsedTokensFailed."""
        with self._tables.writing() as connection:
            if _is_used(connection, codes):
                return False
            connection.execute(delete(used_code).where(used_code.c.used_at < now - VALID_S - _SPARE_S))
            connection.execute(insert(used_code), [{"code": code, "used_at": now} for code in set(codes)])
        return True

    def has(self, codes: Collection[bytes]) -> bool:
        """Whether one of these codes was used. Raises UsedTokensFailed."""
        with self._tables.reading() as connection:
            return _is_used(connection, codes)

    def give_back(self, codes: Collection[bytes]) -> None:
        """Unmark these codes: the mail was not delivered after all. Raises UsedTokensFailed."""
        with self._tables.writing() as connection:
            for code in codes:
                connection.execute(delete(used_code).where(used_code.c.code == code))

    def close(self) -> None:
        self._tables.close()


class UnmarkedTokens(UsedTokens):
    """Knows which codes were used, and marks none: for a mail that is only looked at."""

    _only_reads = True

    def take(self, codes: Collection[bytes], now: float) -> bool:
        return not self.has(codes)

    def has(self, codes: Collection[bytes]) -> bool:
        return self._tables.exists() and super().has(codes)

    def give_back(self, codes: Collection[bytes]) -> None:
        """Does nothing: no code was marked."""


def _is_used(connection: Connection, codes: Collection[bytes]) -> bool:
    query = select(used_code.c.code)
    return any(connection.execute(query.where(used_code.c.code == code)).first() for code in codes)
