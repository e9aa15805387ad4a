"""Bridges that share a bucket: one of them lists it, the others use its count."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.errors import StoreError
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings
from bridge.quarantine.shared_upkeep import SharedUpkeep
from bridge.quarantine.usage import Usage
from bridge.runtime.database import Database
from bridge.runtime.turns import Turns
from bridge.testing import free_port
from tests.postgresql import fresh_database
from tests.quarantine.quarantine_kit import HEAD, make_tx
from tests.quarantine.s3_kit import ObjectServer, s3_settings

INTERVAL_S = 600.0


class Listings:
    """A bucket that counts how often it was listed."""

    def __init__(self) -> None:
        self.count = 0
        self.error: StoreError | None = None

    def usage(self) -> Usage:
        self.count += 1
        if self.error is not None:
            raise self.error
        return Usage(self.count, 1000, 12.5)


@pytest.fixture
def place(postgresql: str) -> Database:
    return Database(fresh_database(postgresql))


def test_one_bridge_counts_for_all(place: Database) -> None:
    """Each of them listed the whole bucket, every ten minutes."""
    bucket = Listings()
    bridges = [SharedUpkeep(Turns(place, f"bridge{number}"), "s3://mail/") for number in range(4)]
    assert {bridge.usage(bucket.usage, INTERVAL_S) for bridge in bridges} == {Usage(1, 1000, 12.5)}
    assert bucket.count == 1
    assert bridges[2].usage(bucket.usage, 0.0).mails == 2, "a newer count was asked for"
    assert bridges[0].usage(bucket.usage, INTERVAL_S).mails == 2
    other = SharedUpkeep(Turns(place, "bridge9"), "s3://other/")
    assert other.usage(bucket.usage, INTERVAL_S).mails == 3
    for bridge in (*bridges, other):
        bridge.close()


def test_a_bridge_that_cannot_count_leaves_it_to_the_next(place: Database) -> None:
    bucket, good = Listings(), Listings()
    bucket.error = StoreError("object storage: 503")
    first, second = (SharedUpkeep(Turns(place, name), "s3://mail/") for name in ("first", "second"))
    with pytest.raises(StoreError, match="503"):
        first.usage(bucket.usage, INTERVAL_S)
    assert second.usage(good.usage, INTERVAL_S).mails == 1
    assert first.usage(bucket.usage, INTERVAL_S).mails == 1
    first.close()
    second.close()


def test_a_count_of_another_version_is_not_used(place: Database) -> None:
    bucket, turns = Listings(), Turns(place, "newer version")
    bridge = SharedUpkeep(Turns(place, "first"), "s3://mail/")
    assert turns.take("count s3://mail/", 0.0, 300.0)
    turns.finish("count s3://mail/", '{"mails": 7}')
    assert bridge.usage(bucket.usage, INTERVAL_S).mails == 1 == bucket.count
    bridge.close()
    turns.close()


def test_upkeep_is_done_once(place: Database) -> None:
    done: list[str] = []
    first, second = (SharedUpkeep(Turns(place, name), "s3://mail/") for name in ("first", "second"))
    for bridge, name in ((first, "first"), (second, "second"), (first, "first again")):
        bridge.run(lambda name=name: len(done) or done.append(name) or 1, 3600.0)  # type: ignore[misc]
    assert done == ["first"]
    first.close()
    second.close()


def test_without_the_database_each_bridge_counts_for_itself() -> None:
    bucket = Listings()
    away = SharedUpkeep(Turns(Database(f"postgresql://tester@127.0.0.1:{free_port()}/x")), "s3://mail/")
    assert away.usage(bucket.usage, INTERVAL_S).mails == 1 and away.usage(bucket.usage, INTERVAL_S).mails == 2
    assert away.run(lambda: 5, 3600.0) == 5
    away.close()


async def test_two_bridges_share_the_count_of_a_bucket(
    tmp_path: Path, object_server: ObjectServer, place: Database
) -> None:
    """In one process here, so that both have the same name: what counts is when."""
    s3 = s3_settings(object_server.port, f"turns/{tmp_path.name}")
    first, second = (Quarantine(QuarantineSettings(tmp_path / name, place, s3=s3)) for name in ("one", "two"))
    await first.keep(make_tx(), HEAD, {})
    assert (await first.usage(INTERVAL_S)).mails == 1
    await second.keep(make_tx(), HEAD, {})
    assert (await second.usage(INTERVAL_S)).mails == 1, "as the first one counted"
    assert (await second.usage()).mails == 2 == (await first.usage(INTERVAL_S)).mails
    assert await first.purge(-1.0, 3600.0) == 2 and await second.purge(-1.0, 3600.0) == 0
    await second.keep(make_tx(), HEAD, {})
    assert await second.purge(-1.0, 3600.0) == 0 and await second.purge(-1.0) == 1
    await first.close()
    await second.close()
