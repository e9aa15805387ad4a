"""Analysis records: written in the background, without addresses, and deleted after their retention."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

from sqlalchemy import create_engine, event, insert, select

from bridge.api.scanning import AnalysisResult, Decision
from bridge.service.scanning.records import RecordWriter
from bridge.service.store import Store, analysis
from tests.service.service_kit import CONFIG, GTUBE, mail, service, wait_for


def _rows(url: str) -> list[dict[str, object]]:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        found = [dict(row._mapping) for row in connection.execute(select(analysis).order_by(analysis.c.created))]
    engine.dispose()
    return found


def test_every_analysis_leaves_a_record(tmp_path, database):
    """The decision for each ggrid can be looked up later; sender and recipients cannot."""
    tenant = "123e4567-e89b-12d3-a456-426614174000"
    with service(tmp_path, CONFIG.replace("sqlite:///service.sqlite", database)) as running:
        answer = running.submit(mail(GTUBE), sender="secret@example.org", tenantUid=tenant).json
        wait_for(lambda: _rows(running.config.database_url))
        (row,) = _rows(running.config.database_url)
        running.submit(mail())
    assert row["ggrid"] == answer["ggrid"]
    assert (row["decision"], row["verdict"], row["tenant"]) == ("bounce", "spam", tenant)
    assert json.loads(row["tags"]) == answer["tags"]
    assert "secret" not in repr(row)
    assert len(_rows(running.config.database_url)) == 2, "stop writes the remaining records"


def test_old_records_are_deleted(tmp_path):
    """Records are deleted after their retention."""
    with service(tmp_path) as running:
        url = running.config.database_url
    engine = create_engine(url)
    old = {"ggrid": "old", "tenant": "", "created": "2020", "completed": "2020-01-01T00:00:00.000Z"}
    old |= {"decision": "deliver", "verdict": "clean", "tags": "[]", "score": 0.0, "size": 1}
    with engine.begin() as connection:
        connection.execute(insert(analysis).values(**old))
    engine.dispose()
    with service(tmp_path) as running:
        running.submit(mail())
    assert [row["ggrid"] == "old" for row in _rows(url)] == [False]


async def test_a_busy_service_writes_its_records_in_batches(tmp_path):
    """A record added during a write waits for the next one, so not every record needs its own transaction."""
    url = f"sqlite:///{tmp_path / 'x.sqlite'}"
    store = Store(url)
    store.open()
    commits: list[object] = []
    records = RecordWriter(store, 3600)

    def add_record(connection: object = None) -> None:
        commits.append(connection)
        records.add(AnalysisResult(Decision.DELIVER, str(uuid4()), created="a", completed="9"), None, 0.0, 1)

    add_record()
    event.listen(store.engine, "commit", add_record)
    async with asyncio.timeout(60):
        await records.start()
        await records.stop()
    store.close()
    assert len(_rows(url)) == len(commits) - 1 <= 3
