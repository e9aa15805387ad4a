"""Where late decisions are stored: in memory, or in a database.

SQLite is shared by all workers and survives a restart; PostgreSQL also serves several machines. Everything is
synchronous and must run in a thread. Another scan can replace whatever is lost here, so a damaged file that holds only
our table is renamed and recreated.

An entry is replaced or removed by one statement, so machines do not wait for each other. Only statements about many
entries take turns: two of them could each wait for a row of the other.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.exc import DatabaseError

from bridge.api.changes import Changes
from bridge.api.scanning import AnalysisResult
from bridge.runtime import database, durable_files, schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import Schema, Tables, TablesFailed

BUSY_S = 2.0  # longest wait for the lock, and for a statement


class LateStoreError(TablesFailed):
    """The store cannot be used now; mail is processed without it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One mail whose scan took longer than its deadline."""

    key: bytes  # the mail's fingerprint
    envelope: bytes  # the hash of its envelope
    changed_at: float  # seconds since 1970
    owner: str = ""  # the process that awaits the scan
    result: AnalysisResult | None = None  # None: the scan still runs


class LateStore(Protocol):
    """Every method may raise LateStoreError."""

    shared: bool  # other processes write to it as well

    def open(self) -> None: ...

    def close(self) -> None: ...

    def put(self, entry: Entry) -> None:
        """Replaces the entry of this key."""

    def get(self, key: bytes) -> Entry | None: ...

    def remove(self, key: bytes) -> None: ...

    def envelopes(self, since: float) -> set[bytes]:
        """The envelope hashes of all entries changed since then."""

    def purge(self, before: float, max_entries: int, latest: float = math.inf) -> None:
        """Removes entries that are older, and the oldest above the maximum number.

        Also removes those changed after `latest`: the clock was ahead, and they would outlive and displace all others.
        """

    def touch(self, owner: str, now: float) -> None:
        """Confirms that this process still awaits its scans: sets their `changed_at`."""

    def stamp(self) -> int:
        """A number that changes with each `put` of any process on this machine. Fast; callable from any thread."""


class MemoryStore:
    """Lost when the process ends."""

    shared = False

    def __init__(self) -> None:
        self._entries: dict[bytes, Entry] = {}

    def open(self) -> None:
        """Nothing to open."""

    def close(self) -> None:
        self._entries.clear()

    def put(self, entry: Entry) -> None:
        self._entries.pop(entry.key, None)  # the newest is last
        self._entries[entry.key] = entry

    def get(self, key: bytes) -> Entry | None:
        return self._entries.get(key)

    def remove(self, key: bytes) -> None:
        self._entries.pop(key, None)

    def envelopes(self, since: float) -> set[bytes]:
        return {entry.envelope for entry in self._entries.values() if entry.changed_at >= since}

    def purge(self, before: float, max_entries: int, latest: float = math.inf) -> None:
        kept = {key: entry for key, entry in self._entries.items() if before <= entry.changed_at <= latest}
        surplus = max(len(kept) - max_entries, 0)
        self._entries = dict(islice(kept.items(), surplus, None))

    def touch(self, owner: str, now: float) -> None:
        """No other process reads this store."""

    def stamp(self) -> int:
        return 0


metadata = MetaData()
late_decision = Table(
    "late_decision",
    metadata,
    Column("key", LargeBinary(32), primary_key=True),
    Column("mark", LargeBinary(8), nullable=False),  # the hash of the envelope
    Column("changed_at", Float, nullable=False),
    Column("owner", String(200), nullable=False),
    Column("result", Text),  # MessageAnalysisResult as JSON; NULL while the scan runs
    Index("late_decision_changed_at", "changed_at"),
)


def _create(connection: Connection) -> None:
    late_decision.create(connection, checkfirst=True)  # an older release stored the schema version elsewhere


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[schema_version.Step] = [_create]
VERSION_TABLE = "late_schema"  # other parts may keep their own version in the same database
# NORMAL: a power failure may lose the newest entries; those mails are scanned again.
_SCHEMA = Schema("", MIGRATIONS, VERSION_TABLE, 0x1A7EDEC1, LateStoreError, synchronous="NORMAL", connections=1)


class SqlStore:
    """A database; `open` brings it to the newest schema."""

    shared = True

    def __init__(self, place: Database, stamp: Path, *, is_ours: bool = False, busy_s: float = BUSY_S) -> None:
        """`stamp` is a file shared by all processes of this machine; `is_ours`: the database has no other tables."""
        self._place = place
        self._stamp_path = stamp
        self._is_ours = is_ours
        self._tables = Tables(place, _SCHEMA, wait_s=busy_s)
        self._stamp: _Stamp | None = None  # None: the store is not open

    @classmethod
    def in_file(cls, path: Path, busy_s: float = BUSY_S) -> SqlStore:
        """An SQLite file of our own."""
        return cls(Database.file(path), path.with_name(f"{path.name}-stamp"), is_ours=True, busy_s=busy_s)

    def open(self) -> None:
        try:
            self._open()
        except LateStoreError as exc:
            if not isinstance(exc.__cause__, DatabaseError) or not self._set_aside(exc.__cause__):
                raise
            self._open()

    def _open(self) -> None:
        with self._tables.reading():
            self._stamp = _Stamp(self._stamp_path)

    def _set_aside(self, exc: DatabaseError) -> bool:
        """Rename a damaged file, or one that is not a database, so that it does not fail at every start."""
        path = self._place.path
        damaged = getattr(exc.orig, "sqlite_errorcode", None) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
        if not damaged or not self._is_ours or path is None:
            return False
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
            if path.with_name(name).exists():
                path.with_name(name).replace(path.with_name(f"{name}.damaged"))
        return True

    def close(self) -> None:
        self._tables.close()
        if self._stamp is not None:
            self._stamp.close()
            self._stamp = None

    def put(self, entry: Entry) -> None:
        result = None if entry.result is None else _to_json(entry.result)
        with self._opened().writing(in_turn=False) as connection:
            connection.execute(
                database.replace_in(connection, late_decision).values(
                    key=entry.key, mark=entry.envelope, changed_at=entry.changed_at, owner=entry.owner, result=result
                )
            )
        if self._stamp is not None:
            with suppress(OSError):  # a full disk: the other processes learn of the entry a second later
                self._stamp.renew()

    def stamp(self) -> int:
        return self._stamp.read() if self._stamp is not None else 0

    def get(self, key: bytes) -> Entry | None:
        with self._opened().reading() as connection:
            row = connection.execute(select(late_decision).where(late_decision.c.key == key)).one_or_none()
        if row is None:
            return None
        try:
            result = None if row.result is None else _from_json(row.result)
        except (ValueError, RecursionError) as exc:
            raise LateStoreError("an entry cannot be read") from exc
        return Entry(row.key, row.mark, row.changed_at, row.owner, result)

    def remove(self, key: bytes) -> None:
        with self._opened().writing(in_turn=False) as connection:
            connection.execute(delete(late_decision).where(late_decision.c.key == key))

    def envelopes(self, since: float) -> set[bytes]:
        with self._opened().reading() as connection:
            rows = connection.execute(select(late_decision.c.mark).where(late_decision.c.changed_at >= since))
            return set(rows.scalars())

    def touch(self, owner: str, now: float) -> None:
        ours = (late_decision.c.owner == owner) & late_decision.c.result.is_(None)
        with self._opened().writing() as connection:
            connection.execute(update(late_decision).where(ours).values(changed_at=now))

    def purge(self, before: float, max_entries: int, latest: float = math.inf) -> None:
        changed_at = late_decision.c.changed_at
        with self._opened().writing() as connection:
            connection.execute(delete(late_decision).where((changed_at < before) | (changed_at > latest)))
            count = connection.execute(select(func.count()).select_from(late_decision)).scalar_one()
            if count > max_entries:
                ordered = select(late_decision.c.key).order_by(changed_at).limit(count - max_entries)
                connection.execute(delete(late_decision).where(late_decision.c.key.in_(ordered)))

    def _opened(self) -> Tables:
        if self._stamp is None:
            raise LateStoreError("the store is not open")
        return self._tables


def _to_json(result: AnalysisResult) -> str:
    if result.changes is None:
        return json.dumps(result.to_dict())
    return json.dumps({**result.to_dict(), _CHANGES: result.changes.to_dict()})


def _from_json(stored: str) -> AnalysisResult:
    """Raises ValueError, RecursionError."""
    result, wanted = AnalysisResult.from_json(stored.encode()), json.loads(stored).get(_CHANGES)
    try:
        return result if wanted is None else replace(result, changes=Changes.from_dict(wanted))
    except (TypeError, AttributeError) as exc:
        raise ValueError("the changes in it cannot be read") from exc


_CHANGES = "changes"  # beside the fields of a MessageAnalysisResult


class _Stamp:
    """A number in a file, which all processes of this machine share. Raises OSError.

    It is read in memory, without a system call, and written to the file. Memory that has no place on a full disk could
    be neither read nor written: the kernel would end the process (SIGBUS). So its place is taken when it is opened.
    """

    def __init__(self, path: Path) -> None:
        self._fd = durable_files.open_own(path, os.O_RDWR)
        try:
            self.renew()
            os.ftruncate(self._fd, _STAMP_BYTES)
            self._memory = mmap.mmap(self._fd, _STAMP_BYTES, access=mmap.ACCESS_READ)
        except BaseException:
            os.close(self._fd)
            raise

    def renew(self) -> None:
        os.pwrite(self._fd, time.monotonic_ns().to_bytes(_STAMP_BYTES, "little"), 0)

    def read(self) -> int:
        return int.from_bytes(self._memory[:_STAMP_BYTES], "little")

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)


_STAMP_BYTES = 8
