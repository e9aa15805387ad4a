"""Segments of the history: slots, restarts, damaged files, and readers that meet a change."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from bridge.history import segment_files, segment_merge, segments
from bridge.history.entry import LaterEvent, address_keys, queue_id_keys
from bridge.history.query import HistoryQuery
from bridge.history.store import HistoryError
from bridge.testing import until
from tests.history.history_kit import NOON, add, find, mail, sqlite_history


def files(directory: Path) -> list[str]:
    return sorted(path.suffix for path in directory.iterdir() if path.suffix in (".live", ".sqlite", ".damaged"))


def test_a_full_segment_is_finished_and_another_begun(tmp_path: Path) -> None:
    """A finished one is a single file that only we can read."""
    history = sqlite_history(tmp_path / "history", max_rows=10)
    history.append([mail(number) for number in range(4)])
    assert files(tmp_path / "history") == [".live"]
    history.append([mail(4 + number) for number in range(8)])
    assert files(tmp_path / "history") == [".sqlite"]
    history.append([mail(20)])
    assert files(tmp_path / "history") == [".live", ".sqlite"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "history").iterdir()} == {0o600}
    assert len(find(history)) == 13


def test_an_old_segment_was_kept_until_the_next_mail_came(tmp_path: Path) -> None:
    """Without any mail its entries stayed, however short the retention was."""
    writer = segments.SegmentWriter(tmp_path, max_age_s=0.5)
    writer.append([mail(1)])
    assert files(tmp_path) == [".live"]

    def is_finished() -> bool:
        writer.settle()
        return files(tmp_path) == [".sqlite"]

    until(is_finished, "the segment to be finished")
    writer.settle()
    assert files(tmp_path) == [".sqlite"], "nothing to finish any more"


def test_the_next_process_continues_a_segment(tmp_path: Path) -> None:
    """With the kinds that it has."""
    first = sqlite_history(tmp_path)
    add(first, mail(1, rule="policy.a"), mail(2, rule="policy.b"))
    first.close()
    second = sqlite_history(tmp_path)
    add(second, mail(3, rule="policy.b"), mail(4, rule="policy.c"))
    assert files(tmp_path) == [".live"]
    assert find(second, rule="policy.b") == ["ID0003", "ID0002"]
    assert find(second, rule="policy.c") == ["ID0004"]


def test_a_slot_has_one_owner(tmp_path: Path) -> None:
    """Each process has its own segment; one that was left behind is finished."""
    first, second = sqlite_history(tmp_path), sqlite_history(tmp_path)
    add(first, mail(1))
    add(second, mail(2))
    assert files(tmp_path) == [".live", ".live"]
    first.maintain(0, None)
    assert files(tmp_path) == [".live", ".live"], "both have owners"
    second.close()
    first.maintain(0, None)
    assert files(tmp_path) == [".live", ".sqlite"]
    assert find(first) == ["ID0002", "ID0001"]


def _write_and_die(directory: Path) -> None:
    history = sqlite_history(directory)
    add(history, mail(1), mail(2))
    os._exit(9)


def test_what_a_killed_process_wrote_is_there(tmp_path: Path) -> None:
    """Without a chance to close anything."""
    process = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(tmp_path,))
    process.start()
    process.join(120)
    assert process.exitcode == 9
    history = sqlite_history(tmp_path)
    assert find(history) == ["ID0002", "ID0001"]
    history.maintain(0, None)
    assert files(tmp_path) == [".sqlite"]
    assert find(history) == ["ID0002", "ID0001"]


def test_a_damaged_segment_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new one is begun in its place, and a finished one that cannot be read does not stop a search."""
    (tmp_path / "slot-0-0123abcd.live").write_bytes(b"this is no database" * 1000)
    history = sqlite_history(tmp_path, max_rows=2)
    add(history, mail(1), mail(2))
    assert files(tmp_path) == [".damaged", ".sqlite"]
    (finished,) = tmp_path.glob("*.sqlite")
    finished.write_bytes(b"this is no database" * 1000)
    add(history, mail(3))
    assert find(history) == ["ID0003"]
    assert files(tmp_path) == [".damaged", ".damaged", ".live"] and "is damaged" in caplog.text
    history.maintain(0, None)


