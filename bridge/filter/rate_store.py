"""The counts of mail by client and minute, in the database that bridges or workers share.

Each process adds what it has counted and reads the sums, in one transaction, about once a second. There is one row per
client and minute, whatever the number of bridges; rows that are older than two minutes are removed. The minutes are
those of the server's clock. Everything is synchronous.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, delete, select

from bridge.filter.mail_rates import Count
from bridge.runtime import database, schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import Schema, Tables, TablesFailed

FILE = "rates.sqlite"
VERSION_TABLE = "rate_schema"
MAX_READ = 5_000  # clients: those with the most mail
_WAIT_S = 2.0  # then the counts wait for the next second

metadata = MetaData()
mail_rate = Table(
    "mail_rate",
    metadata,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("client", String(100), primary_key=True),
    Column("mails", BigInteger, nullable=False),
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[schema_version.Step] = [_create]


class RatesFailed(TablesFailed):
    """The database cannot be used at the moment."""


_SCHEMA = Schema("", MIGRATIONS, VERSION_TABLE, 0x2A7E11F1, RatesFailed, synchronous="NORMAL", connections=1)


class RateStore:
    def __init__(self, place: Database) -> None:
        self._tables = Tables(place, _SCHEMA, wait_s=_WAIT_S)
        self._swept = 0  # the minute in which we last removed old rows

    def exchange(self, counts: Sequence[Count], least: int) -> tuple[list[Count], float]:
        """Add these counts. Returns the sums of at least `least` mails, and the server's time. Raises RatesFailed."""
        with self._tables.writing(in_turn=False) as connection:
            now = database.now(connection)
            minute = int(now // 60)
            if counts:
                _add(connection, counts)
            if self._swept != minute:  # rows of the future were written before a clock was set back
                old = (mail_rate.c.minute < minute - 1) | (mail_rate.c.minute > minute + 1)
                connection.execute(delete(mail_rate).where(old))
                self._swept = minute
            sums = select(mail_rate).where(mail_rate.c.mails >= least).order_by(mail_rate.c.mails.desc())
            return [Count(*row) for row in connection.execute(sums.limit(MAX_READ))], now

    def close(self) -> None:
        self._tables.close()


def _add(connection: Connection, counts: Sequence[Count]) -> None:
    """In the same order everywhere: two processes that lock each other's rows would wait forever."""
    statement = database.insert_into(connection, mail_rate)
    total = mail_rate.c.mails + statement.excluded.mails
    added = statement.on_conflict_do_update(index_elements=list(mail_rate.primary_key), set_={"mails": total})
    connection.execute(added, [count._asdict() for count in sorted(counts)])
