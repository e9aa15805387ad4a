"""Reports in a database: who reported which mail, how many were learned, and which are still waiting.

A person's report of a mail is stored once: repeating it changes nothing, the opposite report replaces it. Until it can
be learned, the mail itself is kept here, because it may be gone from the quarantine later; the number and size of such
mails are limited. Everything is synchronous and must run in a thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)

from bridge.errors import BridgeError
from bridge.feedback.report import ReportKind, ReportState
from bridge.runtime import schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import WAIT_S, Schema, Tables, TablesFailed

FILE = "feedback.sqlite"
VERSION_TABLE = "feedback_schema"
MAX_WAITING, MAX_WAITING_BYTES = 10_000, 256 * 1024 * 1024
WORKING_S = 600.0  # a report that is not finished by then was interrupted, and may be made again
_WORKING = "working"


class ReportsFailed(TablesFailed):
    """The database cannot be used at the moment."""


class TooManyWaiting(BridgeError):
    """No room for another mail to learn from later."""


metadata = MetaData()
_reports = Table(
    "feedback_report",
    metadata,
    Column("mail", String(100), primary_key=True),
    Column("person", String(400), primary_key=True),
    Column("kind", String(10), nullable=False),
    Column("state", String(20), nullable=False),
    Column("at", Float(53), nullable=False),
    Column("size", BigInteger().with_variant(Integer, "sqlite"), nullable=False),
    Column("content", LargeBinary),  # only while it waits
    Column("about", Text),  # of `LearnableMail`, likewise
    Index("feedback_report_state", "state", "at"),
    Index("feedback_report_at", "at"),
)
_counts = Table(
    "feedback_count",
    metadata,
    Column("kind", String(10), primary_key=True),
    Column("state", String(20), primary_key=True),
    Column("number", BigInteger().with_variant(Integer, "sqlite"), nullable=False),
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


def _add_about(connection: Connection) -> None:
    if "about" not in {column["name"] for column in inspect(connection).get_columns(_reports.name)}:
        connection.execute(text(f"ALTER TABLE {_reports.name} ADD COLUMN about TEXT"))


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[schema_version.Step] = [_create, _add_about]
_SCHEMA = Schema("reports", MIGRATIONS, VERSION_TABLE, 0xFEEDBAC, ReportsFailed)


@dataclass(frozen=True, slots=True)
class Waiting:
    mail: str
    person: str
    kind: ReportKind
    content: bytes
    about: str = ""


@dataclass(frozen=True, slots=True)
class Totals:
    """What was reported since the database was made, and what waits."""

    counts: dict[tuple[str, str], int]  # by kind and state
    waiting: int = 0


class ReportStore:
    def __init__(self, place: Database, retention_s: float, wait_s: float = WAIT_S) -> None:
        self._tables = Tables(place, _SCHEMA, wait_s=wait_s)
        self._retention_s = retention_s

    def begin(self, mail: str, person: str, kind: ReportKind) -> bool:
        """False if this person has reported this mail as the same before. Raises ReportsFailed."""
        now, key = time.time(), _key(mail, person)
        with self._tables.writing() as connection:
            connection.execute(delete(_reports).where(self._is_forgotten(now)))
            there = connection.execute(select(_reports.c.kind, _reports.c.state, _reports.c.at).where(key)).first()
            if there is not None and there.kind == kind and not _is_interrupted(there.state, there.at, now):
                return False
            connection.execute(delete(_reports).where(key))
            values = {"mail": mail, "person": person[:400], "kind": str(kind), "state": _WORKING, "at": now, "size": 0}
            connection.execute(insert(_reports).values(**values))
        return True

    def finish(self, mail: str, person: str, kind: ReportKind, state: ReportState) -> None:
        """Raises ReportsFailed."""
        with self._tables.writing() as connection:
            is_open = _reports.c.state.in_([_WORKING, str(ReportState.WAITING)])
            values = {"state": str(state), "content": None, "about": None, "size": 0}
            changed = connection.execute(update(_reports).where(_key(mail, person, kind) & is_open).values(**values))
            if changed.rowcount:  # otherwise another machine was faster
                _count(connection, kind, state)

    def wait(self, mail: str, person: str, kind: ReportKind, content: bytes, about: str = "") -> None:
        """Keep the mail until it can be learned. Raises TooManyWaiting, ReportsFailed."""
        with self._tables.writing() as connection:
            is_waiting = _reports.c.state == str(ReportState.WAITING)
            query = select(func.count(), func.coalesce(func.sum(_reports.c.size), 0)).where(is_waiting)
            number, size = connection.execute(query).one()
            if number >= MAX_WAITING or size + len(content) > MAX_WAITING_BYTES:
                raise TooManyWaiting(f"{number:,} reports are already waiting: try again later")
            values = {"state": str(ReportState.WAITING), "content": content, "about": about, "size": len(content)}
            connection.execute(update(_reports).where(_key(mail, person, kind)).values(**values))

    def forget(self, mail: str, person: str, kind: ReportKind) -> None:
        """The report failed, so the person may make it again. Raises ReportsFailed."""
        with self._tables.writing() as connection:
            connection.execute(delete(_reports).where(_key(mail, person, kind)))

    def next_waiting(
        self, after: tuple[float, str, str] | None = None
    ) -> tuple[Waiting, tuple[float, str, str]] | None:
        """The oldest waiting report after this one, and the place to continue from. Raises ReportsFailed."""
        query = select(_reports).where(_reports.c.state == str(ReportState.WAITING))
        if after is not None:
            at, mail, person = after
            later = (_reports.c.mail > mail) | ((_reports.c.mail == mail) & (_reports.c.person > person))
            query = query.where((_reports.c.at > at) | ((_reports.c.at == at) & later))
        order = (_reports.c.at, _reports.c.mail, _reports.c.person)
        with self._tables.reading() as connection:
            row = connection.execute(query.order_by(*order).limit(1)).first()
        if row is None:
            return None
        return Waiting(row.mail, row.person, ReportKind(row.kind), bytes(row.content or b""), row.about or ""), (
            row.at,
            row.mail,
            row.person,
        )

    def totals(self) -> Totals:
        """Raises ReportsFailed."""
        if not self._tables.exists():
            return Totals({})
        waiting = select(func.count()).where(_reports.c.state == str(ReportState.WAITING))
        with self._tables.reading() as connection:
            counts = {(row.kind, row.state): row.number for row in connection.execute(select(_counts))}
            return Totals(counts, connection.execute(waiting).scalar_one())

    def close(self) -> None:
        self._tables.close()

    # Private.

    def _is_forgotten(self, now: float) -> ColumnElement[bool]:
        return (_reports.c.at < now - self._retention_s) & (_reports.c.state != str(ReportState.WAITING))


def _key(mail: str, person: str, kind: ReportKind | None = None) -> ColumnElement[bool]:
    """With `kind`, only while the person has not said otherwise in the meantime."""
    found = (_reports.c.mail == mail) & (_reports.c.person == person[:400])
    return found if kind is None else found & (_reports.c.kind == str(kind))


def _is_interrupted(state: str, at: float, now: float) -> bool:
    """A clock that was ahead may have written a time that is still to come."""
    return state == _WORKING and not now - WORKING_S <= at <= now + WORKING_S


def _count(connection: Connection, kind: ReportKind, state: ReportState) -> None:
    same = (_counts.c.kind == str(kind)) & (_counts.c.state == str(state))
    if not connection.execute(update(_counts).where(same).values(number=_counts.c.number + 1)).rowcount:
        connection.execute(insert(_counts).values(kind=str(kind), state=str(state), number=1))
