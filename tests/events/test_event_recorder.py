"""The recorder: mail goes on whatever the database does, and every event is stored or counted as lost."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest

from bridge.events.event import EventType
from bridge.events.outbox import Limit, Outbox
from bridge.events.recorder import Plan, Recorder, RecorderSettings
from bridge.mail.action import Action
from bridge.runtime.database import Database
from bridge.testing import until
from tests.events.events_kit import ROOMY, Lost, mail, recorder, waiting
from tests.postgresql import PostgreSql, fresh_database
from tests.quarantine.small_disk import small_disk


def test_each_sink_gets_the_types_it_wants(place: Database) -> None:
    """And a mail that nobody wants to hear of costs no row."""
    outbox = Outbox(place)
    plans = (Plan("all", frozenset(map(str, EventType)), ROOMY), Plan("kept", frozenset({"mail.quarantined"}), ROOMY))
    made: list[str] = []
    one = Recorder(RecorderSettings(plans, "h"), outbox, on_made=lambda type_: made.append(str(type_)))
    one.start()
    for action in (Action.RELAY, Action.QUARANTINE, Action.REJECT):
        one.put(mail(action))
    one.close()
    found = {sink: [row.type for row in outbox.due(sink, 99)] for sink in ("all", "kept")}
    decided, kept, refused = "mail.decided", "mail.quarantined", "mail.refused"
    assert found == {"all": [decided, decided, kept, decided, refused], "kept": [kept]}
    assert made == found["all"]
    outbox.close()


def test_a_report_is_only_appended(file: Database) -> None:
    """Not even the first one waits for the database: the thread opens it."""
    one = recorder(file, Lost())
    one.put(mail())
    assert one.waiting == 1 and file.path is not None and not file.path.exists()


def test_a_full_queue_costs_exactly_what_does_not_fit(file: Database) -> None:
    """Counted in events for each sink, not in mails: a rejected mail has two."""
    lost = Lost()
    one = recorder(file, lost, max_waiting=10)
    for _ in range(10):
        one.put(mail())
    one.put(mail(Action.REJECT))
    one.put(mail())
    assert lost == {("s", "queue"): 3}
    one.start()
    one.close()
    outbox = Outbox(file)
    (state,) = outbox.states()
    assert (state.waiting, state.lost) == (10, 3)
    outbox.close()


def test_mails_with_many_recipients_filled_the_memory(file: Database) -> None:
    """The queue was limited by its number of mails, and a mail with a thousand recipients takes a megabyte."""
    lost = Lost()
    one = recorder(file, lost, max_waiting=100)
    many = [f"{number}@example.org" for number in range(1000)]
    for _ in range(10):
        one.put(mail(recipients=many))
    assert one.waiting == 2 and lost == {("s", "queue"): 8}
    one.start()
    until(lambda: not one.waiting, "the queue to be written")
    one.put(mail(recipients=many))
    one.close()
    assert lost == {("s", "queue"): 8}  # there was room again


def test_a_locked_database_costs_nothing_while_there_is_memory(file: Database) -> None:
    """The events wait in memory, and are written when the lock is gone."""
    lost = Lost()
    Outbox(file).states()
    assert file.path is not None
    holder = sqlite3.connect(file.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    one = recorder(file, lost, wait_s=0.1, max_waiting=100)
    one.start()
    one.put(mail())
    until(lambda: one.problem, "the lock to be noticed")
    began = time.perf_counter()
    for _ in range(150):
        one.put(mail())
    assert time.perf_counter() - began < 150 * 0.1 / 2  # a report never waits for the lock
    assert lost == {("s", "queue"): 50}
    holder.execute("COMMIT")
    holder.close()
    until(lambda: not one.waiting and not one.problem, "the queue to be written")
    one.close()
    assert waiting(file) == 101 and sum(lost.values()) == 50


def test_a_full_disk_loses_exactly_what_is_counted(tmp_path: Path) -> None:
    """Every event is in the outbox or counted, while the disk is full and when there is room again."""
    lost, total = Lost(), 3000
    with small_disk(tmp_path / "small", 512 * 1024) as disk:
        place = Database.file(disk / "events.sqlite")
        one = recorder(place, lost, max_waiting=500)
        one.start()
        for number in range(total):
            one.put(mail())
            if number % 100 == 0:
                until(lambda: one.problem or one.waiting < 400, "the writer to follow, or to fail")
        until(lambda: one.problem, "the disk to be full")
        assert "full" in one.problem or "disk I/O" in one.problem
        one.close(limit_s=0.5)
        assert 0 < waiting(place) < total
        assert waiting(place) + sum(lost.values()) == total
        assert lost["s", "queue"] and lost["s", "stop"]


def test_a_server_that_dies_and_returns_costs_only_what_is_counted(fragile_postgresql: PostgreSql) -> None:
    """Nothing, if it is back before the queue in memory is full; nothing is stored twice."""
    place, lost = Database(fresh_database(fragile_postgresql.url)), Lost()
    one = recorder(place, lost, max_waiting=200)
    one.start()
    one.put(mail())
    until(lambda: waiting(place) == 1, "the first event to be stored")
    fragile_postgresql.stop()
    try:
        for _ in range(100):
            one.put(mail())
        until(lambda: one.problem, "the server to be missed")
        assert not lost
        for _ in range(300):
            one.put(mail())
    finally:
        fragile_postgresql.start()
    until(lambda: not one.waiting and not one.problem, "the queue to be written")
    one.close()
    assert waiting(place) + lost["s", "queue"] == 401 and 100 <= lost["s", "queue"] <= 300
    outbox = Outbox(place)
    (state,) = outbox.states()
    assert state.lost == lost["s", "queue"]
    outbox.close()


def test_an_outbox_at_its_limit_loses_the_newest(file: Database) -> None:
    """And counts them, by their own reason."""
    lost = Lost()
    one = recorder(file, lost, Limit(5, 1 << 20))
    one.start()
    for _ in range(8):
        one.put(mail())
    one.close()
    assert waiting(file) == 5 and lost == {("s", "outbox"): 3}


def test_one_mail_that_cannot_be_described_does_not_cost_the_others(
    file: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in one field is logged, and counted."""
    lost = Lost()
    one = recorder(file, lost)
    one.start()
    broken = mail()
    broken.wait_s = None  # type: ignore[assignment]
    one.put(broken)
    one.put(mail())
    one.close()
    assert waiting(file) == 1 and lost == {("s", "queue"): 1}
    assert "an event could not be created" in caplog.text


def test_events_that_nobody_can_store_do_not_cost_the_others(file: Database) -> None:
    """An error that the outbox did not expect ended the thread: no event was recorded until the next restart."""

    class Picky(Outbox):
        def add(self, entries, *arguments, **options):  # type: ignore[no-untyped-def]
            if any(entry.about == "HOSTILE" for entry in entries):
                raise ValueError("nobody thought of this")
            return super().add(entries, *arguments, **options)

    lost = Lost()
    settings = RecorderSettings((Plan("s", frozenset({"mail.decided"}), ROOMY),), "h", batch_s=0.01)
    one = Recorder(settings, Picky(file), on_lost=lost)
    one.start()
    one.put(mail(mail_id="HOSTILE"))
    until(lambda: lost, "the loss to be counted")
    one.put(mail())
    one.close()
    outbox = Outbox(file)
    (state,) = outbox.states()
    assert (state.waiting, state.lost) == (1, 1) and lost == {("s", "queue"): 1}
    outbox.close()
