"""The quarantine index's tables: what their columns contain, and how older databases become what they are now.

Columns that are searched contain normalised text, so that a search compares bytes. If this is wrong, a search misses a
mail, or an upgrade loses the index (which is then read from the store again).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Double,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    func,
    inspect,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy import Index as TableIndex

from bridge.mail.address import comparable_address
from bridge.quarantine import record
from bridge.quarantine.record import MailRecord, StoredRecord
from bridge.runtime import schema_version
from bridge.runtime.storable import storable

VERSION_TABLE = "quarantine_schema"
# Bytes. A row of PostgreSQL's indexes has at most 2,700, and `place` and `id` need some of them. No mail server
# delivers to an address of this length; a milter's may have 2,048 bytes, which may be more in lower case.
MAX_INDEXED = 2000
CUT = "\u2026"
_BATCH = 200  # records read at a time
_SINCE_3 = ("client", "tags")  # columns of version 3

metadata = MetaData()
mails = Table(
    "quarantine",
    metadata,
    Column("place", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("kept_at", Double, nullable=False),
    *(Column(name, Text, nullable=False) for name in ("sender", "subject", "listener", "tenant", "decision", "state")),
    Column("about", LargeBinary, nullable=False),
    Column("releases", LargeBinary, nullable=False),
    *(Column(name, Text, nullable=False, server_default="") for name in _SINCE_3),
    TableIndex("quarantine_kept_at", "kept_at"),
)
# Everything that a search compares, in the order of a page: for 100,000 mails, a tenth as much data is then read.
TableIndex(
    "quarantine_search",
    *(mails.c[name] for name in ("place", "kept_at", "id", "tenant", "state", "decision", "listener", *_SINCE_3)),
    *(mails.c.sender, mails.c.subject),
).ddl_if(dialect="sqlite")  # a row of PostgreSQL's indexes has at most 2,700 bytes
recipients = Table(
    "quarantine_recipient",
    metadata,
    *(Column(name, Text, primary_key=True) for name in ("place", "id", "address")),
    TableIndex("quarantine_recipient_address", "address"),
)
tags = Table("quarantine_tag", metadata, *(Column(name, Text, primary_key=True) for name in ("place", "id", "tag")))


# What the columns contain


def columns_of(mail: MailRecord) -> dict[str, Any]:
    texts = {"subject": mail.subject, "listener": mail.listener, "tenant": mail.tenant, "decision": mail.decision}
    return {
        "kept_at": mail.time.timestamp(),
        "sender": address_text(mail.envelope.sender),
        "state": mail.state,
        "client": _client_text(mail.client.address),
        "tags": _tags_text(mail),
        **{name: search_text(value) for name, value in texts.items()},
    }


def search_text(value: str) -> str:
    """Normalised for searching: lower case, without NUL and lone surrogates, which databases refuse."""
    return str(storable(value.lower()))


def address_text(address: str) -> str:
    """The address as it came and, if that differs, the form that is compared: a search finds either."""
    return " ".join(dict.fromkeys((search_text(address), search_text(comparable_address(address)))))


def recipient_text(address: str) -> str:
    """As `address_text`, but short enough for an index: of a long address, only the form that is compared.

    If that is too long as well, only its end is kept, after the mark `CUT`. Such a text is not the recipient's address.
    """
    text = address_text(address)
    return text if is_short(text) else indexed_text(search_text(comparable_address(address)))


def indexed_text(text: str) -> str:
    """The text if an index can contain it, otherwise its end: the end of an address is its domain."""
    if is_short(text):
        return text
    return CUT + text.encode("utf-8")[-(MAX_INDEXED - len(CUT.encode())) :].decode("utf-8", "ignore")


def is_short(text: str) -> bool:
    """Whether an index can contain this normalised text."""
    return len(text) <= MAX_INDEXED // 4 or len(text.encode("utf-8")) <= MAX_INDEXED


def _tags_text(mail: MailRecord) -> str:
    """Each tag on a separate line."""
    return "".join(f"\n{tag}" for tag in dict.fromkeys(map(search_text, mail.tags))) + "\n" if mail.tags else ""


def _client_text(address: str | None) -> str:
    """Sorts by network: 32 hexadecimal digits, with IPv4 mapped into IPv6. "" if the address is unknown."""
    try:
        ip = ipaddress.ip_address(address or "")
    except ValueError:
        return ""
    return f"{ip_number(ip):032x}"


def ip_number(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> int:
    return int(ip) + (0xFFFF << 32 if ip.version == 4 else 0)


# Versions


def _create(connection: Connection) -> None:
    """Version 2 adds `place`. Version 1 had SQLite files only; their rows are copied."""
    old = [table.name for table in metadata.sorted_tables if connection.dialect.has_table(connection, table.name)]
    for name in old:
        connection.execute(text(f"ALTER TABLE {name} RENAME TO {name}_1"))
    for index in ("quarantine_kept_at", "quarantine_recipient_address"):
        connection.execute(text(f"DROP INDEX IF EXISTS {index}"))
    metadata.create_all(connection)
    for name in old:
        copied = [column.name for column in metadata.tables[name].columns if column.name not in ("place", *_SINCE_3)]
        columns = ", ".join(copied)
        connection.execute(text(f"INSERT INTO {name} (place, {columns}) SELECT '', {columns} FROM {name}_1"))  # noqa: S608  fixed names
        connection.execute(text(f"DROP TABLE {name}_1"))
    if connection.dialect.name == "sqlite":
        connection.execute(text("PRAGMA user_version=2"))  # version 1 checks this, and then leaves the file alone


def _add_columns(connection: Connection) -> None:
    """Version 3 adds `client` and `tags`, which are read from each record, and an index for searching."""
    known = {column["name"] for column in inspect(connection).get_columns(mails.name)}
    for name in _SINCE_3:
        if name not in known:  # a new database has them already
            connection.execute(text(f"ALTER TABLE {mails.name} ADD COLUMN {name} TEXT DEFAULT '' NOT NULL"))
    own = (tags.c.place == mails.c.place, tags.c.id == mails.c.id)
    joined = select(func.aggregate_strings("\n" + tags.c.tag, "")).where(*own).scalar_subquery()
    connection.execute(update(mails).values(tags=func.coalesce(joined + "\n", "")))
    own_key = (mails.c.place == bindparam("own_place"), mails.c.id == bindparam("own_id"))
    set_client = update(mails).where(*own_key).values(client=bindparam("client"))
    for rows in _all_records(connection):
        values = []
        for place, *stored in rows:
            mail = record.read(StoredRecord(*stored))
            values.append({"own_place": place, "own_id": mail.id, "client": _client_text(mail.client.address)})
        connection.execute(set_client, values)
    for index in mails.indexes:
        if index.name == "quarantine_search" and connection.dialect.name == "sqlite":
            index.create(connection, checkfirst=True)


def _all_records(connection: Connection) -> Iterator[Sequence[Any]]:
    """The records of all places, in batches."""
    key = tuple_(mails.c.place, mails.c.id)
    sql = select(mails.c.place, mails.c.id, mails.c.about, mails.c.releases, mails.c.kept_at)
    sql = sql.order_by(mails.c.place, mails.c.id).limit(_BATCH)
    rows: Sequence[Any] = connection.execute(sql).all()
    while rows:
        yield rows
        rows = connection.execute(sql.where(key > tuple_(*rows[-1][:2]))).all()


# Step n migrates a database from version n to n + 1. Never change a released step; add one.
# An earlier program would write rows without `client` and `tags`, which searches would then miss.
MIGRATIONS: list[schema_version.Step] = [
    schema_version.Incompatible(_create),
    schema_version.Incompatible(_add_columns),
]
