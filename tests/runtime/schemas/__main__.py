"""`python -m tests.runtime.schemas`: record the newest version of each component that is not recorded yet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bridge.runtime.database import Database, writing
from tests.postgresql import cluster, fresh_database
from tests.runtime.schemas import COMPONENTS, Component, as_sql


def record(component: Component, place: Database) -> Path:
    engine = place.engine()
    with writing(engine) as connection:
        component.migrate(connection)
    path = component.file(len(component.steps))
    with engine.connect() as connection:
        path.write_text(as_sql(connection))
    engine.dispose()
    return path


def missing() -> Iterator[Component]:
    return (component for component in COMPONENTS if len(component.steps) not in component.recorded())


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(cluster())
        for component in missing():
            file = Database.file(directory / component.name)
            print(record(component, file if component.kind == "sqlite" else Database(fresh_database(server.url))).name)


if __name__ == "__main__":
    main()
