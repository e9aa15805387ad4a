"""The tables of the digests: what is held for whom, who was told, what users chose and asked for.

In the state database if that is on a database server, otherwise in a separate SQLite file, so that mail never waits for
their locks. The column `place` separates machines that share a database but not their quarantine. The mail itself is
only in the quarantine: all rows about mail can be made again from it, but not who was told.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Float, Index, Integer, MetaData, String, Table, Text

from bridge.runtime import schema_version
from bridge.runtime.database import Database
from bridge.runtime.tables import Schema, Tables, TablesFailed

FILE = "digests.sqlite"


class DigestStoreError(TablesFailed):
    """The tables of the digests cannot be used now."""


metadata = MetaData()
items = Table(
    "digest_item",
    metadata,
    Column("place", Text, primary_key=True),
    Column("mail", String(64), primary_key=True),  # our id
    Column("recipient", Text, primary_key=True),  # in the form that is compared
    Column("person", Text, nullable=False),  # whose address that is
    Column("kept_at", Float(53), nullable=False),
    Column("sent_at", Float(53), nullable=False),  # 0: new; negative: claimed then, not confirmed; else announced
    Column("hidden", Integer, nullable=False),  # the person deleted their copy
    Index("digest_item_person", "place", "person", "sent_at"),
    Index("digest_item_kept_at", "place", "kept_at"),
)
people = Table(
    "digest_person",
    metadata,
    Column("place", Text, primary_key=True),
    Column("address", Text, primary_key=True),
    Column("schedule", String(20), nullable=False),  # "": that of the configuration
    Column("language", String(10), nullable=False),  # likewise
    Column("last_at", Float(53), nullable=False),  # of the last digest
    Column("retry_at", Float(53), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("refused_at", Float(53), nullable=False),  # the next hop does not accept mail for this address
)
requests = Table(
    "digest_request",
    metadata,
    Column("seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("place", Text, nullable=False),
    Column("kind", String(20), nullable=False),  # release or allow
    Column("mail", String(64), nullable=False),
    Column("recipient", Text, nullable=False),
    Column("person", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("asked_at", Float(53), nullable=False),
    Column("state", String(20), nullable=False),  # waiting, granted, refused
    Column("decided_at", Float(53), nullable=False),
    Column("decided_by", String(200), nullable=False),
    Index("digest_request_one", "place", "kind", "mail", "recipient", unique=True),
    Index("digest_request_state", "place", "state", "asked_at"),
)
sessions = Table(
    "digest_session",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("person", Text, nullable=False),
    Column("begun_at", Float(53), nullable=False),
    Column("used_at", Float(53), nullable=False),
)
codes = Table(
    "digest_code",
    metadata,
    Column("hash", String(64), primary_key=True),  # of the browser's secret and the address
    Column("code", String(64), nullable=False),  # hashed
    Column("person", Text, nullable=False),
    Column("until", Float(53), nullable=False),
    Column("tries", Integer, nullable=False),
)
state = Table(
    "digest_state",
    metadata,
    Column("place", Text, primary_key=True),
    Column("name", String(40), primary_key=True),
    Column("number", Float(53), nullable=False),
    Column("text", Text, nullable=False),
)


def _create(connection: Connection) -> None:
    metadata.create_all(connection)


# Step n migrates from version n to n + 1. Never change a released step: add another.
MIGRATIONS: list[schema_version.Step] = [_create]
VERSION_TABLE = "digest_schema"
_SCHEMA = Schema(
    "the digest database cannot be used",
    MIGRATIONS,
    VERSION_TABLE,
    0xD16E571,
    DigestStoreError,
    synchronous="NORMAL",
)
_WAIT_S = 30.0  # no mail waits for it, and many threads and processes write


class DigestStore(Tables):
    """Raises DigestStoreError.

    SQLite writes without waiting for the disk: a crash of the process loses nothing, a power cut may lose the writes
    of the last moments, and then a few people get a digest twice.
    """

    def __init__(self, place: Database) -> None:
        super().__init__(place, _SCHEMA, wait_s=_WAIT_S)
