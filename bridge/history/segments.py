"""The history in SQLite: a directory of segments, each a file with up to 40,000 mails.

Keeping ten indexes up to date costs 130 us for each mail (Python 3.11, a table with 200,000 mails), nearly as much as
the mail itself; without an index, a mail costs 4 us, and creating all indexes at once, when a segment is full, costs
another 10 to 20. So each process writes its own live segment (`slot-N-TOKEN.live`), which has no index and is searched
from end to end. When it is full or a day old, it is finished: copied to `FIRST-LAST-TOKEN.sqlite`, with indexes, and
then removed. It is not renamed, because SQLite readers that have it open would look for its journal under the old
name. A finished segment never changes, and is deleted as a whole. Its name has the times of its first and last mail in
milliseconds. Of a live and a finished segment with the same token, only the finished one counts.

A process owns its slot as long as it holds the lock on `slot-N.lock`. A segment that a process left behind is
continued by the next owner of the slot, or finished by any process that finds it without an owner.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from bridge.history.entry import Kind, Row
from bridge.history.segment_files import (
    finished_name,
    is_live,
    live_files,
    quoted,
    remove_live,
    size_of,
    slot_of,
    token_of,
)
from bridge.history.segment_keys import put_keys
from bridge.history.store import HistoryError
from bridge.runtime import durable_files
from bridge.runtime.storable import storable, storable_row

log = logging.getLogger(__name__)

MAX_ROWS = 40_000  # of one segment
MAX_BYTES = 64 * 1024 * 1024  # of one live segment: mails with many recipients are large
MAX_AGE_S = 86_400.0
BUSY_S = 5.0
_FINISH_RETRY_S = 10.0
_MAX_SLOTS = 1000
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_MAIL_COLUMNS = ", ".join(f'"{name}"' for name in Row._fields)
KIND_COLUMNS = ", ".join(("number", *Kind._fields))
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS kind (number INTEGER PRIMARY KEY, {", ".join(Kind._fields)});
CREATE TABLE IF NOT EXISTS mail (kind INTEGER, {_MAIL_COLUMNS});
"""
_PUT_KIND = f"INSERT INTO kind ({KIND_COLUMNS}) VALUES (?, {', '.join('?' * len(Kind._fields))})"  # noqa: S608
# The last value is `more`. For None, Python looks for an adapter and drops an exception, so "" takes its place: 0.3 us.
_ONE_MAIL = f"(?, {'?, ' * (len(Row._fields) - 1)}NULLIF(?, ''))"
_WIDTH = 1 + len(Row._fields)
# By the number of mails in one statement: with 100, a mail takes 4.2 us instead of 4.8; SQLite accepts 32,766 values.
# Each statement releases the interpreter's lock, so the rest of a batch is not written mail by mail either.
_PUT_MAIL = f"INSERT INTO mail (kind, {_MAIL_COLUMNS}) VALUES "  # noqa: S608
_PUT_MAILS = {number: _PUT_MAIL + ", ".join([_ONE_MAIL] * number) for number in (100, 10, 1)}

# What a finished segment is searched by. `hourly` has what statistics count most.
_INDEXED = ("id", "session", "client", "message_id", "ggrid", "queue_id", "next_id", "attempt")
FINISHED_SCHEMA = (
    f"CREATE TABLE finished.kind (number INTEGER PRIMARY KEY, {', '.join(Kind._fields)})",
    f"CREATE TABLE finished.mail (kind INTEGER, {_MAIL_COLUMNS})",
    "CREATE TABLE finished.address (key TEXT, mail INTEGER, PRIMARY KEY (key, mail)) WITHOUT ROWID",
)
INDEXES = (
    *(f"CREATE INDEX finished.mail_{name} ON mail ({name})" for name in _INDEXED),
    "CREATE INDEX finished.mail_at ON mail (at, id)",
    "CREATE INDEX finished.mail_kind ON mail (kind, at)",
    "CREATE VIRTUAL TABLE finished.words USING "
    "fts5(subject, content='', detail=none, tokenize='unicode61 remove_diacritics 0')",
    "INSERT INTO finished.words (rowid, subject) SELECT rowid, subject FROM finished.mail WHERE subject != ''",
)
_HOURLY = (
    "CREATE TABLE finished.hourly AS SELECT CAST(at / 3600 AS INTEGER) AS hour, kind, sum(mails) AS mails, "
    "sum(size * mails) AS size FROM finished.mail GROUP BY 1, 2"
)
_COPY = (
    "INSERT INTO finished.kind SELECT * FROM main.kind",
    "INSERT INTO finished.mail SELECT * FROM main.mail",  # SQLite copies whole pages: 0.7 us for each mail; sorted 4.5
)


