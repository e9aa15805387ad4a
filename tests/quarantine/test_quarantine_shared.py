"""The state database, SQLite or PostgreSQL: older versions, several machines, and a server that is down."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text

from bridge.quarantine.index import _LOCK, Index
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings, Query
from bridge.quarantine.record import StoredRecord
from bridge.runtime.database import Database, writing
from tests.postgresql import cluster, fresh_database
from tests.quarantine.quarantine_kit import CONTENT, HEAD, SOON_S, Desk, desk, let_go, make_tx, waiting_hop
from tests.quarantine.s3_kit import ObjectServer, s3_config, write_keys

VERSION_1 = """
CREATE TABLE quarantine (
    id TEXT PRIMARY KEY, kept_at REAL NOT NULL, sender TEXT NOT NULL, subject TEXT NOT NULL,
    listener TEXT NOT NULL, tenant TEXT NOT NULL, decision TEXT NOT NULL, state TEXT NOT NULL,
    about BLOB NOT NULL, releases BLOB NOT NULL
);
CREATE INDEX quarantine_kept_at ON quarantine (kept_at);
CREATE TABLE quarantine_recipient (id TEXT NOT NULL, address TEXT NOT NULL, PRIMARY KEY (id, address));
CREATE INDEX quarantine_recipient_address ON quarantine_recipient (address);
CREATE TABLE quarantine_tag (id TEXT NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (id, tag));
INSERT INTO quarantine VALUES ('A1', 1.0, 'a@x', 'hello', 'mx', '', 'quarantine', 'kept', '{}', '');
INSERT INTO quarantine_recipient VALUES ('A1', 'b@example.org');
INSERT INTO quarantine_tag VALUES ('A1', 'spam');
PRAGMA user_version=1;
"""


async def keep(quarantine: Quarantine) -> str:
    tx = make_tx()
    await quarantine.keep(tx, HEAD, {"tags": ["spam"]})
    return tx.id


def test_a_database_of_the_first_version_is_migrated(tmp_path: Path) -> None:
    """All rows are kept, and the old version refuses the new file instead of changing it."""
    path = tmp_path / "state.sqlite"
    with closing(sqlite3.connect(path)) as old:
        old.executescript(VERSION_1)
    index = Index(Database.file(path))
    assert index.known() == {"A1": 0}
    found = index.search(Query(recipient="b@example.org", tag="spam", sender="a@x", subject="hello"))
    assert [mail.id for mail in found] == ["A1"]
    index.close()
    with closing(sqlite3.connect(path)) as new:
        assert new.execute("PRAGMA user_version").fetchone() == (2,)
        names = {name for (name,) in new.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    assert names == {"quarantine", "quarantine_recipient", "quarantine_tag", "quarantine_schema"}
    assert Index(Database.file(path)).known() == {"A1": 0}


async def test_machines_that_share_a_database_do_not_touch_each_others_mail(tmp_path: Path, database: Database) -> None:
    """Each has its own directory; mail that is not in it was not removed."""
    machine_1, machine_2 = (
        Quarantine(QuarantineSettings(tmp_path / name, database, owner=name)) for name in ("one", "two")
    )
    first, second = await keep(machine_1), await keep(machine_2)
    assert (machine_1.clean(), machine_2.clean()) == (0, 0)
    for machine, mail_id in ((machine_1, first), (machine_2, second)):
        assert [mail.id for mail in machine.search(Query(tag="spam", recipient="b@"))] == [mail_id]
    machine_1.remove(first)
    assert [mail.id for mail in machine_2.search(Query())] == [second]
    for machine in (machine_1, machine_2):
        await machine.close()


async def test_text_that_a_database_cannot_hold_does_no_harm(tmp_path: Path, database: Database) -> None:
    quarantine = Quarantine(QuarantineSettings(tmp_path, database))
    tx = make_tx(b"Subject: =?utf-8?b?YQBi7aCA?= \xff\r\n\r\nx\r\n", ("b\udcff@example.org",), "a\0b@x")
    await quarantine.keep(tx, HEAD, {"tags": ["a\0b"]})
    assert [mail.id for mail in quarantine.search(Query(tag="ab", sender="ab@x"))] == [tx.id]
    assert sorted(Index(database).known()) == [tx.id]
    await quarantine.close()


async def test_an_unavailable_server_delays_mail_only_briefly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server restarts: mail is stored throughout, one line is logged, and nothing is missing at the end."""
    with cluster() as server:
        quarantine = Quarantine(QuarantineSettings(tmp_path, Database(fresh_database(server.url))))
        ids = [await keep(quarantine)]
        server.stop()
        ids += [await keep(quarantine) for _ in range(3)]
        assert len([line for line in caplog.messages if "mail is still stored" in line]) == 1
        assert len(Quarantine(tmp_path).search(Query())) == 4
        server.start()
        assert quarantine._index is not None
        quarantine._index._away_until = 0.0  # some seconds later
        assert await quarantine.purge(3600) == 0
        assert sorted(quarantine._index.known()) == sorted(ids)
        await quarantine.close()


