"""Which mails in a live segment have an address whose spelling for comparison differs from the one it was written in.

Only a Python function finds such a mail, and every search would otherwise have to call it for every mail. A live
segment only grows, so each process remembers these mails and looks only at newer ones. Finding them among 38,000 mails
takes 56 ms, and 124 ms with one GLOB for all characters (SQLite 3.40).
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

# Not ASCII, a backslash, an address literal; or what is left out: white space, a comment.
_IS_NOT_ASCII = "length({0}) <> length(CAST({0} AS BLOB))"
_IS_ODD = " OR ".join([_IS_NOT_ASCII, *(f"{{0}} LIKE '%{character}%'" for character in " \t\\](")])
_ODD_MAILS = (
    f"SELECT rowid FROM mail WHERE rowid > ? AND ({_IS_ODD.format('sender')} OR {_IS_ODD.format('recipients')})"  # noqa: S608
)
IS_ODD = "rowid IN (SELECT mail FROM odd) OR rowid > (SELECT max(mail) FROM odd)"  # newer ones may be, too

_known: dict[Path, tuple[int, tuple[int, ...]]] = {}  # by segment: the last mail that was looked at, and all odd ones


def add_table(connection: sqlite3.Connection, live_segment: Path) -> None:
    """The temporary table `odd`, for the condition `IS_ODD`. Its last mail is the last one that was looked at."""
    seen, odd = _known.get(live_segment, (0, ()))
    (last,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM mail").fetchone()
    if last > seen:
        odd = (*odd, *(number for (number,) in connection.execute(_ODD_MAILS, (seen,))))
        for path in [path for path in list(_known) if not path.exists()]:
            _known.pop(path, None)
        _known[live_segment] = (last, odd)
    connection.execute("CREATE TEMP TABLE odd (mail INTEGER PRIMARY KEY)")
    connection.executemany("INSERT OR IGNORE INTO odd VALUES (?)", ((number,) for number in (*odd, last)))
