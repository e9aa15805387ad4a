"""The recorded schemas: what each component's tables looked like in each version, as SQL.

One file for each component, version and kind of database: `feedback.store-1.sqlite.sql`. Machines may still have any of
these, so a recorded file is never changed. After adding a migration step, `python -m tests.runtime.schemas` records
the new version. Version 0 means tables from before the component stored its version.
"""

from __future__ import annotations

import importlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from bridge.runtime import schema_version
from tests.requirements import find, need
from tools.interfaces import STORES

DIRECTORY = Path(__file__).parent
KINDS = ("sqlite", "postgresql")
_FILE = re.compile(r"(?P<component>[a-z_.]+)-(?P<version>\d+)\.(?P<kind>\w+)\.sql")
# What pg_dump prints about itself, its session and its server.
_NOISE = re.compile(r"^(?:--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(?:un)?restrict .*)?\n", re.MULTILINE)


@dataclass(frozen=True)
class Component:
    name: str  # of its module
    kind: str

    @cached_property
    def steps(self) -> list[schema_version.Step]:
        return list(self._module.MIGRATIONS)

    @property
    def version_table(self) -> str:
        return str(getattr(self._module, "VERSION_TABLE", "schema_version"))

    @property
    def _module(self):
        return importlib.import_module(f"bridge.{self.name}")

    def file(self, version: int) -> Path:
        return DIRECTORY / f"{self.name}-{version}.{self.kind}.sql"

    def recorded(self) -> list[int]:
        """The recorded versions."""
        found = map(_FILE.fullmatch, (path.name for path in DIRECTORY.glob("*.sql")))
        return sorted(int(one["version"]) for one in found if one and (one["component"], one["kind"]) == self._key)

    @property
    def _key(self) -> tuple[str, str]:
        return self.name, self.kind

    def migrate(self, connection: Connection) -> None:
        schema_version.migrate(connection, self.steps, self.version_table)

    def build(self, connection: Connection, version: int) -> None:
        """Make the recorded tables, as the program of that time did."""
        for statement in self.file(version).read_text().split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        if version:
            connection.execute(text(f"INSERT INTO {self.version_table} (version) VALUES ({version})"))


COMPONENTS = [
    *(Component(name, kind) for name in STORES for kind in KINDS),
    Component("history.postgresql", "postgresql"),  # in SQLite, files of fixed content instead of migrated tables
]


def as_sql(connection: Connection) -> str:
    """The schema as SQL statements, which make it again."""
    if connection.dialect.name == "sqlite":
        own = "sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        query = text(f"SELECT sql FROM sqlite_master WHERE {own} ORDER BY type DESC, name")
        statements = connection.execute(query).scalars()
        return "".join(f"{sql};\n" for sql in statements).replace(" \n", "\n")
    need("pg_dump")
    url = connection.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    options = ("--schema-only", "--no-owner", "--no-privileges", "--dbname", url)
    dump = subprocess.run([find("pg_dump") or "", *options], capture_output=True, text=True, check=True).stdout
    return _NOISE.sub("", dump)


def described(connection: Connection) -> dict[str, list[str]]:
    """Columns, keys and indexes of each table. Two ways that lead to the same tables give the same description."""
    found = inspect(connection)
    return {table: list(_lines(found, table)) for table in found.get_table_names()}


def _lines(found, table: str) -> Iterator[str]:
    for column in found.get_columns(table):
        yield f"{column['name']} {column['type']} nullable={column['nullable']} default={_default(column['default'])}"
    yield f"primary key {found.get_pk_constraint(table)['constrained_columns']}"
    for kind, of in (
        ("unique", found.get_unique_constraints),
        ("foreign key", found.get_foreign_keys),
        ("check", found.get_check_constraints),
    ):
        yield from (f"{kind} {constraint}" for constraint in sorted(map(str, of(table))))
    for index in sorted(found.get_indexes(table), key=lambda index: index["name"]):
        columns = index.get("expressions") or index["column_names"]
        options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
        yield f"index {index['name']} {columns} unique={bool(index['unique'])} {options}"


def not_only_added(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """What a program that knows only the first of two schemas could stumble over in the second one."""
    found = [f"{table} is gone" for table in before.keys() - after.keys()]
    for table in before.keys() & after.keys():
        found += [f"{table}: {line!r} is gone, or has changed" for line in before[table] if line not in after[table]]
        found += [f"{table}: {line!r} is new" for line in after[table] if line not in before[table] and _binds(line)]
    return sorted(found)


def _binds(line: str) -> bool:
    """Whether a program that does not know of this addition could write a row that is refused."""
    if line.startswith("index "):
        return "unique=True" in line
    return line.startswith(("primary key", "unique ", "foreign key ", "check ")) or line.endswith(
        "nullable=False default=None"
    )


def _default(value: str | None) -> str | None:
    return None if value is None else value.split("::")[0].strip("'")