async def test_only_the_first_mail_waits_for_a_silent_server(tmp_path: Path) -> None:
    """The first mail waits for the connection timeout; later ones do not."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = Database(f"postgresql://tester@127.0.0.1:{silent.getsockname()[1]}/x", "s3cr3t-s3cr3t")
        quarantine = Quarantine(QuarantineSettings(tmp_path, where))
        silent.setblocking(False)
        await keep(quarantine)
        silent.accept()[0].close()
        await keep(quarantine)
        with pytest.raises(BlockingIOError):  # it did not even try
            silent.accept()
    assert "s3cr3t" not in repr(quarantine._settings) and len(list(tmp_path.glob("*.eml"))) == 2


async def test_a_database_server_that_froze_kept_a_stored_mail_from_its_250(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client sent the mail again, so it was in the quarantine twice."""
    with cluster() as server:
        quarantine = Quarantine(QuarantineSettings(tmp_path / "q", Database(fresh_database(server.url))))
        await keep(quarantine)
        with server.frozen():
            mail_id = await keep(quarantine)
        assert mail_id in quarantine.ids() and "no answer in time; mail is still stored" in caplog.text
        await quarantine.close()


def test_machines_do_not_wait_for_each_others_rows(postgresql: str) -> None:
    """One lock for all of them made each mail wait for every other machine; without any, two of them once waited in a
    circle."""
    place = Database(fresh_database(postgresql))
    indexes = [Index(place, "shared", busy_s=30.0) for _ in range(4)]
    facts = {"tags": ["spam", "x:y"]}
    about = {"time": "2026-01-31T12:00:00+00:00", "sender": "a@x", "recipients": ["b@x", "c@x"], "facts": facts}
    ids = [f"M{number:02d}" for number in range(40)]

    def stored(mail_id: str, releases: bytes = b"") -> StoredRecord:
        return StoredRecord(mail_id, json.dumps(about).encode(), releases, 1.0)

    def work(number: int) -> None:
        index, order = indexes[number], ids if number % 2 else ids[::-1]
        for _ in range(5):
            index.put(map(stored, order))
            index.remove(order[number::3])
            index.put([stored(order[number], b"[]")])

    indexes[0].put([stored("FIRST")])
    engine = place.engine()
    with writing(engine, _LOCK):  # as if another machine were migrating
        indexes[0].put([stored("SECOND")])
    engine.dispose()
    with ThreadPoolExecutor(len(indexes)) as pool:
        list(pool.map(work, range(len(indexes))))  # raises what an index raised
    indexes[0].put(map(stored, ids))
    found = indexes[0].search(Query(recipient="c@x", tag="x:*"))
    assert sorted(mail.id for mail in found) == ["FIRST", *ids, "SECOND"]
    for index in indexes:
        index.close()


