"""A program works in a database that a newer version has added to: both run side by side during an upgrade.

The first new node adds to the tables, and every old node that starts again after that finds them. It refused to use
them, and a rolling upgrade took the old nodes down one after the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, inspect, text

from bridge.api.scanning import AnalysisResult, Decision
from bridge.console.database import ConsoleStore
from bridge.console.roles import Role
from bridge.console.users import Users
from bridge.digests.counts import DigestCounts
from bridge.digests.database import DigestStore
from bridge.digests.items import Items
from bridge.digests.requests import Requests
from bridge.events.outbox import Outbox
from bridge.feedback.report import ReportKind, ReportState
from bridge.feedback.store import ReportStore
from bridge.filter.late.store import Entry as LateEntry
from bridge.filter.late.store import SqlStore
from bridge.filter.mail_rates import Count
from bridge.filter.rate_store import RateStore
from bridge.history.entry import LaterEvent
from bridge.history.postgresql import PostgresHistory
from bridge.history.query import HistoryQuery
from bridge.lists.personal_store import PersonalLists
from bridge.quarantine.index import Index
from bridge.quarantine.index_search import Query
from bridge.quarantine.record import StoredRecord
from bridge.quarantine.used_tokens import UsedTokens
from bridge.runtime.database import Database, writing
from bridge.runtime.schema_version import migrate
from bridge.runtime.turns import Turns
from bridge.service.keys import KeyRing
from bridge.service.learning.store import VoteStore
from bridge.service.learning.votes import Vote
from bridge.service.lists.store import Entry as ListEntry
from bridge.service.lists.store import ListStore
from bridge.service.store import Store
from bridge.testing import answer, result, until
from tests.daemon.process_kit import parts, scanbridge, start, write_config
from tests.events.events_kit import ROOMY, entry
from tests.history.history_kit import mail
from tests.postgresql import fresh_database
from tests.runtime.schemas import COMPONENTS, Component, described, not_only_added

_PARTITIONS = "SELECT relname FROM pg_class WHERE relispartition"


def _add(connection: Connection) -> None:
    """What a step may do: columns and an index in every table, and another table."""
    found = inspect(connection)
    partitions = connection.exec_driver_sql(_PARTITIONS).scalars().all() if connection.dialect.name != "sqlite" else ()
    for table in found.get_table_names():
        if table in partitions or table.endswith("_schema") or table == "schema_version":
            continue
        connection.exec_driver_sql(f'ALTER TABLE "{table}" ADD COLUMN newer_note TEXT')
        connection.exec_driver_sql(f"ALTER TABLE \"{table}\" ADD COLUMN newer_mark VARCHAR(10) DEFAULT '' NOT NULL")
        connection.exec_driver_sql(f'CREATE INDEX "{table}_newer" ON "{table}" (newer_mark)')
    connection.exec_driver_sql("CREATE TABLE newer_things (id INTEGER PRIMARY KEY, word TEXT NOT NULL)")


# What the program of this version does with each component's tables


def _console(place: Database, _directory: Path) -> None:
    store = ConsoleStore(place)
    users = Users(store)
    users.add("ann", "a long enough password", Role.ADMIN)
    users.add("bob", None, Role.ADMIN)
    users.change("ann", Role.VIEWER, None)
    assert [user.person.name for user in users.listed()] == ["ann", "bob"]
    assert users.verify("ann", "a long enough password") is not None
    users.remove("ann")
    store.close()


def _digests(place: Database, _directory: Path) -> None:
    store = DigestStore(place)
    requests, items, counts = Requests(store, "p"), Items(store, "p"), DigestCounts(store, "p")
    request = requests.ask("release", "M1", "b@example.org", "b@example.org", "")
    assert request is not None and requests.find(request.seq) == request
    assert requests.take(request.seq, "ann") is not None
    items.choose("b@example.org", schedule="weekly")
    assert items.person("b@example.org").schedule == "weekly"
    counts.add(sent=2)
    assert counts.read().sent == 2
    store.close()


def _events(place: Database, _directory: Path) -> None:
    outbox = Outbox(place)
    outbox.add([entry("s"), entry("s")], {"s": ROOMY})
    assert outbox.hold_lease("s", "us")
    first, second = outbox.due("s", 10)
    outbox.settle("s", [first.seq], [], "")
    assert outbox.due("s", 10) == [second] and outbox.states()[0].waiting == 1
    outbox.close()


def _feedback(place: Database, _directory: Path) -> None:
    store = ReportStore(place, 3600.0)
    assert store.begin("M1", "b@example.org", ReportKind.SPAM)
    store.wait("M1", "b@example.org", ReportKind.SPAM, b"content", "about")
    found = store.next_waiting()
    assert found is not None and found[0].content == b"content" and found[0].about == "about"
    store.finish("M1", "b@example.org", ReportKind.SPAM, ReportState.LEARNED)
    assert store.totals().counts == {("spam", "learned"): 1}
    store.close()


def _late(place: Database, directory: Path) -> None:
    store = SqlStore(place, directory / "stamp")
    store.open()
    late = LateEntry(b"k" * 32, b"e" * 8, 1000.0, "us", AnalysisResult(Decision.BOUNCE, "ggrid", "verdict", ("a:b",)))
    store.put(late)
    store.put(late)
    assert store.get(late.key) == late and store.envelopes(0) == {late.envelope}
    store.remove(late.key)
    store.close()


def _rates(place: Database, _directory: Path) -> None:
    store = RateStore(place)
    sums, now = store.exchange([], 1)
    count = Count(int(now // 60), "192.0.2.1", 7)
    store.exchange([count], 1)
    sums, _ = store.exchange([count], 1)
    assert sums == [count._replace(mails=14)]
    store.close()


def _personal(place: Database, _directory: Path) -> None:
    lists = PersonalLists(place)
    assert lists.block("b@example.org", "a@sender.example") and lists.allow("b@example.org", "c@sender.example")
    assert len(lists.entries("b@example.org")) == 2 == len(list(lists.everything()))
    assert lists.remove("b@example.org", "block", "a@sender.example")
    assert lists.changes(0)
    lists.close()


def _index(place: Database, _directory: Path) -> None:
    index = Index(place)
    index.put([StoredRecord("M1", b'{"id": "M1", "recipients": ["b@example.org"], "tags": ["spam"]}', b"", 1000.0)])
    assert [found.id for found in index.search(Query())] == ["M1"]
    assert list(index.known()) == ["M1"] and index.count() == 1
    index.remove(["M1"])
    index.close()


def _used_tokens(place: Database, _directory: Path) -> None:
    tokens = UsedTokens(place)
    assert tokens.take([b"code"], time.time()) and not tokens.take([b"code"], time.time())
    tokens.give_back([b"code"])
    assert not tokens.has([b"code"])
    tokens.close()


def _turns(place: Database, _directory: Path) -> None:
    turns = Turns(place, "us")
    assert turns.take("work", 0.0, 60.0)
    turns.finish("work", "7")
    done = turns.last("work")
    assert done is not None and done.result == "7"
    turns.close()


def _learning(place: Database, _directory: Path) -> None:
    store = Store(place.url)
    store.open()
    votes = VoteStore(store)
    vote = Vote("m" * 64, "r" * 64, "spam", "sender.example", "", ("a:b",), time.time())
    assert votes.add("", vote) and votes.votes("") == [vote]
    assert votes.reset("") == 1
    store.close()


def _service(place: Database, _directory: Path) -> None:
    store = Store(place.url)
    store.open()
    lists, keys = ListStore(store, []), KeyRing(store)
    entries = [ListEntry("a@x.example", "A@x.example"), ListEntry("b@x.example", "b@x.example")]
    assert lists.add("", "blocked-senders", entries) == 2
    assert lists.delete("", "blocked-senders", ["b@x.example"]) == 1
    assert [found.key for found in lists.page("", "blocked-senders", None)] == ["a@x.example"]
    assert lists.changes(0, lists.now())
    keys.create("test")
    assert [key.name for key in keys.listed()] == ["test"]
    store.close()


def _history(place: Database, _directory: Path) -> None:
    history = PostgresHistory(place)
    history.append([mail(1), mail(2)])
    note = LaterEvent(mail(2)[1].at + 1, "ID0001", "released", "ann", "text")
    history.note([note])
    assert [found.row.id for found in history.find(HistoryQuery())] == ["ID0002", "ID0001"]
    assert history.later(["ID0001"]) == [note]
    assert sum(found.mails for found in history.count("action", HistoryQuery())) == 2
    history.close()


USES: dict[str, Callable[[Database, Path], None]] = {
    "console.database": _console,
    "digests.database": _digests,
    "events.outbox": _events,
    "feedback.store": _feedback,
    "filter.late.store": _late,
    "filter.rate_store": _rates,
    "history.postgresql": _history,
    "lists.personal_store": _personal,
    "quarantine.index": _index,
    "quarantine.used_tokens": _used_tokens,
    "runtime.turns": _turns,
    "service.learning_tables": _learning,
    "service.store": _service,
}


@pytest.mark.parametrize("component", [pytest.param(one, id=f"{one.name}-{one.kind}") for one in COMPONENTS])
def test_a_program_uses_tables_that_a_newer_one_has_added_to(
    component: Component, tmp_path: Path, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads and writes them, logs that they are newer, and changes neither the tables nor their version."""
    caplog.set_level(logging.INFO)
    place = Database.file(tmp_path / "one.sqlite")
    if component.kind == "postgresql":
        place = Database(fresh_database(request.getfixturevalue("postgresql")))
    engine, known = place.engine(), len(component.steps)
    with writing(engine) as connection:
        component.migrate(connection)
        before = described(connection)
        migrate(connection, [*component.steps, _add], component.version_table)  # the newer program
        assert not not_only_added(before, described(connection))
    USES[component.name](place, tmp_path)
    with engine.connect() as connection:
        newer = connection.execute(text(f"SELECT version FROM {component.version_table}")).scalars().all()
        assert newer == [known + 1] and inspect(connection).has_table("newer_things")
    engine.dispose()
    assert (
        f"{component.version_table} has version {known + 1}, this program supports {known}); that version made only"
        in caplog.text
    )


