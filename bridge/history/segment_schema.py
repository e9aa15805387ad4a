"""The tables of a finished segment, and the indexes by which its mails are found.

A mail is found by the addresses of its sender and its recipients, and by their domains: `address` has these keys. Those
of nearly all mails are the addresses in lower case, so they are indexes on expressions, which SQLite makes without
Python. Only the keys of a mail with several recipients, or with an address that is compared in another form (quotes,
comments, an international domain, a final dot), are made by `address_keys` and stored. `address` is a view of both; in
segments of earlier versions, it is a table with all of them.
"""

from __future__ import annotations

import sqlite3
from string import ascii_lowercase, ascii_uppercase

from bridge.history.entry import MAX_KEY, Kind, Row, address_keys

MAIL_COLUMNS = ", ".join(f'"{name}"' for name in Row._fields)
_HAS_ONE_RECIPIENT = "recipients != '' AND NOT instr(recipients, char(10))"


def _domain(column: str) -> str:
    return f"lower(substr({column}, instr({column}, '@') + 1))"


# By the name of its index: a key, and which mails have it.
_ADDRESS_KEYS = {
    "sender": ("'from:' || lower(sender)", ""),
    "sender_domain": (f"'from:@' || {_domain('sender')}", "WHERE instr(sender, '@') > 1"),
    "recipient": ("'to:' || lower(recipients)", f"WHERE {_HAS_ONE_RECIPIENT}"),
    "recipient_domain": (
        f"'to:@' || {_domain('recipients')}",
        f"WHERE {_HAS_ONE_RECIPIENT} AND instr(recipients, '@') > 1",
    ),
}
_ADDRESS = " UNION ALL ".join(
    [
        *(f"SELECT {key} AS key, rowid AS mail FROM mail {where}" for key, where in _ADDRESS_KEYS.values()),  # noqa: S608
        "SELECT key, mail FROM odd_address",
    ]
)
TABLES = (
    f"CREATE TABLE finished.kind (number INTEGER PRIMARY KEY, {', '.join(Kind._fields)})",
    f"CREATE TABLE finished.mail (kind INTEGER, {MAIL_COLUMNS})",
    "CREATE TABLE finished.odd_address (key TEXT, mail INTEGER, PRIMARY KEY (key, mail)) WITHOUT ROWID",
    f"CREATE VIEW finished.address AS {_ADDRESS}",
)
_INDEXED = ("id", "session", "client", "message_id", "ggrid", "queue_id", "next_id", "attempt")
_INDEXES = (  # `hourly` has what statistics count most
    *(f"CREATE INDEX finished.mail_{name} ON mail ({name})" for name in _INDEXED),
    *(f"CREATE INDEX finished.mail_{name} ON mail ({key}) {where}" for name, (key, where) in _ADDRESS_KEYS.items()),
    "CREATE INDEX finished.mail_at ON mail (at, id)",
    "CREATE INDEX finished.mail_kind ON mail (kind, at)",
    "CREATE VIRTUAL TABLE finished.words USING "
    "fts5(subject, content='', detail=none, columnsize=0, tokenize='unicode61 remove_diacritics 0')",
    "INSERT INTO finished.words (rowid, subject) SELECT rowid, subject FROM finished.mail WHERE subject != ''",
    "CREATE TABLE finished.hourly AS SELECT CAST(at / 3600 AS INTEGER) AS hour, kind, sum(mails) AS mails, "
    "sum(size * mails) AS size FROM finished.mail GROUP BY 1, 2",
)
# Quotes, comments, an address behind a name, white space, an address literal, and what separates recipients.
_ODD_CHARACTERS = ("'\"'", "'('", "'>'", "' '", "char(9)", "'@['", "char(10)")


def _may_be_odd(column: str) -> str:
    """Whether the indexes may lack a key of these addresses, because it is not the address in lower case."""
    odd = " OR ".join(f"instr({column}, {character})" for character in _ODD_CHARACTERS)
    return (
        f"({odd} OR {column} GLOB '*@*@*' OR substr({column}, -1) IN ('.', '@') "
        f"OR length(CAST({column} AS BLOB)) != length({column}) OR length({column}) > {MAX_KEY})"
    )


_ODD_MAILS = f"""
SELECT rowid, sender, recipients FROM finished.mail WHERE {_may_be_odd("sender")} OR {_may_be_odd("recipients")}
"""  # noqa: S608
_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)  # as SQLite's lower()


def index(connection: sqlite3.Connection) -> None:
    """Make everything by which the mails in `finished` are found, within a transaction."""
    for statement in _INDEXES:
        connection.execute(statement)
    # SQLite sorts the keys: sorting them here would stop all other threads for a tenth of a second.
    connection.execute("CREATE TEMP TABLE keys (key TEXT, mail INTEGER)")  # temporary ones are not kept in memory
    mails = connection.execute(_ODD_MAILS)
    odd = ((key, number) for number, sender, recipients in mails for key in _odd_keys(sender, recipients))
    connection.executemany("INSERT INTO keys VALUES (?, ?)", odd)
    connection.execute("INSERT INTO finished.odd_address SELECT key, mail FROM keys ORDER BY key, mail")
    connection.execute("DROP TABLE keys")


def _odd_keys(sender: str, recipients: str) -> set[str]:
    """The keys of a mail that the indexes do not have."""
    several = recipients.split("\n") if recipients else []
    indexed = _indexed("from", sender) | (_indexed("to", recipients) if len(several) == 1 else set())
    return set(address_keys(sender, several)) - indexed


def _indexed(role: str, address: str) -> set[str]:
    """The keys of an address as the indexes have them."""
    lower = address.translate(_LOWER)
    local, _, domain = lower.partition("@")
    return {f"{role}:{lower}", f"{role}:@{domain}"} if local != lower and local else {f"{role}:{lower}"}
