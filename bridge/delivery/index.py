"""The quarantine's index: what its files say, in an SQLite database that people can search.

The files are the truth. Nothing is in here that cannot be read from them again, so an index that
is missing is made, one that is damaged is set aside and made anew, and one that fails costs nobody
a mail: its error is IndexFailed, and whoever adds to it goes on.

Readers and writers are several processes (the daemon, and people at the command line), hence WAL
and a busy timeout. One connection for each process, opened when first needed.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.delivery import durable, kept
from bridge.delivery.kept import Kept
from bridge.errors import StoreError

BUSY_S = 0.5  # a mail's reply waits for this, so it is short; what was missed is repaired later

# Number n brings a database from version n to n + 1. Never change one that was released: add one.
MIGRATIONS = (
    """
    CREATE TABLE quarantine (
        id TEXT PRIMARY KEY, kept_at REAL NOT NULL, sender TEXT NOT NULL, subject TEXT NOT NULL,
        listener TEXT NOT NULL, tenant TEXT NOT NULL, decision TEXT NOT NULL, state TEXT NOT NULL,
        about BLOB NOT NULL, releases BLOB NOT NULL
    );
    CREATE INDEX quarantine_kept_at ON quarantine (kept_at);
    CREATE TABLE quarantine_recipient (id TEXT NOT NULL, address TEXT NOT NULL, PRIMARY KEY (id, address));
    CREATE INDEX quarantine_recipient_address ON quarantine_recipient (address);
    CREATE TABLE quarantine_tag (id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (id, tag));
    """,
)
_TABLES = ("quarantine", "quarantine_recipient", "quarantine_tag")
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class IndexFailed(StoreError):
    """The index cannot be used now; the mail is not touched by that."""


@dataclass(frozen=True, slots=True)
class Item:
    """One mail's files."""

    id: str
    about: bytes
    releases: bytes
    kept_at: float  # the time of the .json, for when its content is damaged


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for; everything that is given must hold. Texts without `*` match anywhere, but tags whole."""

    recipient: str = ""
    sender: str | None = None  # "": the null sender
    subject: str = ""
    tag: str = ""
    tenant: str = ""
    decision: str = ""
    listener: str = ""
    state: str = ""
    since: float | None = None  # seconds since 1970
    until: float | None = None
    limit: int = 0  # 0: all


class Index:
    """A file, or memory when there is none."""

    def __init__(self, path: Path | None, busy_s: float = BUSY_S) -> None:
        self._path = path
        self._busy_s = busy_s
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, ...] = ()  # of the open file, and of the process that opened it

    def put(self, items: Iterable[Item]) -> None:
        """Add, or replace what is known of them. Raises IndexFailed."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            for item in items:
                _delete(connection, item.id)
                _insert(connection, item)

    def remove(self, ids: Iterable[str]) -> None:
        """Raises IndexFailed."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            for mail_id in ids:
                _delete(connection, mail_id)

    def known(self) -> dict[str, int]:
        """The ids, each with the size of its .releases. Raises IndexFailed."""
        with self._transaction("BEGIN") as connection:
            return dict(connection.execute("SELECT id, length(releases) FROM quarantine").fetchall())

    def search(self, query: Query) -> list[Kept]:
        """Newest first. Raises IndexFailed."""
        where, values = _where(query)
        sql = f"SELECT id, about, releases, kept_at FROM quarantine{where} ORDER BY kept_at DESC, id DESC LIMIT ?"  # noqa: S608  fixed texts
        with self._transaction("BEGIN") as connection:
            rows = connection.execute(sql, [*values, query.limit or -1]).fetchall()
        return [kept.read(*row) for row in rows]

    def check(self) -> None:
        """Look at every page. Raises IndexFailed; a damaged file has then been set aside."""
        with self._transaction("BEGIN") as connection:
            (word,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if word != "ok":
            with self._lock:
                self._set_aside()
            raise IndexFailed(f"state database: {word}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        if not self._lock.acquire(timeout=self._busy_s):
            raise IndexFailed("state database: busy")
        try:
            connection = self._open()
            connection.execute(begin)
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
                self._set_aside()
            raise IndexFailed(f"state database: {exc}") from exc
        finally:
            self._lock.release()

    def _open(self) -> sqlite3.Connection:
        """The connection; a new one in a new process, or when the file is not the same any more."""
        if self._connection is not None:
            if self._path is None or self._identity == (*_file(self._path), os.getpid()):
                return self._connection
            self.close()
        if self._path is not None:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            durable.give_to_owner(self._path)
            self._identity = (*_file(self._path), os.getpid())
        connection = sqlite3.connect(
            self._path or ":memory:", timeout=self._busy_s, isolation_level=None, check_same_thread=False
        )
        weakref.finalize(self, connection.close)
        self._connection = connection
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")  # what a power cut takes is read from the files again
            _migrate(connection)
        except BaseException:
            self.close()
            raise
        return connection

    def _set_aside(self) -> None:
        """Keep a damaged file for whoever wants to look, unless another process already did."""
        if self._path is None or not _file(self._path) or self._identity[:2] != _file(self._path):
            return
        self.close()
        for end in ("-wal", "-shm", ""):
            part = self._path.with_name(self._path.name + end)
            try:
                part.replace(self._path.with_name(f"{self._path.name}.damaged{end}"))
            except OSError:  # not there, or nothing we could do about it
                pass


def _file(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_dev, found.st_ino)


def _migrate(connection: sqlite3.Connection) -> None:
    if connection.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            raise IndexFailed("state database: made by a newer version of this program")
        for step in MIGRATIONS[version:]:
            for statement in filter(str.strip, step.split(";")):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _delete(connection: sqlite3.Connection, mail_id: str) -> None:
    for table in _TABLES:
        connection.execute(f"DELETE FROM {table} WHERE id = ?", [mail_id])  # noqa: S608  fixed names


def _insert(connection: sqlite3.Connection, item: Item) -> None:
    mail = kept.read(item.id, item.about, item.releases, item.kept_at)
    row = [item.id, mail.time.timestamp(), _text(mail.envelope.sender), _text(mail.subject), _text(mail.listener)]
    row += [_text(mail.tenant), _text(mail.decision), mail.state, item.about, item.releases]
    connection.execute("INSERT INTO quarantine VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    for table, values in (("quarantine_recipient", mail.envelope.addresses), ("quarantine_tag", mail.tags)):
        rows = [(item.id, value) for value in dict.fromkeys(map(_text, values))]
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)  # noqa: S608  fixed names


def _text(value: str) -> str:
    """As it is searched for: in lower case, and without what a database cannot hold."""
    return value.lower().encode("utf-8", "replace").decode()


def _where(query: Query) -> tuple[str, list[object]]:
    conditions: list[str] = []
    values: list[object] = []

    def add(condition: str, value: object) -> None:
        conditions.append(condition)
        values.append(value)

    if query.recipient:
        add(
            "id IN (SELECT id FROM quarantine_recipient WHERE address LIKE ? ESCAPE '\\')",
            _pattern(query.recipient),
        )
    if query.tag:
        add("id IN (SELECT id FROM quarantine_tag WHERE tag LIKE ? ESCAPE '\\')", _pattern(query.tag, whole=True))
    if query.sender is not None:
        add("sender LIKE ? ESCAPE '\\'", _pattern(query.sender, whole=not query.sender))
    if query.subject:
        add("subject LIKE ? ESCAPE '\\'", _pattern(query.subject))
    for column, wanted in (
        ("tenant", query.tenant),
        ("decision", query.decision),
        ("listener", query.listener),
        ("state", query.state),
    ):
        if wanted:
            add(f"{column} = ?", _text(wanted))
    if query.since is not None:
        add("kept_at >= ?", query.since)
    if query.until is not None:
        add("kept_at < ?", query.until)
    return (" WHERE " + " AND ".join(conditions) if conditions else ""), values


def _pattern(wanted: str, whole: bool = False) -> str:
    """For LIKE: `*` stands for anything; without one the text may stand anywhere."""
    text = _text(wanted)
    for special in "\\%_":
        text = text.replace(special, "\\" + special)
    return text.replace("*", "%") if whole or "*" in text else f"%{text}%"
