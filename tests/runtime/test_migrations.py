"""Every earlier schema becomes the present one, and its rows survive. The schemas are in `schemas/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, LargeBinary, MetaData, Numeric, String, Table, insert, select, text

from bridge.runtime.database import Database, writing
from bridge.runtime.schema_version import DatabaseNewer, Incompatible
from tests.postgresql import fresh_database
from tests.runtime.schemas import COMPONENTS, Component, described, not_only_added

ROWS = 3
VERSIONS = [
    pytest.param(component, version, id=f"{component.name}-{version}-{component.kind}")
    for component in COMPONENTS
    for version in component.recorded()
]
EARLIER = [one for one in VERSIONS if one.values[1] < len(one.values[0].steps)]
every_component = pytest.mark.parametrize(
    "component", [pytest.param(one, id=f"{one.name}-{one.kind}") for one in COMPONENTS]
)


class Places:
    """Empty databases."""

    def __init__(self, directory: Path, request: pytest.FixtureRequest) -> None:
        self._directory = directory
        self._request = request
        self._engines: list[Engine] = []

    def engine(self, kind: str) -> Engine:
        if kind == "sqlite":
            place = Database.file(self._directory / f"{len(self._engines)}.sqlite")
        else:
            place = Database(fresh_database(self._request.getfixturevalue("postgresql")))
        self._engines.append(place.engine())
        return self._engines[-1]

    def fresh(self, component: Component) -> dict[str, list[str]]:
        """The description of the present schema, made in an empty database."""
        engine = self.engine(component.kind)
        with writing(engine) as connection:
            component.migrate(connection)
            return described(connection)

    def close(self) -> None:
        for engine in self._engines:
            engine.dispose()


# Rows that a step removes on purpose: sessions of a provider's people whom nothing but a name identifies, or whose
# group is not known.
ENDED = {"console_session"}


@pytest.fixture
def places(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Places]:
    found = Places(tmp_path, request)
    yield found
    found.close()


@every_component
def test_each_version_is_recorded(component: Component) -> None:
    """Without a record, nobody could test later whether databases of this version can still be upgraded."""
    wanted = set(range(1, len(component.steps) + 1))
    how = "record the new version with `python -m tests.runtime.schemas`"
    assert set(component.recorded()) - {0} == wanted, how


@every_component
def test_the_present_schema_is_the_recorded_one(component: Component, places: Places) -> None:
    """A changed step would leave the databases that already made it without the change: add a step instead."""
    engine = places.engine(component.kind)
    with writing(engine) as connection:
        component.build(connection, len(component.steps))
        component.migrate(connection)  # makes no step; adds `oldest_reader` to a version table from before the rule
        recorded = described(connection)
    assert places.fresh(component) == recorded


@pytest.mark.parametrize(("component", "version"), EARLIER)
def test_an_earlier_schema_is_upgraded(component: Component, version: int, places: Places) -> None:
    engine = places.engine(component.kind)
    with writing(engine) as connection:
        component.build(connection, version)
        before = _fill(connection, component)
    with writing(engine) as connection:
        component.migrate(connection)
    with engine.connect() as connection:
        assert described(connection) == places.fresh(component)
        for name, rows in before.items():
            assert _read(connection, name, list(rows[0])) == ([] if name in ENDED else rows), name
        version_now = connection.execute(text(f"SELECT version FROM {component.version_table}")).scalars().all()
    assert version_now == [len(component.steps)]


@pytest.mark.parametrize(
    ("component", "version"),
    [one for one in EARLIER if one.values[1] and not isinstance(one.values[0].steps[one.values[1]], Incompatible)],
)
def test_a_step_only_adds(component: Component, version: int, places: Places) -> None:
    """Else, during an upgrade, the nodes of the earlier version would fail as soon as the first new one has started."""
    engine = places.engine(component.kind)
    with writing(engine) as connection:
        component.build(connection, version)
        before = described(connection)
        component.steps[version](connection)
        assert not not_only_added(before, described(connection)), "mark the step as Incompatible, or let it only add"


_TABLE = "CREATE TABLE things (id INTEGER PRIMARY KEY, word TEXT)"
_MORE = "CREATE TABLE more (id INTEGER PRIMARY KEY)"


@pytest.mark.parametrize(
    ("change", "is_addition"),
    [
        ("ALTER TABLE things ADD COLUMN colour TEXT", True),
        ("ALTER TABLE things ADD COLUMN number INTEGER DEFAULT 0 NOT NULL", True),
        ("CREATE INDEX things_word ON things (word)", True),
        ("CREATE TABLE others (id INTEGER PRIMARY KEY, word TEXT NOT NULL UNIQUE)", True),
        ("ALTER TABLE things ADD COLUMN number INTEGER NOT NULL", False),
        ("CREATE UNIQUE INDEX things_word ON things (word)", False),
        ("ALTER TABLE things DROP COLUMN word", False),
        ("ALTER TABLE things RENAME COLUMN word TO name", False),
        ("ALTER TABLE things RENAME TO items", False),
        ("ALTER TABLE things ADD COLUMN other INTEGER REFERENCES more (id)", False),
        ("ALTER TABLE things ALTER COLUMN word TYPE VARCHAR(10)", False),
        ("ALTER TABLE things ALTER COLUMN word SET NOT NULL", False),
        ("ALTER TABLE things ADD CHECK (id > 0)", False),
        ("DROP TABLE things", False),
    ],
)
def test_what_an_addition_is(change: str, is_addition: bool, places: Places) -> None:
    engine = places.engine("postgresql")
    with writing(engine) as connection:
        for statement in (_TABLE, _MORE):
            connection.exec_driver_sql(statement)
        before = described(connection)
        connection.exec_driver_sql(change)
        assert (not not_only_added(before, described(connection))) == is_addition


@pytest.mark.parametrize("oldest_reader", ["version + 1", "NULL"])
@every_component
def test_an_incompatible_newer_schema_is_left_alone(component: Component, oldest_reader: str, places: Places) -> None:
    """An old program beside or after a new one must not write rows that the new one cannot read.

    Nothing is known of a schema from before the rule: it is refused, too.
    """
    engine, table, known = places.engine(component.kind), component.version_table, len(component.steps)
    with writing(engine) as connection:
        component.migrate(connection)
        connection.execute(text(f"UPDATE {table} SET version = version + 1, oldest_reader = {oldest_reader}"))
        before = described(connection)
    clear = f"{table} has version {known + 1}, this program supports {known}.*: upgrade this program"
    with pytest.raises(DatabaseNewer, match=clear), writing(engine) as connection:
        component.migrate(connection)
    with engine.connect() as connection:
        assert described(connection) == before


def _fill(connection: Connection, component: Component) -> dict[str, list[dict[str, Any]]]:
    """Some rows in each table, except the one for the version. Returns them."""
    metadata = MetaData()
    metadata.reflect(connection)
    tables = [table for table in metadata.sorted_tables if table.name != component.version_table]
    for table in tables:
        connection.execute(insert(table), [_row(table, number) for number in range(1, ROWS + 1)])
    return {table.name: _read(connection, table.name, table.columns.keys()) for table in tables}


def _row(table: Table, number: int) -> dict[str, Any]:
    return {column.name: _value(column, number) for column in table.columns}


def _value(column, number: int) -> Any:
    if isinstance(column.type, LargeBinary):
        return f'{{"id": "{number}"}}'.encode()
    if isinstance(column.type, String):
        return f"{column.name} {number}"[: column.type.length]
    return number + 0.5 if isinstance(column.type, Numeric) else number


def _read(connection: Connection, name: str, columns: list[str]) -> list[dict[str, Any]]:
    table = Table(name, MetaData(), autoload_with=connection)
    wanted = [table.c[column] for column in columns]
    return [dict(row) for row in connection.execute(select(*wanted).order_by(*wanted)).mappings()]
