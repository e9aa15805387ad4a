"""Merging the segments of a day that is over: a search opens one file for each day instead of eight or eighty.

`merging.json` names the merged segment and its parts. It is written before the merged segment gets its name, and as
long as both exist, the parts do not count: a crash at any point neither loses a mail nor shows it twice.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

from bridge.history.entry import Kind, Row
from bridge.history.segment_files import MERGING, finished_name, is_live, quoted, read_merging, segment_files
from bridge.history.segments import FINISHED_SCHEMA, INDEXES, KIND_COLUMNS, transaction
from bridge.runtime import durable_files

MAX_MERGED = 500 * 1024 * 1024  # bytes of the parts: merging more would take minutes
_DAY_S = 86_400
_COLUMNS = ", ".join(f'"{name}"' for name in Row._fields)
_HOURLY = (
    "CREATE TABLE finished.hourly AS SELECT hour, kind, sum(mails) AS mails, sum(size) AS size FROM hours GROUP BY 1, 2"
)


def merge_days(directory: Path, now: float) -> None:
    """Merge the segments of each day that is over; one day at a time, because each takes seconds."""
    complete_merge(directory)
    days = defaultdict(list)
    for first, last, path in segment_files(directory):
        day = int(first // _DAY_S)
        if not is_live(path) and last < (now // _DAY_S) * _DAY_S:
            days[day].append((first, last, path))
    for _, parts in sorted(days.items()):
        if len(parts) > 1 and sum(path.stat().st_size for _, _, path in parts) <= MAX_MERGED:
            _merge(directory, sorted(parts))


def complete_merge(directory: Path) -> None:
    """Remove the parts of a merged segment, if a crash has left them."""
    merging = read_merging(directory)
    if merging is not None and (directory / merging["merged"]).exists():
        for name in merging["parts"]:
            (directory / name).unlink(missing_ok=True)
    (directory / MERGING).unlink(missing_ok=True)


def _merge(directory: Path, parts: list[tuple[float, float, Path]]) -> None:
    token = secrets.token_hex(4)
    new = directory / f"{token}.new"
    name = finished_name(min(first for first, _, _ in parts), max(last for _, last, _ in parts) - 0.001, token)
    try:
        _copy_all([path for _, _, path in parts], new)
        durable_files.sync_file(new)
        note = json.dumps({"merged": name, "parts": [path.name for _, _, path in parts]})
        (directory / f"{MERGING}.new").unlink(missing_ok=True)
        durable_files.write(directory / f"{MERGING}.new", [note.encode()], lambda: None)
        (directory / f"{MERGING}.new").rename(directory / MERGING)
        new.rename(directory / name)
    finally:
        new.unlink(missing_ok=True)
    complete_merge(directory)


def _copy_all(paths: list[Path], new: Path) -> None:
    new.unlink(missing_ok=True)
    durable_files.make_private(new)
    with closing(sqlite3.connect("file::memory:", uri=True, isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS finished", (f"file:{quoted(new)}",))
        connection.execute("PRAGMA finished.synchronous=OFF")  # nothing is lost: the parts are still there
        connection.execute("PRAGMA finished.journal_mode=OFF")
        for statement in FINISHED_SCHEMA:
            connection.execute(statement)
        connection.execute("CREATE TEMP TABLE keys (key TEXT, mail INTEGER)")  # temporary ones are not kept in memory
        connection.execute("CREATE TEMP TABLE numbers (old INTEGER PRIMARY KEY, new INTEGER)")
        connection.execute("CREATE TEMP TABLE hours (hour INTEGER, kind INTEGER, mails INTEGER, size INTEGER)")
        kinds: dict[Kind, int] = {}
        for path in paths:
            connection.execute("ATTACH ? AS part", (f"file:{quoted(path)}?mode=ro",))  # must exist
            with transaction(connection):
                _copy(connection, kinds)
            connection.execute("DETACH part")
        with transaction(connection):
            connection.execute("INSERT INTO finished.address SELECT key, mail FROM keys ORDER BY key, mail")
            for statement in (*INDEXES, _HOURLY):
                connection.execute(statement)


def _copy(connection: sqlite3.Connection, kinds: dict[Kind, int]) -> None:
    """In the merged segment, kinds have other numbers, and mails get the next free ones."""
    connection.execute("DELETE FROM numbers")
    for old, *values in connection.execute(f"SELECT {KIND_COLUMNS} FROM part.kind").fetchall():  # noqa: S608
        number = kinds.setdefault(Kind(*values), len(kinds) + 1)
        connection.execute("INSERT INTO numbers VALUES (?, ?)", (old, number))
        connection.execute(
            f"INSERT OR IGNORE INTO finished.kind VALUES (?, {', '.join('?' * len(values))})",  # noqa: S608
            (number, *values),
        )
    (before,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM finished.mail").fetchone()
    connection.execute(
        f"INSERT INTO finished.mail (rowid, kind, {_COLUMNS}) SELECT mail.rowid + ?, numbers.new, {_COLUMNS} "  # noqa: S608
        "FROM part.mail JOIN numbers ON numbers.old = mail.kind ORDER BY mail.rowid",
        (before,),
    )
    connection.execute("INSERT INTO keys SELECT key, mail + ? FROM part.address", (before,))
    connection.execute("INSERT INTO hours SELECT hour, new, mails, size FROM part.hourly JOIN numbers ON old = kind")
