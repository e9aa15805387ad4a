"""Locks shared through PostgreSQL: a holder that lost its connection notices before it sends anything."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import text

from bridge.quarantine.locks import MAX_HELD, PostgresLocks
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings
from bridge.quarantine.record import ReleaseAttempt
from bridge.quarantine.release import ReleaseRequest, ReleaseUncertain, release
from bridge.quarantine.store import LockLost, MailLocked
from bridge.runtime.database import Database
from tests.postgresql import fresh_database
from tests.quarantine.quarantine_kit import HEAD, Taker, make_tx
from tests.quarantine.s3_kit import ObjectServer, s3_settings

OTHERS = text(
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


HOLDERS = text(
    "SELECT a.state FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
    " WHERE l.locktype = 'advisory' AND a.datname = current_database()"
)


@pytest.fixture
def place(postgresql: str) -> Database:
    return Database(fresh_database(postgresql))


def end_connections(place: Database) -> None:
    """As a failover does: every other connection to this database ends, and its locks with it."""
    engine = place.engine(connections=1)
    with engine.connect() as connection:
        connection.execute(OTHERS).all()
    engine.dispose()


def test_a_lock_whose_connection_ended_is_lost(place: Database) -> None:
    """Another machine had the lock by then, and the first one never noticed."""
    ours, theirs = PostgresLocks(place), PostgresLocks(place)
    with ours.hold("mail 1") as held:
        held.check()
        with pytest.raises(MailLocked), theirs.hold("mail 1"):
            pass
        end_connections(place)
        with theirs.hold("mail 1") as other:
            for _ in range(2):  # a new connection, made for the second question, would not have the lock either
                with pytest.raises(LockLost):
                    held.check()
            other.check()
    with ours.hold("mail 1") as held:
        held.check()


def test_a_pooler_gave_two_machines_the_same_lock(place: Database) -> None:
    """PgBouncer in transaction mode passes a session on unless a transaction is open; a lock then had two owners."""
    engine = place.engine(connections=1)
    with engine.connect() as connection:
        with PostgresLocks(place).hold("mail 1"):
            assert connection.execute(HOLDERS).scalars().all() == ["idle in transaction"]
        assert connection.execute(HOLDERS).scalars().all() == []
    engine.dispose()


def test_a_slow_release_keeps_its_lock_where_idle_transactions_are_ended(place: Database) -> None:
    """The server ends them after the administrator's limit."""
    admin = place.engine(connections=1)
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        name = connection.execute(text("SELECT current_database()")).scalar()
        connection.execute(text(f"ALTER DATABASE {name} SET idle_in_transaction_session_timeout = '50ms'"))
        with PostgresLocks(place).hold("mail 1") as held:
            connection.execute(text("SELECT pg_sleep(0.2)"))
            held.check()
    admin.dispose()


@pytest.mark.parametrize("name", [f"mail {number}" for number in range(8)])
def test_a_lock_is_recognised_by_its_whole_key(place: Database, name: str) -> None:
    """Keys are signed 64-bit numbers, which the server shows in two halves."""
    locks = PostgresLocks(place)
    with locks.hold(name) as held, locks.hold(f"{name} of another") as other:
        held.check()
        other.check()


def test_one_process_holds_several_locks_at_a_time(place: Database) -> None:
    """Each uses a separate connection; when they shared one, the third release of a process waited, and failed."""
    locks = PostgresLocks(place)
    with ExitStack() as stack:
        for held in [stack.enter_context(locks.hold(f"mail {number}")) for number in range(MAX_HELD)]:
            held.check()


def test_the_first_locks_of_a_process_made_an_engine_each(place: Database) -> None:
    """Taken at the same moment, they found none; the connections of all engines but one stayed open."""
    locks, together = PostgresLocks(place), threading.Barrier(MAX_HELD)

    def take(number: int) -> int:
        together.wait(60)
        with locks.hold(f"mail {number}"):
            return id(locks._engine)

    with ThreadPoolExecutor(MAX_HELD) as threads:
        assert len(set(threads.map(take, range(MAX_HELD)))) == 1


class Interrupted(Quarantine):
    """Something happens when the mail has been read, or when an attempt has been recorded."""

    when_read: Callable[[], None] | None = None
    when_recorded: Callable[[], None] | None = None

    def chunks(self, mail_id: str) -> Iterator[bytes]:
        yield from super().chunks(mail_id)
        if self.when_read is not None:
            self.when_read()

    def write_releases(self, mail_id: str, releases: tuple[ReleaseAttempt, ...], replaces: str | None = None) -> None:
        super().write_releases(mail_id, releases, replaces)
        if self.when_recorded is not None:
            self.when_recorded()


@pytest.mark.parametrize(("point", "state"), [("when_read", "kept"), ("when_recorded", "interrupted")])
async def test_a_release_that_lost_its_lock_sends_nothing(
    tmp_path: Path, object_server: ObjectServer, place: Database, point: str, state: str
) -> None:
    """Another machine may release the mail now; both sent it."""
    s3 = s3_settings(object_server.port, f"locks/{tmp_path.name}")
    quarantine = Interrupted(QuarantineSettings(tmp_path, place, s3=s3, patience_s=10.0))
    tx, hop = make_tx(), Taker()
    await quarantine.keep(tx, HEAD, {})
    setattr(quarantine, point, lambda: end_connections(place))
    with pytest.raises(LockLost, match="nothing was sent"):
        await release(quarantine, tx.id, hop, ReleaseRequest("me"))
    assert not hop.taken and quarantine.read(tx.id).state == state
    setattr(quarantine, point, None)
    if state == "interrupted":  # the next holder of the lock cannot know that nothing was sent
        with pytest.raises(ReleaseUncertain):
            await release(quarantine, tx.id, hop, ReleaseRequest("me"))
    await release(quarantine, tx.id, hop, ReleaseRequest("me", even_if_unsure=state == "interrupted"))
    assert len(hop.taken) == 1 and quarantine.read(tx.id).state == "released"
    await quarantine.close()