def test_a_page_that_is_damaged_under_a_running_process_costs_one_batch(tmp_path: Path) -> None:
    """The segment is set aside, and the next attempt begins another."""
    history = sqlite_history(tmp_path)
    history.append([mail(number, subject="x" * 200) for number in range(500)])
    (live,) = tmp_path.glob("*.live")
    with closing(sqlite3.connect(live)) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = live.read_bytes()
    live.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    history.close()
    for attempt in range(3):
        try:
            add(history, mail(1000 + attempt))
        except HistoryError:
            continue
    assert find(history)[0] == "ID1002"
    assert ".damaged" in files(tmp_path)


def test_kinds_that_look_alike_when_stored_do_not_stop_the_next_process(tmp_path: Path) -> None:
    """A scanner's text with bytes that are no text."""
    history = sqlite_history(tmp_path)
    add(history, mail(1, verdict="bad \udcff"), mail(2, verdict="bad \udcfe"), mail(3, verdict="fine"))
    history.close()
    add(history, mail(4, verdict="other"), mail(5, verdict="bad \udcfd"))
    assert find(history) == ["ID0005", "ID0004", "ID0003", "ID0002", "ID0001"]
    assert [entry.kind.verdict for entry in history.find(HistoryQuery())][:2] == ["bad ?", "other"]


def test_a_large_live_segment_is_finished_early(tmp_path: Path) -> None:
    """Mails with a thousand recipients: few of them fill a segment."""
    history = sqlite_history(tmp_path, max_bytes=2 << 20)
    recipients = "\n".join(f"{number:0200d}@example.org" for number in range(1000))
    for number in range(6):
        history.append([mail(number * 4 + each, recipients=recipients) for each in range(4)])
    assert ".sqlite" in files(tmp_path)
    assert len(find(history, recipient=f"{7:0200d}@example.org", limit=0)) == 24


