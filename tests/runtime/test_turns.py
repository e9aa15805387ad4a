"""Work that one process does for all that share a database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import update

from bridge.runtime.database import Database
from bridge.runtime.turns import Turns, TurnsFailed, turn
from tests.postgresql import PostgreSql, fresh_database


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database.file(tmp_path / "state.sqlite")
    return Database(fresh_database(request.getfixturevalue("postgresql")))


def test_one_of_many_does_the_work(place: Database) -> None:
    """Twenty bridges came at the same moment; the others use the result."""
    everyone = [Turns(place, f"bridge{number}", wait_s=60.0) for number in range(6)]
    with ThreadPoolExecutor(len(everyone)) as pool:
        taken = list(pool.map(lambda turns: turns.take("count", 600.0, 300.0), everyone))
    assert taken.count(True) == 1
    winner = everyone[taken.index(True)]
    assert winner.last("count") is None
    winner.finish("count", "42 mails")
    for turns in everyone:
        done = turns.last("count")
        assert done is not None and done.result == "42 mails" and not turns.take("count", 600.0, 300.0)
        assert turns.last("another") is None
    assert everyone[3].take("count", 0.0, 300.0), "who needs a newer result does it again"
    assert everyone[4].take("another", 600.0, 300.0)
    for turns in everyone:
        turns.close()


def test_work_that_failed_or_was_left_is_taken_over(place: Database) -> None:
    first, second = Turns(place, "first"), Turns(place, "second")
    assert first.take("count", 600.0, 300.0) and not second.take("count", 600.0, 300.0)
    first.give_up("count")
    assert second.take("count", 600.0, 300.0)
    with second._tables.writing() as connection:  # five minutes later
        connection.execute(update(turn).values(until=turn.c.until - 301.0))
    assert first.take("count", 600.0, 300.0)
    second.finish("count", "too late")
    second.give_up("count")
    assert first.last("count") is None and not second.take("count", 600.0, 300.0)
    first.finish("count", "in time")
    done = second.last("count")
    assert done is not None and done.result == "in time"
    first.close()
    second.close()


def test_a_clock_that_was_set_back_does_not_stop_the_work(place: Database) -> None:
    turns = Turns(place, "here")
    assert turns.take("count", 600.0, 300.0)
    with turns._tables.writing() as connection:
        connection.execute(update(turn).values(until=turn.c.until + 86400.0))
    assert turns.take("count", 600.0, 300.0)
    turns.finish("count")
    with turns._tables.writing() as connection:
        connection.execute(update(turn).values(done_at=turn.c.done_at + 86400.0))
    assert turns.take("count", 600.0, 300.0)
    turns.close()


def test_turns_are_taken_again_after_the_server_was_away(fragile_postgresql: PostgreSql) -> None:
    turns = Turns(Database(fresh_database(fragile_postgresql.url)), "here")
    assert turns.take("count", 600.0, 300.0)
    fragile_postgresql.stop()
    with pytest.raises(TurnsFailed):
        turns.finish("count", "1")
    fragile_postgresql.start()
    turns.finish("count", "2")
    done = turns.last("count")
    assert done is not None and done.result == "2"
    turns.close()
