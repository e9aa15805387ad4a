"""The outbox, in SQLite and PostgreSQL: order, limits, leases, dead letters; every total is exact."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, func, select, text

from bridge.events.event import Report, ScannerState, list_changed, reported, scanner_state
from bridge.events.outbox import (
    LONGEST_ASIDE_S,
    Entry,
    Failed,
    Limit,
    Outbox,
    OutboxError,
    SinkState,
    event_outbox,
    event_sink,
)
from bridge.observe.redaction import FULL
from bridge.runtime.database import Database
from tests.events.events_kit import ROOMY, entry
from tests.postgresql import fresh_database


@pytest.fixture
def outbox(place: Database) -> Iterator[Outbox]:
    found = Outbox(place)
    yield found
    found.close()


def state(outbox: Outbox, name: str = "s") -> SinkState:
    return next(one for one in outbox.states() if one.name == name)


def check_totals(outbox: Outbox) -> None:
    """The totals of each sink are those of its rows."""
    for one in outbox.states():
        with outbox._tables.reading() as connection:
            own = event_outbox.c.sink == one.name
            totals = select(func.count(), func.coalesce(func.sum(func.length(event_outbox.c.body)), 0)).where(own)
            events, size = connection.execute(totals).one()
            dead = connection.execute(select(func.count()).where(own, event_outbox.c.is_dead)).scalar()
        assert (one.events, one.size_bytes, one.dead) == (events, size, dead)


def test_events_come_out_in_the_order_they_went_in(outbox: Outbox) -> None:
    """For each sink by itself, over several batches."""
    first = [entry("s", f"m{n}") for n in range(5)]
    second = [entry("s", f"m{n}") for n in range(5)] + [entry("other")]
    outbox.add(first, {"s": ROOMY})
    outbox.add(second, {"s": ROOMY, "other": ROOMY})
    assert [one.id for one in outbox.due("s", 100)] == [one.id for one in (*first, *second[:5])]
    assert [one.id for one in outbox.due("s", 3)] == [one.id for one in first[:3]]
    assert len(outbox.due("other", 100)) == 1
    check_totals(outbox)


def test_what_does_not_fit_is_counted(outbox: Outbox) -> None:
    """By number and by size, for each sink by itself; the newest are lost."""
    entries = [entry("s", body=b"x" * 10) for _ in range(5)] + [entry("t", body=b"x" * 10) for _ in range(5)]
    excess = outbox.add(entries, {"s": Limit(3, 1000), "t": Limit(100, 25)}, {"t": 7})
    assert excess == {"s": 2, "t": 3}
    assert (state(outbox).waiting, state(outbox).lost) == (3, 2)
    assert (state(outbox, "t").waiting, state(outbox, "t").lost) == (2, 10)
    assert [one.id for one in outbox.due("s", 9)] == [one.id for one in entries[:3]]
    outbox.settle("s", [one.seq for one in outbox.due("s", 9)], [], "")
    assert outbox.add(entries[3:5], {"s": Limit(3, 1000)}) == {"s": 0}
    check_totals(outbox)


def test_an_event_waits_behind_one_about_the_same_mail(outbox: Outbox) -> None:
    """Which was set aside; events about other mails pass."""
    outbox.add([entry(about="m1"), entry(about="m2"), entry(about="m1")], {"s": ROOMY})
    first, second, third = outbox.due("s", 9)
    outbox.settle("s", [], [Failed(first.seq, "no", next_at=time.time() + 60)], "no")
    assert [one.seq for one in outbox.due("s", 9)] == [second.seq]
    assert outbox.retry("s", []) == 0  # no dead letters, but the pause is over
    assert [(one.seq, one.attempts) for one in outbox.due("s", 9)] == [(first.seq, 1), (second.seq, 0), (third.seq, 0)]


def test_many_events_behind_one_that_was_set_aside_stopped_all_others(outbox: Outbox) -> None:
    """More than a batch of them: each recipient of a mail had it released, or a scanner host went up and down."""
    outbox.add([entry(about="m1") for _ in range(9)] + [entry(about="m2") for _ in range(3)], {"s": ROOMY})
    first, *_ = outbox.due("s", 1)
    outbox.settle("s", [], [Failed(first.seq, "no", next_at=time.time() + 60)], "no")
    assert [one.about for one in outbox.due("s", 2)] == ["m2", "m2"]
    assert [one.about for one in outbox.due("s", 9)] == ["m2", "m2", "m2"]


def test_an_event_set_aside_by_a_clock_that_was_ahead_waited_for_that_time(outbox: Outbox) -> None:
    """And with it all later events about the same mail: perhaps for years."""
    outbox.add([entry(about="m1"), entry(about="m2"), entry(about="m1")], {"s": ROOMY})
    due = outbox.due("s", 9)
    for ahead_s, waits in ((LONGEST_ASIDE_S - 60, True), (LONGEST_ASIDE_S + 60, False), (86400 * 365, False)):
        outbox.settle("s", [], [Failed(due[0].seq, "no", next_at=time.time() + ahead_s)], "no")
        assert [one.seq for one in outbox.due("s", 9)] == [one.seq for one in due if not waits or one.about == "m2"]


def test_dead_letters_are_kept_until_someone_decides(outbox: Outbox) -> None:
    """They are listed, sent again, or dropped; and they count."""
    outbox.add([entry(about=f"m{n}") for n in range(4)], {"s": ROOMY})
    due = outbox.due("s", 9)
    outbox.settle("s", [due[0].seq], [Failed(one.seq, "x" * 999, is_dead=True) for one in due[1:]], "no")
    now = state(outbox)
    assert (now.waiting, now.dead, now.problem) == (0, 3, "no") and now.delivered_at and now.failing_since
    assert [one.id for one in outbox.dead()] == [one.id for one in reversed(due[1:])]
    assert outbox.dead("s", 1)[0].problem == "x" * 300 and not outbox.dead("other")
    check_totals(outbox)
    assert outbox.retry(None, [due[1].id]) == 1
    again = outbox.due("s", 9)
    assert [(one.id, one.attempts, one.failed_at) for one in again] == [(due[1].id, 0, 0.0)]
    assert outbox.drop("s", [due[2].id, due[1].id]) == 1  # the other one is not dead any more
    assert outbox.find(due[2].id) == [] and len(outbox.find(due[3].id)) == 1
    assert outbox.drop("s", None, waiting=True) == 2
    check_totals(outbox)
    assert state(outbox).events == 0


def test_a_dead_letter_is_buried_after_a_month(outbox: Outbox) -> None:
    """And counted as lost."""
    outbox.add([entry(), entry()], {"s": ROOMY})
    first, _ = outbox.due("s", 9)
    outbox.settle("s", [], [Failed(first.seq, "no", is_dead=True)], "no")
    assert outbox.bury_old(time.time() - 60) == {}
    assert outbox.bury_old(time.time() + 60) == {"s": 1}
    assert (state(outbox).waiting, state(outbox).dead, state(outbox).lost) == (1, 0, 1)
    check_totals(outbox)


def test_settling_what_somebody_dropped_changes_nothing(outbox: Outbox) -> None:
    """An operator may empty the outbox while events are on their way."""
    outbox.add([entry(), entry()], {"s": ROOMY})
    first, second = outbox.due("s", 9)
    outbox.drop("s", None, waiting=True)
    outbox.settle("s", [first.seq], [Failed(second.seq, "no", is_dead=True)], "no")
    assert state(outbox).events == state(outbox).dead == 0


def test_one_process_has_the_lease(outbox: Outbox, place: Database) -> None:
    """Until it gives it up, or is gone for longer than the lease lasts."""
    other = Outbox(place)
    assert outbox.hold_lease("s", "one") and outbox.hold_lease("s", "one")
    assert not other.hold_lease("s", "two") and other.hold_lease("t", "two")
    outbox.give_up_leases("one")
    assert other.hold_lease("s", "two") and not outbox.hold_lease("s", "one")
    with outbox._writing() as connection:
        connection.execute(event_sink.update().values(lease_until=event_sink.c.lease_until - 31))
    assert outbox.hold_lease("s", "one")
    with outbox._writing() as connection:  # as if the clock had been an hour fast until now
        connection.execute(event_sink.update().values(lease_until=event_sink.c.lease_until + 3600))
    assert other.hold_lease("s", "two")
    other.close()


def test_bridges_that_may_not_deliver_wait_for_nobody(postgresql: str) -> None:
    """With fifty bridges, those that asked for the lease held up each other, and the events that were to be stored."""
    place = Database(fresh_database(postgresql))
    first, second = Outbox(place), Outbox(place, wait_s=60.0)
    try:
        assert first.hold_lease("s", "one")
        with first._writing() as connection:
            connection.execute(select(event_sink).with_for_update()).all()
            answer: list[bool] = []
            asking = threading.Thread(target=lambda: answer.append(second.hold_lease("s", "two")))
            asking.start()
            asking.join(50.0)
            assert answer == [False], "it waits for the row"
        asking.join()
    finally:
        first.close()
        second.close()


def test_a_batch_that_was_stored_after_all_is_not_stored_twice(outbox: Outbox) -> None:
    """A connection that is lost during the commit leaves that open."""
    batch = [entry(event_id=f"e{n}") for n in range(1200)]
    outbox.add([entry()], {"s": ROOMY})
    other = Outbox(outbox.place)
    other.add(batch[:700], {"s": ROOMY})  # as if our own commit had arrived
    assert outbox.add(batch, {"s": ROOMY}, again=True) == {"s": 0}
    assert state(outbox).waiting == 1201
    check_totals(outbox)
    other.close()


def test_processes_that_write_at_the_same_time_lose_nothing(place: Database) -> None:
    """Each worker has its own connection; totals are exact, and the order of each is kept."""
    failures: list[Exception] = []

    def write(worker: int) -> None:
        outbox = Outbox(place, wait_s=30.0)
        try:
            for number in range(20):
                outbox.add(
                    [entry(about=f"w{worker}", event_id=f"{worker}-{number}-{n}") for n in range(5)], {"s": ROOMY}
                )
        except Exception as exc:
            failures.append(exc)
        finally:
            outbox.close()

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outbox = Outbox(place)
    found = [one.id for one in outbox.due("s", 1000)]
    assert not failures and len(found) == 400
    for worker in range(4):
        own = [one for one in found if one.startswith(f"{worker}-")]
        assert own == [f"{worker}-{number}-{n}" for number in range(20) for n in range(5)]
    check_totals(outbox)
    outbox.close()


def test_a_newer_schema_is_not_touched(file: Database) -> None:
    """The error says so."""
    outbox = Outbox(file)
    outbox.add([], {"s": ROOMY})
    outbox.close()
    engine = create_engine(file.url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE event_schema SET version = 99, oldest_reader = 99"))
    engine.dispose()
    with pytest.raises(OutboxError, match="newer version"):
        outbox.states()


def test_the_file_is_ours_alone(file: Database) -> None:
    """It contains addresses."""
    outbox = Outbox(file)
    outbox.add([entry()], {"s": ROOMY})
    assert file.path is not None and file.path.stat().st_mode & 0o777 == 0o600
    outbox.close()


def test_the_report_of_an_unknown_mail_did_not_fit_into_postgresql(outbox: Outbox) -> None:
    """Its id is a digest, which is longer than ours: the event was refused, and lost."""
    report = reported(Report(f"sha256:{'0' * 64}", "", (), "ann", "spam", "noted"), FULL, 0.0)
    state_of_host = scanner_state(f"https://{'s' * 200}.example", ScannerState.DOWN, None, "", 0.0)
    events = [report, state_of_host, list_changed("l" * 64, "t" * 36, 1, None, 0.0)]
    stored = [Entry("s", made.id, made.type, made.about, made.time, made.to_json("h")) for made in events]
    assert outbox.add(stored, {"s": ROOMY}) == {"s": 0}
    assert [one.id for one in outbox.due("s", 100)] == [made.id for made in events]
