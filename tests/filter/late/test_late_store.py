"""The stores: entries can be found again, within limits, also by the next process."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.api.scanning import AnalysisResult, Decision
from bridge.filter.late.store import Entry, LateStore, LateStoreError, MemoryStore, SqlStore
from bridge.runtime.database import Database
from tests.quarantine.small_disk import small_disk

ROOT = Path(__file__).parents[3]

RESULT = AnalysisResult(Decision.BOUNCE, "ggrid", "verdict \u2603", ("a:b", "c"), "2026-01-01T00:00:00Z", "later")


def entry(number: int, **changes: object) -> Entry:
    return replace(Entry(bytes([number]) * 32, bytes([number]) * 8, 1000.0 + number, "here/1/2"), **changes)  # type: ignore[arg-type]


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LateStore]:
    store: LateStore = MemoryStore()
    if request.param == "sqlite":
        store = SqlStore.in_file(tmp_path / "late.sqlite")
    elif request.param == "postgresql":
        store = SqlStore(Database(request.getfixturevalue("server_database")), tmp_path / "stamp")
    store.open()
    yield store
    store.close()


def test_a_stored_entry_is_found(store: LateStore) -> None:
    """While the scan runs, and then with its complete decision."""
    store.put(entry(1))
    assert store.get(entry(1).key) == entry(1)
    done = entry(1, changed_at=2000.0, owner="", result=RESULT)
    store.put(done)
    assert store.get(done.key) == done
    assert store.get(entry(2).key) is None


def test_a_removed_entry_is_gone(store: LateStore) -> None:
    """Removing a missing entry is no error."""
    store.put(entry(1))
    store.remove(entry(1).key)
    store.remove(entry(2).key)
    assert store.get(entry(1).key) is None and store.envelopes(0) == set()


def test_envelopes_of_entries_changed_since_a_time_are_listed(store: LateStore) -> None:
    """A worker reads only new entries."""
    for number in (1, 2, 3):
        store.put(entry(number))
    assert store.envelopes(0) == {entry(number).envelope for number in (1, 2, 3)}
    assert store.envelopes(1002.0) == {entry(2).envelope, entry(3).envelope}


def test_old_and_surplus_entries_are_removed(store: LateStore) -> None:
    """The oldest entries are removed first, and those of a clock that was ahead in any case."""
    for number in range(1, 8):
        store.put(entry(number))
    store.purge(1003.0, 100)
    assert store.envelopes(0) == {entry(number).envelope for number in range(3, 8)}
    store.purge(0.0, 3, 1006.0)
    assert store.envelopes(0) == {entry(number).envelope for number in (4, 5, 6)}


def test_touch_renews_scans_that_are_still_awaited(server_database: str, tmp_path: Path) -> None:
    """Other machines cannot see our processes; entries with a decision keep their age."""
    store = SqlStore(Database(server_database), tmp_path / "stamp")
    store.open()
    for stored in (entry(1), entry(2, owner="there/1/2"), entry(3, owner="", result=RESULT)):
        store.put(stored)
    store.touch("here/1/2", 5000.0)
    assert store.envelopes(1004.0) == {entry(1).envelope}
    store.close()


def test_many_processes_can_create_the_tables_and_write_concurrently(server_database: str, tmp_path: Path) -> None:
    """Machines that start together and get the same mail do not interfere with each other."""

    def work(number: int) -> None:
        store = SqlStore(Database(server_database), tmp_path / f"stamp{number}")
        store.open()
        for _ in range(20):
            store.put(entry(1, owner=f"machine{number}/1/2"))
            store.purge(0.0, 100)
        store.close()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [None] * 4


def test_a_damaged_file_shared_with_others_is_not_moved(tmp_path: Path) -> None:
    """The quarantine's index may be in it."""
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"x" * 5000)
    with pytest.raises(LateStoreError):
        SqlStore(Database.file(path), tmp_path / "stamp").open()
    assert path.read_bytes() == b"x" * 5000


