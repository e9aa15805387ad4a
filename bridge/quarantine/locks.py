"""Who may release or remove a mail right now, when the store itself has no locks.

A claim ends with the process that holds it, however that ends: the kernel takes back a lock on a
file, and PostgreSQL one of a lost connection. Machines that share a bucket must share a PostgreSQL
database: a file's lock is known to its own machine alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from sqlalchemy import Engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from bridge.errors import StoreError
from bridge.quarantine.store import InUse
from bridge.runtime import database, durable_files
from bridge.runtime.database import Database, DatabaseUnusable

_TAKEN = "somebody is releasing or removing it right now"
_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process


class Claims(Protocol):
    def hold(self, name: str) -> AbstractContextManager[None]:
        """For us alone. Raises InUse or StoreError."""


class FileClaims:
    """One file; the lock is on the byte that the name's hash says, so nothing has to be tidied up."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StoreError(f"quarantine: {exc}") from exc
        try:
            durable_files.give_to_owner(self._path)
            try:
                lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, _number(name) & 0x3FFF_FFFF_FFFF_FFFF, 1, 0)
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock)
            except (BlockingIOError, PermissionError) as exc:  # POSIX allows either
                raise InUse(_TAKEN) from exc
            yield
        finally:
            os.close(fd)


class ServerClaims:
    """Advisory locks of PostgreSQL, for all machines that use the same database."""

    def __init__(self, where: Database) -> None:
        self._database = where
        self._engine: Engine | None = None

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        number = _number(name)
        try:
            if self._engine is None:
                self._engine = self._database.engine(wait_s=5.0, connections=1)
                weakref.finalize(self, self._engine.dispose)
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        except (SQLAlchemyError, DatabaseUnusable) as exc:
            raise StoreError(f"state database: {database.reason(exc)}") from exc
        with connection:
            try:
                taken = bool(connection.execute(select(func.pg_try_advisory_lock(number))).scalar())
            except SQLAlchemyError as exc:
                raise StoreError(f"state database: {database.reason(exc)}") from exc
            if not taken:
                raise InUse(_TAKEN)
            try:
                yield
            finally:
                try:
                    connection.execute(select(func.pg_advisory_unlock(number)))
                except SQLAlchemyError:  # the connection is gone, and the lock with it
                    pass


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
