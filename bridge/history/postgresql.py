"""The history in PostgreSQL: one table with a partition for each day, shared by all machines.

Rows are sent with COPY. The server keeps the indexes up to date, which costs its CPU time, not ours. An old day is
dropped as a whole.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import Any

from sqlalchemy import Connection

from bridge.history.conditions import common_conditions, common_text
from bridge.history.entry import MAX_KEY, Kind, LaterEvent, MailEntry, Row, address_keys, key_of, queue_id_keys
from bridge.history.query import By, HistoryQuery, Sum, Top
from bridge.history.store import MAX_LATER, Found, HistoryError
from bridge.history.sums import labels_of, ordered_sums
from bridge.runtime import schema_version
from bridge.runtime.database import Database
from bridge.runtime.storable import storable
from bridge.runtime.tables import Schema, Tables

BUSY_S = 5.0
VERSION_TABLE = "history_schema"
_DAY_S = 86_400
_LOCK = 0x415C0B1E
_NUMBERS = {"at": "double precision", "size": "bigint", "mails": "integer"} | dict.fromkeys(
    ("wait_s", "scan_s", "relay_s"), "double precision"
)
_COLUMNS = (*Row._fields, *Kind._fields)
_NAMES = ", ".join(f'"{name}"' for name in _COLUMNS)
_LATER = ", ".join(f'"{name}"' for name in LaterEvent.__slots__)
_INDEXED = ("at", "id", "session", "message_id", "ggrid", "queue_id", "next_id")
_OF_KIND = ("action", "decision", "rule", "listener", "stage")
_GIN_INDEXES = (
    "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_inherits ON inhrelid = indrelid "
    "JOIN pg_class ON pg_class.oid = indexrelid JOIN pg_am ON pg_am.oid = relam "
    "WHERE inhparent = 'history_mail'::regclass AND amname = 'gin'"
)
_WORDS = "to_tsvector('simple', regexp_replace(subject, '[^[:alnum:]]+', ' ', 'g'))"  # without hosts, paths, numbers


def _create(connection: Connection) -> None:
    columns = ", ".join(f'"{name}" {_NUMBERS.get(name, "text")}' for name in _COLUMNS)
    for statement in (
        f"CREATE TABLE history_mail ({columns}, keys text[]) PARTITION BY RANGE (at)",
        *(f"CREATE INDEX history_mail_{name} ON history_mail ({name})" for name in _INDEXED),
        'CREATE INDEX history_mail_client ON history_mail (client COLLATE "C")',
        "CREATE INDEX history_mail_attempt ON history_mail (attempt) WHERE attempt <> ''",
        "CREATE INDEX history_mail_keys ON history_mail USING gin (keys)",
        f"CREATE INDEX history_mail_words ON history_mail USING gin ({_WORDS})",
        'CREATE TABLE history_later (at double precision, id text, event text, "by" text, text text)',
        "CREATE INDEX history_later_id ON history_later (id)",
        "CREATE INDEX history_later_at ON history_later (at)",
    ):
        connection.exec_driver_sql(statement)


# Step n migrates from version n to n + 1. Never change a released step; add one.
MIGRATIONS: list[schema_version.Step] = [_create]
_SCHEMA = Schema("", MIGRATIONS, VERSION_TABLE, _LOCK, HistoryError, connections=1)


class PostgresHistory:
    """Writes and searches. Every method may raise HistoryError."""

    def __init__(self, where: Database, busy_s: float = BUSY_S) -> None:
        self.where = where
        self._tables = Tables(where, _SCHEMA, wait_s=busy_s)
        self._days: set[int] = set()  # days that have a partition

    # Writing

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        """All of them or none. If the answer to the commit is lost, they are written twice; `find` shows them once."""
        days = {int(row.at // _DAY_S) for _, row in rows}
        try:
            with _translated(), self._writing() as connection:
                for day in days - self._days:
                    _add_partition(connection, day)
                cursor = connection.connection.cursor()
                with cursor.copy(f"COPY history_mail ({_NAMES}, keys) FROM STDIN") as copy:
                    for kind, row in rows:
                        copy.write_row((*map(storable, (*row, *kind)), storable(_keys(kind, row))))
        except HistoryError:
            self._days.clear()  # another process may have dropped one
            raise
        self._days |= days

    def note(self, events: Sequence[LaterEvent]) -> None:
        with self._writing() as connection:
            insert = f"INSERT INTO history_later ({_LATER}) VALUES (%s, %s, %s, %s, %s)"  # noqa: S608  fixed names
            for event in events:
                values = (event.at, *map(storable, (event.id, event.event, event.by, event.text)))
                connection.exec_driver_sql(insert, values)

    def settle(self) -> None:
        """Nothing to do: partitions are dropped by their day."""

    def maintain(self, before: float, max_size: int | None) -> tuple[int, int]:
        """Drop days that ended before this time, then the oldest until all fit. Returns both numbers."""
        with self._writing() as connection:
            connection.exec_driver_sql("DELETE FROM history_later WHERE at < %s", (before,))
            days = _partitions(connection)
            old = [day for day in days if (day + 1) * _DAY_S <= before]
            left = {day: size for day, size in days.items() if day not in old}
            too_many = []
            today = int(time.time() // _DAY_S)
            while max_size is not None and sum(left.values()) > max_size and min(left) < today:
                too_many.append(min(left))
                del left[too_many[-1]]
            for day in (*old, *too_many):
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {_partition(day)}")
            self._days -= {*old, *too_many}
        self._sort_in()
        return len(old), len(too_many)

    def _sort_in(self) -> None:
        """New entries of a GIN index wait in a list of up to 4 MB, which every search reads: 20 ms for each day."""
        with self._tables.reading() as connection:
            names = connection.exec_driver_sql(_GIN_INDEXES).scalars().all()
        for name in names:
            with self._writing() as connection:  # another process may have dropped it
                connection.exec_driver_sql("SELECT gin_clean_pending_list(to_regclass(%s))", (name,))

    def size(self) -> int:
        with self._tables.reading() as connection:
            return sum(_partitions(connection).values())

    def close(self) -> None:
        self._tables.close()

    # Searching

    def find(self, query: HistoryQuery) -> list[MailEntry]:
        """Rows that were written twice are found once, and do not make a page shorter, which would end a listing."""
        found: dict[tuple[Any, ...], None] = {}
        most = query.limit  # 0: no limit
        while True:
            rows = self._rows(query)
            found |= dict.fromkeys(rows)
            if not most or len(rows) < query.limit or len(found) == most:
                break
            query = replace(query, before=MailEntry.of(rows[-1]).cursor, limit=most - len(found))
        return [MailEntry.of(row) for row in found]

    def _rows(self, query: HistoryQuery) -> list[tuple[Any, ...]]:
        where, values = _conditions(query)
        limit = f" LIMIT {query.limit:d}" if query.limit else ""
        text = f"SELECT {_NAMES} FROM history_mail WHERE {where} ORDER BY at DESC, id DESC{limit}"  # noqa: S608
        with self._tables.reading() as connection:
            rows = _by_keys(connection, query, where, values) if _has_keys(query) and query.limit else None
            if rows is None and query.what:  # few mails have it, but the planner does not know this of queue ids
                _set(connection, _BY_INDEX)
            return list(map(tuple, connection.exec_driver_sql(text, values) if rows is None else rows))

    def find_within(self, query: HistoryQuery, seconds: float) -> Found:
        """Searches everything: the server ends a statement that takes too long."""
        return Found(self.find(query))

    def count(self, by: By, query: HistoryQuery) -> list[Sum]:
        """Numbers of mails and bytes by this property: the largest first; hours and days in order."""
        where, values = _conditions(query)
        label = {"hour": "floor(at / 3600)::bigint", "day": "floor(at / 86400)::bigint", "tag": "tags"}.get(
            by, "recipients" if by == "recipient" else by
        )
        text = f"SELECT {label}, sum(mails), sum(size * mails) FROM history_mail WHERE {where} GROUP BY 1"  # noqa: S608
        mails: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        with self._tables.reading() as connection:
            for value, number, size in connection.exec_driver_sql(text, values):
                for name in labels_of(by, value):
                    mails[name] += int(number)
                    sizes[name] += int(size)
        return ordered_sums(by, mails, sizes)

    def top(self, by: By, query: HistoryQuery, most: int) -> Top:
        return Top.of(self.count(by, query), most)

    def oldest(self) -> float | None:
        with self._tables.reading() as connection:
            found: float | None = connection.exec_driver_sql("SELECT min(at) FROM history_mail").scalar()
            return found

    def later(self, ids: Sequence[str]) -> list[LaterEvent]:
        text = f"SELECT {_LATER} FROM history_later WHERE id = ANY(%s) ORDER BY at DESC LIMIT %s"  # noqa: S608  fixed
        with self._tables.reading() as connection:
            return [LaterEvent(*row) for row in connection.exec_driver_sql(text, (list(ids), MAX_LATER))][::-1]

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._tables.writing(in_turn=False)


def _partition(day: int) -> str:
    return f"history_mail_{datetime.fromtimestamp(day * _DAY_S, UTC):%Y%m%d}"


def _add_partition(connection: Connection, day: int) -> None:
    connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    connection.exec_driver_sql(
        f"CREATE TABLE IF NOT EXISTS {_partition(day)} PARTITION OF history_mail "
        f"FOR VALUES FROM ({day * _DAY_S}) TO ({(day + 1) * _DAY_S})"
    )


def _partitions(connection: Connection) -> dict[int, int]:
    """The days that have a partition, and their sizes."""
    text = (
        "SELECT inhrelid::regclass::text, pg_total_relation_size(inhrelid) FROM pg_inherits "
        "WHERE inhparent = 'history_mail'::regclass"
    )
    found = {}
    for name, size in connection.exec_driver_sql(text):
        begin = datetime.strptime(str(name)[-8:], "%Y%m%d").replace(tzinfo=UTC)
        found[int(begin.timestamp()) // _DAY_S] = int(size)
    return dict(sorted(found.items()))


def _keys(kind: Kind, row: Row) -> list[str]:
    """What the mail is found by: its addresses, its tags and the groups of its tags."""
    keys = set(address_keys(row.sender, row.recipients.split("\n") if row.recipients else ()))
    keys.update(queue_id_keys(row.next_id))
    for tag in (tag[:MAX_KEY] for tag in kind.tags.split(",")) if kind.tags else ():
        keys.add(f"tag:{tag}")
        keys |= {f"tag:{tag[: end + 1]}*" for end, character in enumerate(tag) if character == ":"}
    return sorted(keys)


# Searching by keys
#
# The planner assumes that an address missing from its statistics is frequent, and reads the mails from the newest on
# until it has enough: 11 seconds with ten million mails. So the index on keys or words is used, whatever the planner
# thinks, for some days at a time, the newest first. What occurs very often is found at once without it.

# Days, and how many mails count as very often there.
_SPANS = ((1 / 24, 1_000), (1 / 4, 1_500), (1, 2_000), (6, 10_000), (36_500, 20_000))
_BY_INDEX = ("SET LOCAL enable_seqscan = off", "SET LOCAL enable_indexscan = off", "SET LOCAL jit = off")
_AS_USUAL = ("SET LOCAL enable_seqscan = on", "SET LOCAL enable_indexscan = on")


def _has_keys(query: HistoryQuery) -> bool:
    has_address = query.sender is not None or query.recipient or query.address
    return bool(has_address or query.words or _is_tag_key(query.tag))


def _is_tag_key(tag: str) -> bool:
    """Whether it is a key: whole tags are, and so are their beginnings up to a colon."""
    return bool(tag) and ("*" not in tag or (tag.endswith(":*") and tag.count("*") == 1))


def _by_keys(connection: Connection, query: HistoryQuery, where: str, values: dict[str, Any]) -> list[Any] | None:
    """The mails by the index on keys or words; None if there are too many."""
    _set(connection, _BY_INDEX)
    rows: list[Any] = []
    begin, end = min(query.until or math.inf, (query.cursor or (math.inf,))[0], time.time()), math.inf
    for days, many in _SPANS:
        begin -= days * _DAY_S
        span = f"({where}) AND at >= %(span_begin)s AND at < %(span_end)s"
        some = f"SELECT {_NAMES} FROM history_mail WHERE {span} LIMIT {many + 1}"  # noqa: S608
        text = f"SELECT count(*) OVER (), * FROM ({some}) AS found ORDER BY at DESC, id DESC LIMIT {query.limit:d}"  # noqa: S608
        found = connection.exec_driver_sql(text, {**values, "span_begin": begin, "span_end": end}).all()
        if found and found[0][0] > many:
            break
        rows += [row[1:] for row in found]
        if len(rows) >= query.limit:
            return rows[: query.limit]
        end = begin
    else:
        return rows
    _set(connection, _AS_USUAL)
    return None


def _set(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


# Conditions. Values are never part of the text.


def _conditions(query: HistoryQuery) -> tuple[str, dict[str, Any]]:
    conditions, values = common_conditions(query, lambda name: f"%({name})s", _has_queue_id)
    equal = {name: value for name in _OF_KIND if (value := getattr(query, name))}
    if query.tenant is not None:
        equal["tenant"] = query.tenant
    conditions += [f"{name} = %({name})s" for name in equal]
    values |= equal
    if query.tenants is not None:
        conditions.append("tenant = ANY(%(tenants)s)")
        values["tenants"] = sorted(query.tenants)
    if query.words:
        conditions.append(f"{_WORDS} @@ to_tsquery('simple', %(words)s)")
        values["words"] = " & ".join(f"{word}:*" if is_beginning else word for word, is_beginning in query.words)
    conditions += _of_keys(query, values)
    conditions += _of_client(query, values)
    return " AND ".join(conditions) or "true", {name: storable(value) for name, value in values.items()}


def _has_queue_id(marks: list[str]) -> str:
    return f"keys && ARRAY[{', '.join(marks)}]::text[]"


def _of_keys(query: HistoryQuery, values: dict[str, Any]) -> Iterator[str]:
    if query.sender is not None:
        values["sender"] = [key_of("from", query.sender)]
        yield "keys @> %(sender)s::text[]"
    if query.recipient:
        values["recipient"] = [key_of("to", query.recipient)]
        yield "keys @> %(recipient)s::text[]"
    if query.address:
        values["address"] = [key_of("from", query.address), key_of("to", query.address)]
        yield "keys && %(address)s::text[]"
    if _is_tag_key(query.tag):
        values["tag"] = [f"tag:{query.tag[:MAX_KEY]}"]
        yield "keys @> %(tag)s::text[]"
    elif query.tag:
        values["tag"] = "".join("%" if c == "*" else f"\\{c}" if c in "\\%_" else c for c in query.tag)
        yield "EXISTS (SELECT FROM unnest(string_to_array(tags, ',')) AS one WHERE one LIKE %(tag)s)"


def _of_client(query: HistoryQuery, values: dict[str, Any]) -> Iterator[str]:
    """Compares bytes, as the index does, in which the addresses of a network are adjacent."""
    if not query.client:
        return
    network = ip_network(query.client, strict=False)
    values["client"] = str(network.network_address if network.num_addresses == 1 else network)
    if network.num_addresses == 1:
        yield 'client COLLATE "C" = %(client)s'
        return
    if prefix := common_text(network):
        values |= {"client_from": prefix, "client_to": prefix + "~"}
        yield 'client COLLATE "C" BETWEEN %(client_from)s AND %(client_to)s'
    # A client may have no address: it is "unknown", or empty. CASE, because AND has no order.
    yield "CASE WHEN client ~ '^[0-9a-f:.]+$' THEN client::inet <<= %(client)s::inet ELSE false END"


@contextmanager
def _translated() -> Iterator[None]:
    """COPY raises the driver's own errors."""
    try:
        yield
    except Exception as exc:
        if type(exc).__module__.startswith("psycopg"):
            raise HistoryError(str(exc).splitlines()[0] or type(exc).__name__) from exc
        raise