def test_a_row_that_is_added_during_a_removal_is_not_locked_out_of_order(postgresql: str) -> None:
    """It was deleted although it had not been locked with the others: two machines waited in a circle."""
    place = Database(fresh_database(postgresql))
    about = {"time": "2026-01-31T12:00:00+00:00", "sender": "a@x", "recipients": ["b@x"], "facts": {}}
    stored = [StoredRecord(mail_id, json.dumps(about).encode(), b"", 1.0) for mail_id in ("M1", "M2")]
    with closing(Index(place, "shared")) as index, closing(Index(place, "shared")) as another:
        another.put(stored[:1])
        index.put(stored[:1])

        def add(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("DELETE FROM quarantine ") and "M2" not in another.known():
                another.put(stored[1:])

        event.listen(index._engine, "before_cursor_execute", add)
        index.remove(["M1", "M2"])
        assert list(another.known()) == ["M2"]


@pytest.fixture
def two_machines(tmp_path: Path, object_server: ObjectServer, postgresql: str) -> Iterator[tuple[Desk, Path]]:
    """One with a daemon, and the configuration of another; they share the bucket and the database."""
    write_keys(tmp_path)
    shared: dict[str, Any] = {
        "quarantine": s3_config(object_server.port, prefix=f"two/{tmp_path.name}"),
        "state_database": fresh_database(postgresql),
    }
    with desk(tmp_path, shared) as first:
        yield first, tmp_path / "second.yml"


def test_two_machines_release_a_mail_once(two_machines: tuple[Desk, Path]) -> None:
    """Two operators at the same time; the mail is in object storage, the lock in PostgreSQL."""
    first, path = two_machines
    mail_id = first.send()
    second = first.elsewhere(path)
    people = [machine.start("release", mail_id) for machine in (first, second)]
    for person in people:
        person.communicate(timeout=SOON_S)
    assert sorted(person.returncode for person in people) == [0, 4]
    assert len(first.bridge.next_hop.mails) == 1
    assert first.bridge.next_hop.mails[0].content.endswith(CONTENT)
    for machine in (first, second):
        assert [mail["state"] for mail in machine.listed()] == ["released"]


def test_a_release_on_one_machine_keeps_the_other_out_until_it_dies(two_machines: tuple[Desk, Path]) -> None:
    first, path = two_machines
    mail_id = first.send()
    with waiting_hop(first.bridge) as hop:
        first.use(hop.url)
        second = first.elsewhere(path)
        running = first.start("release", mail_id)
        assert hop.heard.acquire(timeout=SOON_S)
        refused = second.call("release", mail_id)
        assert refused.exit_code == 4 and "released or removed by another process" in refused.stderr
        assert second.call("purge", "--older-than", "0s", "--yes").stdout == "0 deleted\n"
        running.kill()
        running.communicate(timeout=SOON_S)
        let_go(first.bridge, hop)
        deadline = time.monotonic() + SOON_S
        while (code := second.call("release", mail_id).exit_code) == 4 and time.monotonic() < deadline:
            time.sleep(0.05)  # PostgreSQL has yet to see that the connection is gone
        assert code == 75 and len(hop.mails) == 1, "the recipient may have it"
        assert second.call("release", "--again", mail_id).exit_code == 0
    log = first.bridge.directory / "state-second" / "quarantine" / "actions.log"
    assert [json.loads(line)["action"] for line in log.read_text().splitlines()] == ["released"]


def test_mail_of_the_second_version_is_found_by_client_and_tag(database: Database) -> None:
    """It had neither column: both are filled in when the index is opened."""
    clients = {"A": "192.0.2.7", "B": "::ffff:192.0.2.8", "C": "2001:db8::1", "D": None}
    index = Index(database)
    for mail_id, client in clients.items():
        about = {"time": "2026-01-31T12:00:00+00:00", "sender": "a@x", "recipients": [], "remote_address": client}
        about["facts"] = {"tags": ["spam", "list:x"]}
        index.put([StoredRecord(mail_id, json.dumps(about).encode(), b"", 1.0)])
    index.close()
    engine = database.engine(wait_s=5)
    with engine.begin() as connection:
        connection.execute(text("DROP INDEX IF EXISTS quarantine_search"))
        for name in ("client", "tags"):
            connection.execute(text(f"ALTER TABLE quarantine DROP COLUMN {name}"))
        connection.execute(text("UPDATE quarantine_schema SET version = 1"))
    engine.dispose()
    index = Index(database)

    def found(**query: Any) -> str:
        return "".join(sorted(mail.id for mail in index.search(Query(**query))))

    assert found(client="192.0.2.7") == "A" and found(client="192.0.2.0/24") == "AB" == found(client="0.0.0.0/0")
    assert found(client="2001:db8::/32") == "C" and found(client="198.51.100.0/24") == ""
    assert found(tag="spam") == found(tag="sp*") == found(tag="*:x") == "ABCD"
    assert found(tag="spa") == found(tag="spam*x") == "", "a star stays within one tag"
    index.close()