def test_a_database_is_shared_and_survives(tmp_path: Path) -> None:
    """Two processes see each other's entries, and so does a process that starts later."""
    first, second = (SqlStore.in_file(tmp_path / "late.sqlite") for _ in range(2))
    first.open()
    second.open()
    first.put(entry(1))
    assert second.get(entry(1).key) == entry(1)
    second.put(entry(1, result=RESULT))
    first.close()
    second.close()
    first.open()
    assert first.get(entry(1).key) == entry(1, result=RESULT)
    first.close()


@pytest.mark.parametrize("content", [b"this is no database, " * 1000, b"SQLite format 3\0" + b"\xff" * 4096])
def test_a_damaged_file_is_set_aside(tmp_path: Path, content: bytes) -> None:
    """It costs a few scans, but the start succeeds."""
    path = tmp_path / "late.sqlite"
    path.write_bytes(content)
    store = SqlStore.in_file(path)
    store.open()
    store.put(entry(1))
    assert store.get(entry(1).key) == entry(1)
    store.close()
    assert path.with_name("late.sqlite.damaged").read_bytes() == content


def test_a_newer_database_is_left_alone(tmp_path: Path) -> None:
    """After a downgrade nothing is destroyed."""
    path = tmp_path / "late.sqlite"
    store = SqlStore.in_file(path)
    store.open()
    store.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE late_schema SET version = 99, oldest_reader = 99")
    database.close()
    with pytest.raises(LateStoreError, match="newer version"):
        store.open()
    assert path.exists() and not path.with_name("late.sqlite.damaged").exists()


def test_a_missing_directory_raises_our_own_error(tmp_path: Path) -> None:
    """So does a store that was never opened."""
    with pytest.raises(LateStoreError):
        SqlStore.in_file(tmp_path / "nowhere/late.sqlite").open()
    with pytest.raises(LateStoreError, match="not open"):
        SqlStore.in_file(tmp_path / "late.sqlite").get(b"x")


def test_a_full_disk_ended_the_process_with_the_first_late_decision(tmp_path: Path) -> None:
    """With PostgreSQL, the entry itself needs no local disk; the memory of its stamp did (SIGBUS)."""
    program = """
import sys
from pathlib import Path
from bridge.filter.late.store import Entry, SqlStore
from bridge.runtime.database import Database

full, elsewhere = map(Path, sys.argv[1:])
store = SqlStore(Database.file(elsewhere / "entries.sqlite"), full / "stamp")
store.open()
try:
    with (full / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(bytes(512))
except OSError:
    pass
assert store.stamp() == store.stamp()
store.put(Entry(bytes(32), bytes(8), 1000.0, "here/1/2"))
assert store.get(bytes(32)) is not None
"""
    with small_disk(tmp_path / "full") as full:
        process = subprocess.run([sys.executable, "-c", program, full, tmp_path], cwd=ROOT, check=False)
    assert process.returncode == 0


def test_a_locked_database_is_an_error_in_time(tmp_path: Path) -> None:
    """While another process holds the write lock, reading works and writing fails after the busy timeout."""
    store = SqlStore.in_file(tmp_path / "late.sqlite", busy_s=0.1)
    store.open()
    other = sqlite3.connect(tmp_path / "late.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(LateStoreError, match="locked"):
        store.put(entry(1))
    assert store.get(entry(1).key) is None
    other.execute("ROLLBACK")
    store.put(entry(1))
    other.close()
    store.close()


def test_machines_do_not_wait_for_each_other(server_database: str, tmp_path: Path) -> None:
    """One lock for all of them made each new entry wait for every other machine."""
    stores = [SqlStore(Database(server_database), tmp_path / "stamp", busy_s=30.0) for _ in range(4)]
    for store in stores:
        store.open()
    with stores[0]._tables.writing():  # as if it had stopped in the middle of a purge
        stores[1].put(entry(1))
        stores[1].remove(entry(1).key)

    def work(store: LateStore) -> None:
        for number in (*range(20), *reversed(range(20))):
            store.put(entry(number))
            store.touch("here/1/2", 3000.0)
            store.purge(500.0, 15)

    with ThreadPoolExecutor(len(stores)) as pool:
        list(pool.map(work, stores))  # raises what a store raised
    for store in stores:
        store.close()
