"""A request outlives the process that stored it: releasers are told, and what was not carried out waits again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from bridge.digests import database
from bridge.digests.database import FILE, DigestStore
from bridge.digests.requests import NOTICE_S, RELEASE, TAKEN_S, Request, Requests
from bridge.runtime.database import Database
from bridge.testing import until
from tests.console.held_kit import hold
from tests.digests.digest_kit import Users, digest_process, links, users
from tests.postgresql import fresh_database

DAY_S = 86_400.0


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DigestStore]:
    if request.param == "sqlite":
        place = Database.file(tmp_path / FILE)
    else:
        place = Database(fresh_database(request.getfixturevalue("postgresql")))
    with closing(DigestStore(place)) as opened:
        yield opened


def ask(requests: Requests, mail: str = "MAIL1") -> Request:
    asked = requests.ask(RELEASE, mail, "jane@a.example", "jane@a.example", "")
    assert asked is not None
    return asked


def make_older(store: DigestStore, seconds: float) -> None:
    with store.writing() as connection:
        connection.execute(update(database.requests).values(decided_at=database.requests.c.decided_at - seconds))


def test_a_grant_that_ends_with_its_process_waits_again(store: DigestStore) -> None:
    """It was stored as granted before the mail was released: after a crash the mail stayed, and nobody saw it."""
    requests = Requests(store, "")
    asked = ask(requests)
    assert requests.take(asked.seq, "rita") is not None
    assert requests.waiting() == []  # and now its process ends
    assert requests.take(asked.seq, "otto") is None and requests.refuse(asked.seq, "otto") is None
    make_older(store, TAKEN_S + 1)
    assert [each.seq for each in requests.waiting()] == [asked.seq]
    taken = requests.take(asked.seq, "otto")
    assert taken is not None
    requests.settle(taken)
    make_older(store, TAKEN_S + 1)
    assert requests.waiting() == [] and requests.take(asked.seq, "rita") is None
    found = requests.find(asked.seq)
    assert found is not None and (found.state, found.decided_by) == ("granted", "otto")


def test_a_taken_request_is_not_hidden_by_a_clock_that_was_wrong(store: DigestStore) -> None:
    requests = Requests(store, "")
    asked = ask(requests)
    requests.take(asked.seq, "rita")
    make_older(store, -DAY_S)
    assert [each.seq for each in requests.waiting()] == [asked.seq]


def test_what_releasers_were_not_told_is_due_until_they_are(store: DigestStore) -> None:
    requests, other = Requests(store, ""), Requests(store, "another quarantine")
    asked = ask(requests)
    now = time.time()
    assert requests.due_notices(now) == []  # the page that stored it is sending it
    assert other.due_notices(now + DAY_S) == []
    (due,) = requests.due_notices(now + NOTICE_S + 1)
    assert (due.request, due.told) == (asked, ())
    assert requests.due_notices(now + NOTICE_S + 1) == []  # another process has it
    requests.told_some(asked.seq, ["rita@a.example"])
    (due,) = requests.due_notices(now + 10 * NOTICE_S)
    assert due.told == ("rita@a.example",)
    requests.told(asked.seq)
    assert requests.due_notices(now + DAY_S) == []


def test_a_notice_of_a_clock_that_was_a_year_ahead_waited_for_that_year(store: DigestStore) -> None:
    requests, year = Requests(store, ""), time.time() + 365 * DAY_S
    asked = ask(requests)
    with store.writing() as connection:
        connection.exec_driver_sql(f"UPDATE digest_state SET number = {year}")
    (due,) = requests.due_notices(time.time())
    assert due.request == asked
    assert requests.due_notices(time.time()) == []


def test_nobody_is_told_of_what_was_decided_or_is_old(store: DigestStore) -> None:
    requests = Requests(store, "")
    requests.refuse(ask(requests).seq, "rita")
    ask(requests, "MAIL2")
    assert [due.request.mail for due in requests.due_notices(time.time() + DAY_S)] == ["MAIL2"]
    assert requests.due_notices(time.time() + 30 * DAY_S) == []
    assert requests.due_notices(time.time() + DAY_S) == []  # given up


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Users]:
    with users(tmp_path, {"notify": ["rita@a.example", "otto@a.example"]}) as made:
        yield made


def told(world: Users) -> list[str]:
    return [mail.recipients[0] for mail in world.received() if b"asked for this mail" in mail.content]


def test_releasers_are_told_after_a_restart(world: Users) -> None:
    """The request was stored and its process ended, or the next hop did not answer: nobody was ever told of it."""
    hold(world.directory, "BAD1", "bad@a.example", verdict="malware", tags=["malware:eicar"])
    (digest,) = world.send_digests("--now").values()
    world.next_hop.replies[b"RCPT <rita@a.example>"] = b"451 4.3.0 later"
    assert "Your request has been received" in world.served.browser().press(links(digest)[0]).text
    until(lambda: told(world) == ["otto@a.example"], "the first notice")
    world.served.process.kill()
    world.served.process.wait()
    del world.next_hop.replies[b"RCPT <rita@a.example>"]
    with closing(DigestStore(Database.file(world.directory / "state" / FILE))) as store:
        with store.writing() as connection:  # some minutes later
            connection.execute(update(database.state).where(database.state.c.number > time.time()).values(number=1.0))
        with digest_process(world.directory, world.served.port):
            until(lambda: "rita@a.example" in told(world), "the notice")
            requests = Requests(store, "")
            until(lambda: requests.due_notices(time.time() + DAY_S) == [], "the notice to be settled")
    assert told(world) == ["otto@a.example", "rita@a.example"]