def test_a_bridge_starts_again_after_a_newer_one_has_added_to_its_tables(postgresql: Any, tmp_path: Path) -> None:
    """In a rolling upgrade, it is restarted after the first new bridge: mail, quarantine and history go on."""
    database = fresh_database(postgresql)
    with parts() as (_, scanner, next_hop):
        config, *ports = write_config(tmp_path, scanner.url, next_hop.url, state_database=database)
        scanner.reply_to = {b"Subject: held": answer(200, result("quarantine"))}
        for is_newer in (False, True):
            bridge = start(config, *ports)
            try:
                assert bridge.send().startswith("250")
                assert bridge.send(b"Subject: held\r\n\r\nx\r\n").startswith("250")
                count = 4 if is_newer else 2
                until(lambda: len(_lines("history", config)) == count, "the history")  # noqa: B023
                assert len(_lines("quarantine list", config)) == count // 2
                bridge.signal()
                assert bridge.wait() == 0
            finally:
                bridge.end()
            assert ("this program supports" in bridge.log) == is_newer and " ERROR " not in bridge.log, bridge.log
            if not is_newer:
                _upgrade_all(Database(database))


def _lines(command: str, config: Path) -> list[str]:
    return scanbridge(*command.split(), "-c", config, "--json").stdout.splitlines()


def _upgrade_all(place: Database) -> None:
    """As a newer bridge would, every table that is there."""
    engine = place.engine()
    with writing(engine) as connection:
        _add(connection)
        for component in COMPONENTS:
            if component.kind == "postgresql" and inspect(connection).has_table(component.version_table):
                connection.execute(text(f"UPDATE {component.version_table} SET version = version + 1"))
    engine.dispose()


def test_a_running_program_goes_on_while_a_newer_one_adds(postgresql: Any, tmp_path: Path) -> None:
    """Its connections and prepared statements are older than the new columns."""
    place = Database(fresh_database(postgresql))
    component = next(one for one in COMPONENTS if one.name == "history.postgresql")
    history = PostgresHistory(place)
    for number in range(10):  # the driver prepares what it has sent several times
        history.append([mail(number)])
        history.later([f"ID{number:04d}"])
        history.find(HistoryQuery())
    engine = place.engine()
    with writing(engine) as connection:
        migrate(connection, [*component.steps, _add], component.version_table)
    engine.dispose()
    history.append([mail(10)])
    history.note([LaterEvent(1.0, "ID0001", "released")])
    assert len(history.find(HistoryQuery())) == 11 and len(history.later(["ID0001"])) == 1
    history.close()
