"""The tables of what people reported, in the service's database.

They have a version of their own: a node of a version that does not learn can still use the other tables.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Float, Index, MetaData, String, Table, Text

from bridge.runtime import schema_version

VERSION_TABLE = "learning_schema"

metadata = MetaData()
learning_scope = Table(
    "learning_scope",
    metadata,
    Column("scope", String(36), primary_key=True),
    Column("version", BigInteger, nullable=False),
)
learning_vote = Table(
    "learning_vote",
    metadata,
    Column("scope", String(36), primary_key=True),
    Column("mail", String(64), primary_key=True),  # SHA-256 of the content, hex
    Column("reporter", String(64), primary_key=True),  # SHA-256 of the name, hex
    Column("kind", String(10), nullable=False),
    Column("sender", String(400), nullable=False),
    Column("origin", String(64), nullable=False),
    Column("signals", Text, nullable=False),  # JSON array
    Column("at", Float(53), nullable=False),
    Index("learning_vote_at", "scope", "at"),
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


# Migration n takes a database from version n to n + 1. Never change a released migration: append a new one.
MIGRATIONS: list[schema_version.Step] = [_create]
