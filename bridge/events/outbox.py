"""The outbox: events that wait for delivery, one row for each sink, in SQLite or PostgreSQL.

Rows are added by every process that has events, and removed by the one process that delivers to their sink: the
holder of the sink's lease. `event_sink` has one row per sink with exact totals, so that limits and status cost
nothing, however many events wait. Everything is synchronous and must run in a thread. If this is wrong, an event is
lost without being counted, or two processes deliver the same sink at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError

from bridge.events.event import MAX_ABOUT
from bridge.runtime import database, schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import Schema, Tables, TablesFailed
from bridge.runtime.value import value

LEASE_S = 10.0
LONGEST_ASIDE_S = 900.0  # for which an event can be set aside
WAIT_S = 5.0  # for a lock, a connection, one statement
_MAX_PROBLEM = 300  # characters
_MANY = 500  # parameters of one statement


class OutboxError(TablesFailed):
    """The outbox cannot be used now."""


@value
class Entry:
    """One event for one sink."""

    sink: str
    id: str  # of the event
    type: str
    about: str
    time: float
    body: bytes  # JSON
    seq: int = 0
    attempts: int = 0
    strikes: int = 0  # attempts that failed although the sink had taken other events since the previous attempt
    failed_at: float = 0.0  # the last time; 0: never
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Limit:
    events: int
    size_bytes: int


@dataclass(slots=True)
class SinkState:
    """The row of a sink."""

    name: str
    events: int = 0  # waiting and dead
    size_bytes: int = 0
    dead: int = 0
    lost: int = 0
    delivered_at: float = 0.0
    failing_since: float = 0.0  # 0: the last attempt succeeded
    problem: str = ""
    owner: str = ""
    oldest_at: float = 0.0  # of the events that wait; 0: none

    @property
    def waiting(self) -> int:
        return self.events - self.dead


metadata = MetaData()
# Defaults are the database's: those of SQLAlchemy would be computed for each row.
event_outbox = Table(
    "event_outbox",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("sink", String(32), nullable=False),
    Column("id", String(40), nullable=False),
    Column("type", String(32), nullable=False),
    Column("about", String(MAX_ABOUT), nullable=False),
    Column("time", Float(53), nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("strikes", Integer, nullable=False, server_default="0"),
    Column("failed_at", Float(53), nullable=False, server_default="0"),
    Column("next_at", Float(53), nullable=False, server_default="0"),  # not before
    Column("is_dead", Boolean, nullable=False, server_default=false()),
    Column("problem", String(_MAX_PROBLEM), nullable=False, server_default=""),
    Index("event_outbox_sink", "sink", "is_dead", "seq"),
    sqlite_autoincrement=True,  # numbers are never reused: they define the order
)
_c = event_outbox.c
# Few rows: those that were set aside after a failure.
_IS_ASIDE = _c.next_at > literal_column("0")  # a literal: with a parameter, SQLite would not use the index
Index("event_outbox_aside", _c.sink, _c.next_at, sqlite_where=_IS_ASIDE, postgresql_where=_IS_ASIDE)
event_sink = Table(
    "event_sink",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("events", BigInteger, nullable=False, server_default="0"),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("dead", BigInteger, nullable=False, server_default="0"),
    Column("lost", BigInteger, nullable=False, server_default="0"),
    Column("delivered_at", Float(53), nullable=False, server_default="0"),
    Column("failing_since", Float(53), nullable=False, server_default="0"),
    Column("problem", String(_MAX_PROBLEM), nullable=False, server_default=""),
    Column("owner", String(200), nullable=False, server_default=""),
    Column("lease_until", Float(53), nullable=False, server_default="0"),
)
_s = event_sink.c


_WAITING = select(_c.seq).where(_c.sink == bindparam("name"), _c.is_dead.is_(False)).limit(1)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[schema_version.Step] = [_create]
VERSION_TABLE = "event_schema"
_SCHEMA = Schema("", MIGRATIONS, VERSION_TABLE, 0xE7E27B0C, OutboxError, connections=1)


class Outbox:
    """Writers wait for each other only at the row of a sink, which each of them locks first."""

    def __init__(self, place: Database, wait_s: float = WAIT_S) -> None:
        self.place = place
        self._tables = Tables(place, _SCHEMA, wait_s=wait_s)
        self._last_seq = 0  # all rows that we have added are at or before this one

    def close(self) -> None:
        self._tables.close()

    # Adding

    def add(
        self,
        entries: Sequence[Entry],
        limits: Mapping[str, Limit],
        lost: Mapping[str, int] | None = None,
        *,
        again: bool = False,
    ) -> dict[str, int]:
        """Store these events, of each sink as many as its limit leaves room for. Returns how many did not fit.

        `lost` are events that were lost before they came here, to be counted. `again`: an earlier attempt to store
        the same events failed, but may in fact have succeeded (a connection that was lost during the commit).
        """
        with self._writing() as connection:
            if again:
                stored = self._stored_after(connection, entries)
                entries = [entry for entry in entries if (entry.sink, entry.id) not in stored]
            excess = dict.fromkeys(limits, 0)
            for sink in sorted(limits):
                own = [entry for entry in entries if entry.sink == sink]
                excess[sink] = _add(connection, sink, own, limits[sink], (lost or {}).get(sink, 0))
            last = connection.execute(select(func.max(_c.seq))).scalar()
        self._last_seq = max(self._last_seq, last or 0)
        return excess

    def _stored_after(self, connection: Connection, entries: Sequence[Entry]) -> set[tuple[str, str]]:
        ids = [entry.id for entry in entries]
        found: set[tuple[str, str]] = set()
        for start in range(0, len(ids), _MANY):
            rows = select(_c.sink, _c.id).where(_c.seq > self._last_seq, _c.id.in_(ids[start : start + _MANY]))
            found |= {(row.sink, row.id) for row in connection.execute(rows)}
        return found

    # Delivering

    def has_waiting(self, sink: str) -> bool:
        """Whether an event waits for this sink, including one that was set aside."""
        with self._tables.reading() as connection:
            return connection.execute(_WAITING, {"name": sink}).first() is not None

    def hold_lease(self, sink: str, owner: str) -> bool:
        """Take or keep the right to deliver to this sink; False if another process has it."""
        if self._is_held_by_another(sink, owner):
            return False
        with self._writing() as connection:
            _ensure(connection, sink)
            now = database.now(connection)
            set_back = _s.lease_until > now + 2 * LEASE_S  # the clock was set back: no lease is this long
            is_free = or_(_s.owner == owner, _s.lease_until < now, set_back)
            taken = connection.execute(
                update(event_sink).where(_s.name == sink, is_free).values(owner=owner, lease_until=now + LEASE_S)
            )
            return taken.rowcount == 1

    def _is_held_by_another(self, sink: str, owner: str) -> bool:
        """Queried without a lock: all bridges but one query this every second, and would delay the others' events."""
        with self._tables.reading() as connection:
            row = connection.execute(select(_s.owner, _s.lease_until).where(_s.name == sink)).first()
            now = database.now(connection)
        return row is not None and row.owner != owner and now <= row.lease_until <= now + 2 * LEASE_S

    def give_up_leases(self, owner: str) -> None:
        with self._writing() as connection:
            connection.execute(update(event_sink).where(_s.owner == owner).values(owner="", lease_until=0.0))

    def due(self, sink: str, count: int) -> list[Entry]:
        """The next events, oldest first. An event waits while an earlier one about the same thing is set aside.

        A time further ahead than an event can be set aside was written while the clock was wrong.
        """
        now = time.time()
        waiting = (_c.sink == sink, _c.is_dead.is_(False))
        is_aside = (_c.next_at > now) & (_c.next_at <= now + LONGEST_ASIDE_S)
        aside = select(_c.about, func.min(_c.seq).label("seq")).where(*waiting, _IS_ASIDE, is_aside)
        first = aside.group_by(_c.about).subquery()
        # Here, and not among the rows that were read: there may be any number of events behind it.
        is_behind = (first.c.seq < _c.seq).is_(True)
        found = select(event_outbox).outerjoin(first, first.c.about == _c.about)
        with self._tables.reading() as connection:
            rows = connection.execute(found.where(*waiting, ~is_aside, ~is_behind).order_by(_c.seq).limit(count)).all()
        return [_entry(row) for row in rows]

    def settle(self, sink: str, delivered: Sequence[int], failed: Sequence[Failed], problem: str) -> None:
        """Record the result of one round: remove what was delivered, postpone or bury what was not."""
        now = time.time()
        since = case((_s.failing_since == 0, now), else_=_s.failing_since) if problem else 0.0
        values: dict[str, Any] = {"problem": problem[:_MAX_PROBLEM], "failing_since": since}
        if delivered:
            values["delivered_at"] = now
        with self._writing() as connection:
            for failure in failed:
                _note_failure(connection, sink, failure, now)
            _remove(connection, sink, delivered, values)

    # For operators

    def states(self) -> list[SinkState]:
        with self._tables.reading() as connection:
            found = [_state(row) for row in connection.execute(select(event_sink).order_by(_s.name))]
            for state in found:
                oldest = select(_c.time).where(_c.sink == state.name, _c.is_dead.is_(False)).order_by(_c.seq).limit(1)
                state.oldest_at = connection.execute(oldest).scalar() or 0.0
        return found

    def dead(self, sink: str | None = None, count: int = 100) -> list[Entry]:
        """The newest first."""
        with self._tables.reading() as connection:
            rows = connection.execute(
                select(event_outbox).where(*_dead(sink)).order_by(_c.seq.desc()).limit(count)
            ).all()
        return [_entry(row) for row in rows]

    def find(self, event_id: str) -> list[Entry]:
        """One event, for each sink that still has it."""
        with self._tables.reading() as connection:
            rows = connection.execute(select(event_outbox).where(_c.id == event_id).order_by(_c.seq)).all()
        return [_entry(row) for row in rows]

    def retry(self, sink: str | None, ids: Sequence[str] | None) -> int:
        """Dead events become new ones; events that were set aside, and sinks that pause, are tried at once."""
        with self._writing() as connection:
            chosen = _dead(sink) if ids is None else (*_dead(sink), _c.id.in_(ids))
            names = connection.execute(select(_c.sink, func.count()).where(*chosen).group_by(_c.sink)).all()
            fresh = {"is_dead": False, "attempts": 0, "strikes": 0, "failed_at": 0.0, "next_at": 0.0}
            connection.execute(update(event_outbox).where(*chosen).values(**fresh))
            for name, number in names:
                connection.execute(update(event_sink).where(_s.name == name).values(dead=_s.dead - number))
            of_sink = () if sink is None else (_c.sink == sink,)
            connection.execute(update(event_outbox).where(_IS_ASIDE, *of_sink).values(next_at=0.0))
            healthy = update(event_sink).values(problem="", failing_since=0.0)
            connection.execute(healthy if sink is None else healthy.where(_s.name == sink))
            return sum(number for _, number in names)

    def drop(self, sink: str | None, ids: Sequence[str] | None, *, waiting: bool = False) -> int:
        """Remove dead events permanently; with `waiting`, also those that wait."""
        chosen = () if waiting and sink is None else (_c.sink == sink,) if waiting else _dead(sink)
        if ids is not None:
            chosen = (*chosen, _c.id.in_(ids))
        with self._writing() as connection:
            rows = connection.execute(select(_c.sink, _c.seq).where(*chosen)).all()
            for name in {row.sink for row in rows}:
                _remove(connection, name, [row.seq for row in rows if row.sink == name])
        return len(rows)

    def bury_old(self, before: float) -> dict[str, int]:
        """Remove dead events that nobody has looked at for a long time. Returns how many of each sink."""
        with self._writing() as connection:
            rows = connection.execute(select(_c.sink, _c.seq).where(_c.is_dead, _c.time < before).limit(10_000)).all()
            removed = {
                name: _remove(connection, name, [row.seq for row in rows if row.sink == name])
                for name in {row.sink for row in rows}
            }
            for name, number in removed.items():
                connection.execute(update(event_sink).where(_s.name == name).values(lost=_s.lost + number))
        return removed

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._tables.writing(in_turn=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """An event that its sink did not take. `is_dead`: it is not tried again until an operator says so.

    `is_strike`: the sink takes other events, so this one may be the cause.
    """

    seq: int
    problem: str
    next_at: float = 0.0
    is_strike: bool = False
    is_dead: bool = False


def _ensure(connection: Connection, sink: str) -> None:
    """The row of this sink, locked until the end of the transaction."""
    row = select(event_sink).where(_s.name == sink)
    if connection.execute(row.with_for_update()).first() is None:
        try:
            with connection.begin_nested():
                connection.execute(insert(event_sink).values(name=sink))
        except SQLAlchemyError:
            pass  # another process was faster; if not, the next statement says why
        connection.execute(row.with_for_update()).one()


def _add(connection: Connection, sink: str, entries: list[Entry], limit: Limit, lost: int) -> int:
    """Returns how many did not fit."""
    _ensure(connection, sink)
    events, size = connection.execute(select(_s.events, _s.size_bytes).where(_s.name == sink)).one()
    fitting: list[dict[str, Any]] = []
    for entry in entries:
        if events >= limit.events or size + len(entry.body) > limit.size_bytes:
            break  # the rest is left out, too: a gap would go unnoticed
        events, size = events + 1, size + len(entry.body)
        fitting.append(
            {"sink": sink, "id": entry.id, "type": entry.type, "about": entry.about, "time": entry.time,
             "body": entry.body}
        )  # fmt: skip
    if fitting:
        connection.execute(insert(event_outbox), fitting)
    excess = len(entries) - len(fitting)
    if fitting or excess or lost:
        values = {"events": events, "size_bytes": size, "lost": _s.lost + lost + excess}
        connection.execute(update(event_sink).where(_s.name == sink).values(**values))
    return excess


def _remove(connection: Connection, sink: str, numbers: Sequence[int], more: Mapping[str, Any] | None = None) -> int:
    """Remove these rows, if they still exist, and subtract them from the totals; set `more` in the sink's row."""
    removed = dead = size = 0
    for start in range(0, len(numbers), _MANY):
        some = _c.seq.in_(numbers[start : start + _MANY])
        gone = connection.execute(
            delete(event_outbox).where(_c.sink == sink, some).returning(func.length(_c.body), _c.is_dead)
        ).all()
        removed, size = removed + len(gone), size + sum(row[0] for row in gone)
        dead += sum(bool(row[1]) for row in gone)
    totals = {"events": _s.events - removed, "size_bytes": _s.size_bytes - size, "dead": _s.dead - dead}
    connection.execute(update(event_sink).where(_s.name == sink).values(**totals, **(more or {})))
    return removed


def _note_failure(connection: Connection, sink: str, failure: Failed, now: float) -> None:
    row = connection.execute(select(_c.is_dead).where(_c.sink == sink, _c.seq == failure.seq)).first()
    if row is None or row.is_dead:
        return
    values = {
        "attempts": _c.attempts + 1,
        "strikes": _c.strikes + int(failure.is_strike),
        "failed_at": now,
        "next_at": failure.next_at,
        "is_dead": failure.is_dead,
        "problem": failure.problem[:_MAX_PROBLEM],
    }
    connection.execute(update(event_outbox).where(_c.seq == failure.seq).values(**values))
    if failure.is_dead:
        connection.execute(update(event_sink).where(_s.name == sink).values(dead=_s.dead + 1))


def _dead(sink: str | None) -> tuple[ColumnElement[bool], ...]:
    return (_c.is_dead.is_(True),) if sink is None else (_c.sink == sink, _c.is_dead.is_(True))


def _entry(row: Row[Any]) -> Entry:
    return Entry(
        row.sink, row.id, row.type, row.about, row.time, bytes(row.body), row.seq, row.attempts, row.strikes,
        row.failed_at, row.problem,
    )  # fmt: skip


def _state(row: Row[Any]) -> SinkState:
    return SinkState(
        row.name, row.events, row.size_bytes, row.dead, row.lost, row.delivered_at, row.failing_since, row.problem,
        row.owner,
    )  # fmt: skip
