"""The console's own tables: users, sessions, sign-in links, failed attempts, the audit log.

In the state database if that is on a database server, otherwise in an SQLite file of the console's own, so that its
writing never holds a lock that mail waits for. Everything is synchronous and must run in a thread.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    inspect,
    text,
)

from bridge.runtime import schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import WAIT_S, Schema, Tables, TablesFailed

FILE = "console.sqlite"


class ConsoleStoreError(TablesFailed):
    """The console's tables cannot be used now."""


metadata = MetaData()
users = Table(
    "console_user",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("password", String(300), nullable=False),  # argon2; "": signs in by a link only
    Column("role", String(20), nullable=False),
    Column("tenants", Text, nullable=False),
    Column("made_at", Float(53), nullable=False),
    Column("seen_at", Float(53), nullable=False, server_default="0"),  # the last sign-in
)
MAX_GROUP = 300  # characters of a group's name that are compared
sessions = Table(
    "console_session",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("label", String(16), nullable=False, unique=True),  # names it on pages; says nothing about the session's id
    Column("name", String(100), nullable=False),
    Column("role", String(20), nullable=False),
    Column("tenants", Text, nullable=False),
    Column("provider", String(300), nullable=False),
    Column("address", String(64), nullable=False),
    Column("browser", String(300), nullable=False),
    Column("begun_at", Float(53), nullable=False),
    Column("used_at", Float(53), nullable=False),
    Column("subject", String(255), nullable=False, server_default=""),  # of a person of the provider
    Column("member_of", String(MAX_GROUP), nullable=False, server_default=""),  # likewise, the group that has the role
    Index("console_session_name", "name"),
)
links = Table(
    "console_link",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("until", Float(53), nullable=False),
)
attempts = Table(
    "console_attempt",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("about", String(120), nullable=False),  # `user:NAME` or `from:ADDRESS`
    Column("at", Float(53), nullable=False),
    Index("console_attempt_about", "about", "at"),
)
audit = Table(
    "console_audit",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("name", String(100), nullable=False),
    Column("role", String(20), nullable=False),
    Column("address", String(64), nullable=False),
    Column("action", String(60), nullable=False),
    Column("mail", String(64), nullable=False),  # our id
    Column("detail", String(1000), nullable=False),
    Column("result", String(20), nullable=False),  # started, done, refused, failed
    Column("provider", String(300), nullable=False, server_default=""),  # the issuer; "": a local user, or an old entry
    Column("subject", String(255), nullable=False, server_default=""),
    Index("console_audit_name", "name", "seq"),
    Index("console_audit_mail", "mail", "seq"),
    Index("console_audit_at", "at"),
    Index("console_audit_subject", "subject", "seq"),
    sqlite_autoincrement=True,  # numbers are never used again: they are the order
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


def _add_subjects(connection: Connection) -> None:
    """Older sessions identify the provider's people only by name, so these people have to sign in again."""
    _add_column(connection, sessions, "subject", 255)
    _add_column(connection, audit, "provider", 300)
    _add_column(connection, audit, "subject", 255)
    for index in audit.indexes:
        index.create(connection, checkfirst=True)
    connection.execute(delete(sessions).where(sessions.c.provider != "", sessions.c.subject == ""))


def _add_groups(connection: Connection) -> None:
    """Older sessions of the provider's people have no group, so these people have to sign in again."""
    _add_column(connection, sessions, "member_of", MAX_GROUP)
    connection.execute(delete(sessions).where(sessions.c.provider != "", sessions.c.member_of == ""))


def _add_column(connection: Connection, table: Table, name: str, length: int) -> None:
    if name not in {column["name"] for column in inspect(connection).get_columns(table.name)}:  # a new database has it
        connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {name} VARCHAR({length}) DEFAULT '' NOT NULL"))


# Step n migrates from version n to n + 1. Never change a released step: add another.
# An earlier program would write sessions that are identified by name only.
MIGRATIONS: list[schema_version.Step] = [_create, schema_version.Incompatible(_add_subjects), _add_groups]
VERSION_TABLE = "console_schema"
_LOCK = 0xC0A501E  # for the migration, in PostgreSQL


_SCHEMA = Schema("the console's database cannot be used", MIGRATIONS, VERSION_TABLE, _LOCK, ConsoleStoreError)


class ConsoleStore(Tables):
    """Raises ConsoleStoreError."""

    def __init__(self, place: Database, wait_s: float = WAIT_S) -> None:
        super().__init__(place, _SCHEMA, wait_s=wait_s)