def test_upkeep_is_done_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Two daemons on one directory must not merge the same segments."""
    history = sqlite_history(tmp_path, max_rows=1)
    add(history, mail(1, at=1000.0), mail(2, at=2000.0))
    with segments.slot_lock(tmp_path / "upkeep.lock"):
        assert history.maintain(1e10, None) == (0, 0)
    assert history.maintain(1e10, None) == (2, 0)


def test_a_segment_that_is_removed_is_begun_again(tmp_path: Path) -> None:
    """An operator deleted the directory under a running daemon."""
    history = sqlite_history(tmp_path / "history")
    add(history, mail(1))
    for path in (tmp_path / "history").iterdir():
        path.unlink()
    (tmp_path / "history").rmdir()
    add(history, mail(2))
    assert find(history) == ["ID0002"]


def test_a_locked_segment_fails_and_nothing_is_half_written(tmp_path: Path) -> None:
    """All mails of a batch or none; the next attempt writes them."""
    history = sqlite_history(tmp_path, busy_s=0.05)
    add(history, mail(1))
    (live,) = tmp_path.glob("*.live")
    other = sqlite3.connect(live, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(HistoryError, match="locked"):
        history.append([mail(2, rule="new"), mail(3)])
    other.execute("COMMIT")
    other.close()
    assert find(history) == ["ID0001"]
    history.append([mail(2, rule="new"), mail(3)])
    assert find(history) == ["ID0003", "ID0002", "ID0001"] and find(history, rule="new") == ["ID0002"]


def test_a_search_survives_segments_that_are_finished_and_deleted(tmp_path: Path) -> None:
    """One thread writes and deletes, another searches all the time: every page is complete."""
    writer, reader = sqlite_history(tmp_path, max_rows=5), sqlite_history(tmp_path)
    done = threading.Event()

    def write() -> None:
        try:
            for number in range(100):
                writer.append([mail(number)])
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    newest = 0
    while not done.is_set():
        page = reader.find(HistoryQuery(limit=10))
        numbers = [int(entry.row.id[2:]) for entry in page]
        assert numbers == list(range(numbers[0], numbers[0] - len(numbers), -1)) if numbers else True
        assert not numbers or (numbers[0] >= newest and len(numbers) == min(10, numbers[0] + 1))
        newest = max([newest, *numbers])
    thread.join()
    assert find(reader, limit=3) == ["ID0099", "ID0098", "ID0097"]


def test_times_are_in_the_name(tmp_path: Path) -> None:
    """So that a search for a short time opens few files, and old files are found without opening them."""
    history = sqlite_history(tmp_path, max_rows=2)
    add(history, mail(1, at=1_000_000_000.5), mail(2, at=1_000_000_009.25))
    (path,) = tmp_path.glob("*.sqlite")
    assert path.name.startswith("1000000000500-1000000009250-")
    assert segment_files.segment_files(tmp_path) == [(1_000_000_000.5, 1_000_000_009.251, path)]


def test_of_a_segment_that_was_finished_only_the_finished_one_counts(tmp_path: Path) -> None:
    """The process ended before it could remove the live one: no mail appears twice."""
    history = sqlite_history(tmp_path)
    add(history, mail(1))
    history.close()
    (live,) = tmp_path.glob("*.live")
    kept = live.read_bytes()
    segments.finish(live)
    live.write_bytes(kept)
    assert find(history) == ["ID0001"]
    add(history, mail(2))
    assert not live.exists()
    assert find(history) == ["ID0002", "ID0001"]


def test_a_directory_that_cannot_be_read_is_no_empty_history(tmp_path: Path) -> None:
    """It is said to be unreadable; one that does not exist is empty."""
    assert find(sqlite_history(tmp_path / "none")) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(HistoryError, match="file: Not a directory"):
        find(sqlite_history(tmp_path / "file"))


@pytest.mark.parametrize("number", [1, 99, 100, 101, 250])
@pytest.mark.parametrize("helo", ["mx.example", "\udcff"])
def test_mails_written_together_are_all_there(tmp_path: Path, number: int, helo: str) -> None:
    """In their order, each with its own kind, also if one has bytes that are not text."""
    history = sqlite_history(tmp_path)
    history.append([mail(each, rule=f"r{each % 7}", helo=helo if each == number - 1 else "") for each in range(number)])
    found = history.find(HistoryQuery(limit=0))
    assert sorted((entry.row.id, entry.kind.rule) for entry in found) == [
        (f"ID{each:04d}", f"r{each % 7}") for each in range(number)
    ]
    history.close()


def test_columns_of_a_newer_version_stopped_the_history(tmp_path: Path) -> None:
    """It began the segment and noted a release; then its operator went back: all that is added has a name."""
    history = sqlite_history(tmp_path)
    add(history, mail(1))
    history.note([LaterEvent(NOON, "ID0001", "released")])
    history.close()
    (live,) = tmp_path.glob("*.live")
    for path, table in ((live, "mail"), (live, "kind"), (tmp_path / "later.db", "later")):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"ALTER TABLE {table} ADD COLUMN newer DEFAULT 'x'")
    history = sqlite_history(tmp_path, max_rows=2)
    add(history, mail(2, rule="policy.other"))
    add(history, mail(3), mail(4))
    assert files(tmp_path) == [".sqlite", ".sqlite"]
    for merged in (False, True):
        if merged:
            segment_merge.merge_days(tmp_path, NOON + 5 * 86400)
            assert files(tmp_path) == [".sqlite"]
        assert find(history) == ["ID0004", "ID0003", "ID0002", "ID0001"]
        assert find(history, rule="policy.other") == ["ID0002"]
    history.note([LaterEvent(NOON + 1, "ID0001", "deleted")])
    assert [event.event for event in history.later(["ID0001"])] == ["released", "deleted"]


def test_sqlite_makes_the_same_keys_of_addresses_as_python(tmp_path: Path) -> None:
    """A plain address that it compared in another way would only be found in the live segment."""
    characters = [chr(number) for number in range(1, 128) if chr(number) != "\n"]
    addresses = [
        *(
            f"{local}@{domain}"
            for each in characters
            for local, domain in ((f"A{each}B", "c.example"), ("a", f"C{each}d"))
        ),
        *(f"{each}@c.example" for each in characters),
        *(f"a@c.example{each}" for each in characters),
        *(
            "",
            "@",
            "a",
            "Postmaster",
            "~a1b2",
            "*@c.example",
            "a@",
            "@b.example",
            "a@b@c.example",
            "a@b..",
            "\u00e4@b.example",
            "a@B\u00dccher.example",
        ),
        *(f"{'a' * 391}@c.example", f"{'a' * 390}@c.example", "<@relay.example:a@c.example>"),
    ]
    made = [mail(number, sender=address, recipients=address) for number, address in enumerate(addresses)]
    made.append(mail(len(made), recipients="B@c.example\nd@e.example", next_id="N1,N2"))
    sqlite_history(tmp_path, max_rows=1).append(made)
    expected = {
        (key, number)
        for number, (_, row) in enumerate(made, 1)
        for key in (
            *address_keys(row.sender, row.recipients.split("\n") if row.recipients else ()),
            *queue_id_keys(row.next_id),
        )
    }
    with closing(sqlite3.connect(next(tmp_path.glob("*.sqlite")))) as connection:
        assert set(connection.execute("SELECT key, mail FROM address")) == expected
