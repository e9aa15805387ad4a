"""Locks on single mails, for a store without its own locks.

A lock ends with the process that holds it, even if that crashes: the kernel releases a file lock, and
PostgreSQL an advisory lock when its transaction ends. Machines that share object storage must share a
PostgreSQL database: a file lock is visible on its own machine only. If this is wrong, two people
release the same mail twice.

A connection may also end while its process continues: after a failover, or if an administrator ends it. The lock is
then free for others, so its holder must `check` it just before a step that cannot be undone.

The lock belongs to a transaction that stays open, not to the session of the server: a pooler such as PgBouncer gives
one session to several clients in turn, and each of them would have the lock of the others.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from bridge.errors import StoreError
from bridge.quarantine.store import HeldLock, LockLost, MailLocked
from bridge.runtime import database, durable_files
from bridge.runtime.database import Database, DatabaseUnusable

_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process
MAX_HELD = 8  # concurrent releases of one command; each has a database connection, and half of these are kept open
_WAIT_S = 5.0  # for the server, and for a statement
_NO_LIMIT = func.set_config("idle_in_transaction_session_timeout", "0", True)  # it would end the lock of a slow release
_HAS_LOCK = text(  # the view shows the halves of a 64-bit key, and 1 for such a key
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()"
    " AND objsubid = 1 AND (classid::bigint << 32) | objid::bigint = :key"
)


class Locks(Protocol):
    def hold(self, name: str) -> AbstractContextManager[HeldLock]:
        """Exclusive until the block ends. Raises MailLocked or StoreError."""


class FileLocks:
    """Locks one byte of one file, at an offset given by the name's hash, so there is nothing to clean up."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def hold(self, name: str) -> Iterator[HeldLock]:
        try:
            fd = durable_files.open_own(self._path, os.O_RDWR)
        except OSError as exc:
            raise StoreError(f"quarantine: {exc}") from exc
        try:
            durable_files.give_to_owner(self._path)
            try:
                lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _number(name) & 0x3FFF_FFFF_FFFF_FFFF, 1, 0)
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
            except (BlockingIOError, PermissionError) as exc:  # POSIX allows either
                raise MailLocked from exc
            yield HeldLock()
        finally:
            os.close(fd)


class PostgresLocks:
    """PostgreSQL advisory locks, for all machines that use the same database."""

    def __init__(self, where: Database) -> None:
        self._database = where
        self._engine: Engine | None = None
        self._opening = threading.Lock()

    @contextmanager
    def hold(self, name: str) -> Iterator[HeldLock]:
        number = _number(name)
        with self._connect() as connection:
            try:
                attempt = select(func.pg_try_advisory_xact_lock(number), _NO_LIMIT)
                is_ours = bool(connection.execute(attempt).scalar())
            except SQLAlchemyError as exc:
                raise StoreError(f"state database: {database.reason(exc)}") from exc
            if not is_ours:
                raise MailLocked
            held = _AdvisoryLock(connection, number)
            try:
                yield held
            finally:
                held.release()

    def _connect(self) -> Connection:
        try:
            with self._opening:
                if self._engine is None:
                    self._engine = self._database.engine(wait_s=_WAIT_S, connections=MAX_HELD // 2, statement_s=_WAIT_S)
                    weakref.finalize(self, self._engine.dispose)
            return self._engine.connect()
        except (SQLAlchemyError, DatabaseUnusable) as exc:
            raise StoreError(f"state database: {database.reason(exc)}") from exc


class _AdvisoryLock(HeldLock):
    """A lock of one transaction."""

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._number = number

    def check(self) -> None:
        """Asks the server, in the same transaction, whether its session has the lock."""
        try:
            # An invalidated connection would be replaced by a new one, without the lock.
            if not self._connection.invalidated and self._connection.execute(_HAS_LOCK, {"key": self._number}).scalar():
                return
        except SQLAlchemyError as exc:
            raise LockLost from exc
        raise LockLost

    def release(self) -> None:
        if self._connection.invalidated:
            return
        try:
            self._connection.rollback()
        except SQLAlchemyError:  # the lock must not return to the pool with a connection that works after all
            self._connection.invalidate()


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
