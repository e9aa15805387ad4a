"""The keys of a segment that is being finished: for its addresses, and for the queue ids that several next hops gave.

Nearly all addresses are plain. SQLite makes their keys itself, which takes 10 us for a mail instead of 14, and does not
need the interpreter's lock. Python makes those of the others (`entry.address_keys`); both must make the same ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from bridge.history.entry import MAX_KEY, keys_of_address, queue_id_keys

# At most one @, no dot at the end, and of ASCII only letters, digits and -./?^_`{|}~*+= : only letter case differs
# between such an address and the form in which it is compared. Several recipients are separated by line feeds.
_IS_PLAIN = (
    "({0} NOT GLOB '*[^--9?-Z^-~*+=]*' AND {0} NOT LIKE '%@%@%' "
    f"AND substr({{0}}, -1) NOT IN ('.', '@') AND length({{0}}) <= {MAX_KEY})"
)
_WRITTEN = f"""
CREATE TEMP TABLE written AS
SELECT rowid AS mail, 'from:' AS role, sender AS written, {_IS_PLAIN.format("sender")} AS is_plain FROM finished.mail
UNION ALL
SELECT rowid, 'to:', recipients, {_IS_PLAIN.format("recipients")} FROM finished.mail WHERE recipients != ''
"""  # noqa: S608
_PUT = "INSERT INTO keys VALUES (?, ?)"


def put_keys(connection: sqlite3.Connection) -> None:
    """Fill the table `finished.address`.

    SQLite sorts the keys: sorting them here would stop all other threads for a tenth of a second.
    """
    connection.execute(_WRITTEN)
    connection.execute("CREATE TEMP TABLE keys (key TEXT, mail INTEGER)")
    for key in ("lower(written)", "lower(substr(written, instr(written, '@')))"):  # the same if there is no @
        connection.execute(f"INSERT INTO keys SELECT role || {key}, mail FROM written WHERE is_plain")  # noqa: S608
    connection.executemany(_PUT, _of_others(connection))
    connection.executemany(_PUT, _of_queue_ids(connection))
    connection.execute("INSERT OR IGNORE INTO finished.address SELECT key, mail FROM keys ORDER BY key, mail")
    connection.execute("DROP TABLE keys")
    connection.execute("DROP TABLE written")


def _of_others(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    for mail, role, written in connection.execute("SELECT mail, role, written FROM written WHERE NOT is_plain"):
        for address in written.split("\n") if role == "to:" else (written,):
            for key in keys_of_address(role, address):
                yield key, mail


def _of_queue_ids(connection: sqlite3.Connection) -> Iterator[tuple[str, int]]:
    for mail, next_id in connection.execute("SELECT rowid, next_id FROM finished.mail WHERE next_id LIKE '%,%'"):
        for key in queue_id_keys(next_id):
            yield key, mail
