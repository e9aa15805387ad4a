"""The version of a schema: which steps it needs, and whether this program may use tables that a newer one changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Engine, Integer, MetaData, Table, insert, inspect, null, select, text, update
from sqlalchemy.exc import DBAPIError

from bridge.errors import BridgeError
from bridge.runtime.database import reason, writing

_OLDEST = "oldest_reader"
_RULE_WAIT_MS = 1000  # for the lock of a version table; others that start meanwhile wait behind us
_NOT_NOW = ("42501", "55P03", "57014")  # PostgreSQL: insufficient_privilege, lock_not_available, query_canceled

Step = Callable[[Connection], None]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Incompatible:
    """A step after which programs that do not know it must not use the tables.

    All other steps only add (tables, indexes, columns that are nullable or have a default), so that two versions can
    work side by side during an upgrade. docs/reference/stability.md says when a release may contain such a step.
    """

    step: Step

    def __call__(self, connection: Connection) -> None:
        self.step(connection)


class DatabaseNewer(BridgeError):
    """The schema was made by a newer version of this program, and this one must not use it."""


def migrate(connection: Connection, steps: Sequence[Step], table: str = "schema_version") -> None:
    """Upgrade a schema to the newest version; `table` stores the current one. Raises DatabaseNewer.

    Step n upgrades from version n to n + 1. Components that may share a database each have their own `table`.
    The transaction must be one of `writing` with a lock: several processes may start at the same time.

    The table also says which is the oldest version whose programs may use the schema: during an upgrade, a program that
    knows fewer steps can still start with a database that a newer one has already changed.
    """
    schema = Table(table, MetaData(), Column("version", Integer, nullable=False), Column(_OLDEST, Integer))
    schema.create(connection, checkfirst=True)
    has_rule = _OLDEST in {column["name"] for column in inspect(connection).get_columns(table)}
    found = connection.execute(select(schema) if has_rule else select(schema.c.version, null())).first()
    if found is None:
        connection.execute(insert(schema).values(version=0))
    version, oldest_reader = found or (0, None)
    known = len(steps)
    if version > known:
        _accept_newer(table, version, oldest_reader, known)
        return
    for step in steps[version:]:
        step(connection)
    if not has_rule and not _add_rule(connection, table, is_needed=version < known):
        return
    oldest = max((number for number, step in enumerate(steps, 1) if isinstance(step, Incompatible)), default=1)
    if (version, oldest_reader) != (known, oldest):
        connection.execute(update(schema).values(version=known, oldest_reader=oldest))


def _add_rule(connection: Connection, table: str, *, is_needed: bool) -> bool:
    """Add the column to a table made before the column was introduced. Returns whether the table has it now.

    If no step was made, the tables can be used without it. So a backup that locks the table for hours, or a role that
    may only read and write rows, does not prevent a start; the next start tries again.
    """
    statement = text(f"ALTER TABLE {table} ADD COLUMN {_OLDEST} INTEGER")
    try:
        with connection.begin_nested():
            if connection.dialect.name == "postgresql" and not is_needed:
                connection.execute(text(f"SET LOCAL lock_timeout = {_RULE_WAIT_MS}"))
            connection.execute(statement)
    except DBAPIError as exc:
        if is_needed or getattr(exc.orig, "sqlstate", None) not in _NOT_NOW:
            raise
        log.info("database: %s has no column %s yet: %s", table, _OLDEST, reason(exc))
        return False
    return True


def _accept_newer(table: str, version: int, oldest_reader: int | None, known: int) -> None:
    """Raises DatabaseNewer."""
    newer = f"created by a newer version of this program ({table} has version {version}, this program supports {known})"
    if oldest_reader is None or oldest_reader > known:
        raise DatabaseNewer(f"{newer}: upgrade this program")
    log.info("database %s; that version made only additions, so this version can still use the database", newer)


def prepare(engine: Engine, lock: int, steps: Sequence[Step], table: str = "schema_version") -> None:
    """`migrate` in a separate transaction. If that fails, the engine is not used, so its connections are closed."""
    try:
        with writing(engine, lock) as connection:
            migrate(connection, steps, table)
    except BaseException:
        engine.dispose()
        raise