class SegmentWriter:
    """Writes the live segment of one slot. Used by one thread. Every method may raise HistoryError."""

    def __init__(
        self,
        directory: Path,
        max_rows: int = MAX_ROWS,
        busy_s: float = BUSY_S,
        max_age_s: float = MAX_AGE_S,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._directory = directory
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._busy_s = busy_s
        self._lock, self._slot = -1, 0
        self._path = Path()
        self._connection: sqlite3.Connection | None = None
        self._kinds: dict[Kind, int] = {}
        self._last_kind = 0
        self._rows = 0
        self._began = 0.0
        self._finish_after = 0.0

    def append(self, rows: Sequence[tuple[Kind, Row]]) -> None:
        """All of them or none."""
        with _translated():
            connection = self._open()
            known = len(self._kinds)
            new: list[tuple[Any, ...]] = []
            values: list[Any] = []  # of all mails: a tuple for each would only be taken apart again
            for kind, row in rows:
                number = self._kinds.get(kind)
                if number is None:
                    number = self._kinds[kind] = self._last_kind + len(new) + 1
                    new.append((number, *kind))
                values.append(number)
                values += row
                values[-1] = row.more or ""
            try:
                durable_files.refuse_full_database(self._path)
                _insert(connection, new, values)
            except BaseException as exc:
                self._kinds = dict(list(self._kinds.items())[:known])
                if is_damage(exc):
                    self._set_aside()
                raise
            self._last_kind += len(new)
            self._rows += len(rows)
            is_full = self._rows >= self._max_rows or size_of(self._path) > self._max_bytes
        if is_full:
            self._finish()
        else:
            self.settle()

    def settle(self) -> None:
        """Finish the segment if it is a day old: without new mail, it would otherwise never be deleted."""
        if self._connection is not None and time.time() - self._began > self._max_age_s:
            self._finish()

    def close(self) -> None:
        """The segment stays live: the next owner of the slot continues it."""
        with _translated():
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and not self._path.exists():  # someone removed it, and perhaps our lock
            self.close()
        if self._lock < 0:
            durable_files.make_directory(self._directory)
            self._lock, self._slot = _take_slot(self._directory)
        if self._connection is None:
            self._path = self._live_segment()
            try:
                self._connect()
            except sqlite3.DatabaseError as exc:
                if not is_damage(exc):
                    raise
                self._set_aside()
                self._path = self._live_segment()
                self._connect()
        assert self._connection is not None
        return self._connection

    def _connect(self) -> None:
        self._connection = _open_live(self._path, self._busy_s)
        self._rows, first = self._connection.execute("SELECT count(*), min(at) FROM mail").fetchone()
        self._began = first or time.time()
        kinds = self._connection.execute(f"SELECT {KIND_COLUMNS} FROM kind").fetchall()  # noqa: S608
        self._kinds = {Kind(*values): number for number, *values in kinds}
        self._last_kind = max([number for number, *_ in kinds], default=0)

    def _set_aside(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        set_aside(self._path)

    def _live_segment(self) -> Path:
        """The segment that our slot already has, or a new one."""
        ours = [path for path in live_files(self._directory) if slot_of(path) == self._slot]
        return ours[0] if ours else self._directory / f"slot-{self._slot}-{secrets.token_hex(4)}.live"

    def _finish(self) -> None:
        """The mails are written: if this fails, the segment stays live, and grows until it can be finished."""
        if time.monotonic() < self._finish_after:
            return
        try:
            with _translated():
                assert self._connection is not None
                self._connection.close()
                self._connection = None
                finish(self._path, self._busy_s)
        except HistoryError as exc:
            self._finish_after = time.monotonic() + _FINISH_RETRY_S
            log.warning("history: a segment cannot be finished yet: %s", exc)


def is_damage(exc: BaseException) -> bool:
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def set_aside(path: Path) -> None:
    """A damaged segment must not stop the others: it is renamed, for people to look at."""
    aside = path.with_suffix(".damaged")
    try:
        path.replace(aside)
        for name in (f"{path.name}-wal", f"{path.name}-shm"):
            path.with_name(name).unlink(missing_ok=True)
    except OSError:  # a command may only be allowed to read
        log.warning("history: %s is damaged and was skipped", path)
    else:
        log.warning("history: %s is damaged; it was renamed to %s", path, aside.name)


def _insert(connection: sqlite3.Connection, kinds: list[tuple[Any, ...]], mails: list[Any]) -> None:
    """`mails`: the values of all mails, one mail after the other."""
    try:
        with transaction(connection):
            _put(connection, kinds, mails)
    except UnicodeEncodeError:  # bytes of a mail that are not text; SQLite stores UTF-8 only
        with transaction(connection):
            _put(connection, list(map(storable_row, kinds)), list(map(storable, mails)))


def _put(connection: sqlite3.Connection, kinds: list[tuple[Any, ...]], mails: list[Any]) -> None:
    connection.executemany(_PUT_KIND, kinds)
    start = 0
    for number, statement in _PUT_MAILS.items():
        while len(mails) - start >= number * _WIDTH:
            connection.execute(statement, mails[start : start + number * _WIDTH])
            start += number * _WIDTH


def finish(path: Path, busy_s: float = BUSY_S) -> None:
    """Copy a live segment to a finished one and remove it. Only the owner of its slot may do this."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    durable_files.make_private(new)
    try:
        with closing(_open_live(path, busy_s)) as connection:
            first, last = connection.execute("SELECT min(at), max(at) FROM mail").fetchone()
            if first is not None:
                _copy(connection, new)
        if first is not None:
            new.rename(path.with_name(finished_name(first, last, token_of(path))))
    finally:
        new.unlink(missing_ok=True)
    remove_live(path)


def _copy(connection: sqlite3.Connection, new: Path) -> None:
    connection.execute("ATTACH ? AS finished", (str(new),))
    connection.execute("PRAGMA finished.synchronous=OFF")  # nothing is lost: the live segment is still there
    with transaction(connection):
        for statement in (*FINISHED_SCHEMA, *_added_columns(connection), *_COPY, *INDEXES, _HOURLY):
            connection.execute(statement)
        put_keys(connection)
    connection.execute("DETACH finished")
    durable_files.sync_file(new)


def _added_columns(connection: sqlite3.Connection) -> Iterator[str]:
    """A newer version may have begun the segment with more columns, before its owner was downgraded to this version."""
    for table, known in (("kind", {"number", *Kind._fields}), ("mail", {"kind", *Row._fields})):
        for (name,) in connection.execute("SELECT name FROM pragma_table_info(?, 'main')", (table,)).fetchall():
            if name not in known:
                yield f'ALTER TABLE finished.{table} ADD COLUMN "{name}"'


def finish_abandoned(directory: Path) -> None:
    """Finish live segments whose slot has no owner: a process was killed, or there are fewer workers than before."""
    with _translated():
        for path in live_files(directory):
            with slot_lock(directory / f"slot-{slot_of(path)}.lock") as lock:
                if lock < 0 or not path.exists():
                    continue
                try:
                    finish(path)
                except sqlite3.DatabaseError as exc:
                    if not is_damage(exc):
                        raise
                    set_aside(path)


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Raises sqlite3.Error, for example if the segment was just finished or deleted, or OSError if it is not ours."""
    if is_live(path):
        durable_files.refuse_planted_database(path)
    else:  # it has no journal
        durable_files.refuse_planted(path)
    options = "mode=rw" if is_live(path) else "mode=ro&immutable=1"  # rw: also needed to create the journal's index
    return sqlite3.connect(f"file:{quoted(path)}?{options}", uri=True, timeout=BUSY_S, isolation_level=None)


def _open_live(path: Path, busy_s: float = BUSY_S) -> sqlite3.Connection:
    durable_files.refuse_planted_database(path)
    durable_files.refuse_full_database(path)
    durable_files.make_private(path)
    connection = sqlite3.connect(path, timeout=busy_s, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # a power failure may lose the newest mails
        connection.executescript(_SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


def _take_slot(directory: Path) -> tuple[int, int]:
    """The lock and its number."""
    for number in range(_MAX_SLOTS):
        lock = _try_lock(directory / f"slot-{number}.lock")
        if lock >= 0:
            return lock, number
    raise HistoryError("too many processes are writing to it")


@contextmanager
def slot_lock(path: Path) -> Iterator[int]:
    lock = _try_lock(path)
    try:
        yield lock
    finally:
        if lock >= 0:
            os.close(lock)


def _try_lock(path: Path) -> int:
    """A descriptor that holds the lock; -1 if another process has it."""
    lock = durable_files.open_own(path, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return -1
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite may have rolled back already: a full disk
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as exc:
        raise HistoryError(str(exc) or type(exc).__name__) from exc
