"""Turns: work that one process does for all that share a database, and whose result the others use.

A row for each kind of work holds who is doing it, until when, and the last result. Each caller says how old a result it
accepts; the first caller after that takes the turn, with one conditional statement. A process that dies in the middle
keeps others out only until its time is up. Time is the server's, because the clocks of machines differ.

Everything is synchronous. If this is wrong, the work is done twice, or not for a while: use it only for work that may
be repeated, such as counting.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Float, MetaData, String, Table, Text, select, update

from bridge.runtime import database, schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import WAIT_S, Schema, Tables, TablesFailed

VERSION_TABLE = "turn_schema"

metadata = MetaData()
turn = Table(
    "turn",
    metadata,
    Column("name", String(500), primary_key=True),
    Column("owner", String(200), nullable=False, server_default=""),
    Column("until", Float(53), nullable=False, server_default="0"),  # 0: nobody does it now
    Column("done_at", Float(53), nullable=False, server_default="0"),  # 0: never
    Column("result", Text, nullable=False, server_default=""),
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[schema_version.Step] = [_create]


class TurnsFailed(TablesFailed):
    """The database cannot be used now: nobody knows whose turn it is."""


_SCHEMA = Schema("turns", MIGRATIONS, VERSION_TABLE, 0x70B25EED, TurnsFailed, connections=1)


@dataclass(frozen=True, slots=True)
class Done:
    """The last result of some work, and its age in seconds."""

    result: str
    age_s: float


class Turns:
    """Every method may raise TurnsFailed."""

    def __init__(self, place: Database, owner: str = "", wait_s: float = WAIT_S) -> None:
        self._tables = Tables(place, _SCHEMA, wait_s=wait_s)
        self._owner = owner  # "": this process

    def take(self, name: str, max_age_s: float, work_s: float) -> bool:
        """Whether the work is ours now, for `work_s`: nobody is doing it, and its last result is older than this."""
        with self._tables.writing(in_turn=False) as connection:
            connection.execute(database.insert_into(connection, turn).values(name=name).on_conflict_do_nothing())
            now = database.now(connection)
            # A time far ahead was written before the clock was set back.
            is_free = (turn.c.until < now) | (turn.c.until > now + 2 * work_s)
            is_due = (turn.c.done_at <= now - max_age_s) | (turn.c.done_at > now)
            ours = update(turn).where(turn.c.name == name, is_free, is_due)
            return connection.execute(ours.values(owner=self._me(), until=now + work_s)).rowcount == 1

    def finish(self, name: str, result: str = "") -> None:
        """The work is done. Changes nothing if it took so long that another process has the turn."""
        with self._tables.writing(in_turn=False) as connection:
            values = {"owner": "", "until": 0.0, "done_at": database.now(connection), "result": result}
            connection.execute(update(turn).where(turn.c.name == name, turn.c.owner == self._me()).values(**values))

    def give_up(self, name: str) -> None:
        """The work failed: the next one may try."""
        with self._tables.writing(in_turn=False) as connection:
            ours = update(turn).where(turn.c.name == name, turn.c.owner == self._me())
            connection.execute(ours.values(owner="", until=0.0))

    def last(self, name: str) -> Done | None:
        """None if the work was never done."""
        with self._tables.reading() as connection:
            row = connection.execute(select(turn).where(turn.c.name == name, turn.c.done_at > 0)).first()
            return None if row is None else Done(row.result, max(0.0, database.now(connection) - row.done_at))

    def close(self) -> None:
        self._tables.close()

    def _me(self) -> str:
        return self._owner or f"{socket.gethostname()}/{os.getpid()}"
