"""Sending: claims, crashes, a next hop that refuses, and many recipients. Real databases, real processes."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from bridge.digests.counts import Counts, DigestCounts
from bridge.digests.database import FILE, DigestStore
from bridge.digests.items import UNSURE_S, Claim, Item, Items, Person
from bridge.digests.people import People
from bridge.digests.requests import Requests
from bridge.quarantine.index import Index
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings
from bridge.runtime.database import Database
from bridge.testing import Received, free_port, until
from tests.console.held_kit import hold
from tests.daemon.process_kit import environment, get, parts, running, scanbridge, write_config
from tests.digests.digest_kit import SENDER, Mail, Users, digest_process, users
from tests.digests.held_mail_maker import fill
from tests.postgresql import fresh_database, postgresql  # noqa: F401  a fixture
from tests.warm_commands import WarmProcess, warm_commands

PEOPLE = People(["a.example"])


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DigestStore]:
    if request.param == "sqlite":
        with closing(DigestStore(Database.file(tmp_path / FILE))) as opened:
            yield opened
        return
    url = fresh_database(request.getfixturevalue("postgresql"))
    with closing(DigestStore(Database(url))) as opened:
        yield opened


def quarantine_with(tmp_path: Path, count: int, people: int) -> Quarantine:
    fill(tmp_path, count, people)
    return Quarantine(QuarantineSettings(tmp_path / "quarantine", Database.file(tmp_path / "state.sqlite")))


def claimed(items: Items, claim: Claim) -> list[Item]:
    return [item for page in items.claimed(claim) for item in page]


def test_each_person_is_claimed_once_by_several_runs(store: DigestStore, tmp_path: Path) -> None:
    quarantine = quarantine_with(tmp_path, 60, 20)
    items, now = Items(store, ""), time.time()
    assert items.refresh(quarantine, PEOPLE) == 60
    assert items.refresh(quarantine, PEOPLE) == 0
    (waiting,) = list(items.waiting(now))
    assert len(waiting) == items.waiting_count(now) == 20
    assert sum(each.count for each in waiting) == 60
    for each in waiting:
        first, second = items.claim(each.person, now), items.claim(each.person, now)
        assert first is not None and len(claimed(items, first)) == 3
        assert second is None
        items.confirm(first)
    assert items.waiting_count(now) == 0
    assert items.refresh(quarantine, PEOPLE) == 0  # what was announced stays so


def test_a_claim_of_a_dead_process_is_repeated_with_the_next_digest_a_day_later(
    store: DigestStore, tmp_path: Path
) -> None:
    items, now = Items(store, ""), time.time()
    items.refresh(quarantine_with(tmp_path, 2, 1), PEOPLE)
    (((waiting,)),) = list(items.waiting(now))
    assert items.claim(waiting.person, now) is not None  # and never confirmed
    assert items.waiting_count(now) == items.waiting_count(now + UNSURE_S - 1) == 0
    later = now + UNSURE_S + 1
    (((again,)),) = list(items.waiting(later))
    claim = items.claim(again.person, later)
    assert claim is not None and len(claimed(items, claim)) == 2


def test_a_claim_of_a_clock_that_was_a_year_ahead_hid_its_mail_for_that_year(
    store: DigestStore, tmp_path: Path
) -> None:
    items, now = Items(store, ""), time.time()
    items.refresh(quarantine_with(tmp_path, 2, 1), PEOPLE)
    (((waiting,)),) = list(items.waiting(now))
    assert items.claim(waiting.person, now + 365 * 86400) is not None  # and never confirmed
    (((again,)),) = list(items.waiting(now))
    claim = items.claim(again.person, now)
    assert claim is not None and len(claimed(items, claim)) == 2


def test_a_failure_gives_the_items_back_and_a_refusal_ends_it_for_a_week(store: DigestStore, tmp_path: Path) -> None:
    items, now = Items(store, ""), time.time()
    items.refresh(quarantine_with(tmp_path, 2, 1), PEOPLE)
    person = Person("user0@a.example")
    claim = items.claim(person, now)
    assert claim is not None
    items.retry(claim)
    stored = items.person(person.address)
    assert (stored.last_at, stored.tries) == (0.0, 1)
    assert stored.retry_at > now
    assert items.waiting_count(now) == 1
    claim = items.claim(stored, now + 1)
    assert claim is not None
    items.refused(claim)
    assert items.person(person.address).refused_at == now + 1
    assert items.waiting_count(now + 2) == 0


def test_places_do_not_see_each_other(store: DigestStore, tmp_path: Path) -> None:
    quarantine = quarantine_with(tmp_path, 2, 1)
    here, there = Items(store, "here"), Items(store, "there")
    assert here.refresh(quarantine, PEOPLE) == 2
    assert there.waiting_count(time.time()) == 0
    here.choose("user0@a.example", schedule="never")
    assert there.person("user0@a.example").schedule == ""


def test_mail_that_was_indexed_late_is_found(store: DigestStore, tmp_path: Path) -> None:
    """An hour is read again each time; once a day, everything."""
    items = Items(store, "")
    quarantine = quarantine_with(tmp_path, 3, 1)
    items.refresh(quarantine, PEOPLE)
    fill(tmp_path, 4, 1, first=3, age_s=1800)
    assert items.refresh(quarantine, PEOPLE) == 4


def test_the_envelope_sender_of_the_operator_is_used(tmp_path: Path) -> None:
    """For a mail server that does not take bounces to others; digests are marked as automatic all the same."""
    with users(tmp_path, {"envelope_sender": "bounces@a.example"}) as world:
        hold(tmp_path, "OWNSENDER", "own@a.example")
        digest = world.send_digests("--now")["own@a.example"]
        assert world.received()[-1].sender == "bounces@a.example"
        assert digest["Auto-Submitted"] == "auto-generated"


def test_the_process_sends_by_itself_what_is_due(tmp_path: Path) -> None:
    """By the schedule of the tenant, or the person's own choice; for everybody else, the turn has not come."""
    tenant, port = "22222222-2222-4222-8222-222222222222", free_port()
    section = {
        "schedule": "weekly", "from": SENDER, "domains": ["a.example", "b.example"],
        "page": {"address": f"127.0.0.1:{port}"}, "tenants": [{"uid": tenant, "schedule": "immediate"}],
    }  # fmt: skip
    tenants = [{"uid": tenant, "recipient_domains": ["b.example"]}]
    with running(tmp_path, digests=section, tenants=tenants) as (_, _, next_hop):
        with closing(DigestStore(Database.file(tmp_path / "state" / FILE))) as store:
            Items(store, "").choose("eager@a.example", schedule="immediate")
            Items(store, "").choose("silent@b.example", schedule="never")
        for number, who in enumerate(("eager@a.example", "usual@a.example", "tenant@b.example", "silent@b.example")):
            hold(tmp_path, f"DUE{number}", who)
        with digest_process(tmp_path, port) as served:
            until(lambda: "digests: sent=" in served.log, "the digests")
            assert "digests: sent=2 mails=2 failed=0 refused=0" in served.log
        assert {Mail.of(mail).recipients[0] for mail in next_hop.mails} == {"eager@a.example", "tenant@b.example"}


@pytest.mark.parametrize("reply", [b"550 5.1.1 no such user", b"451 4.3.0 later"])
def test_a_digest_that_is_not_accepted_is_not_repeated_at_once(shared: Users, reply: bytes) -> None:
    name = f"reply{reply[:3].decode()}"
    shared.next_hop.replies[f"RCPT <{name}@a.example>".encode()] = reply
    hold(shared.directory, f"R{name}", f"{name}@a.example")
    done = shared.command("digest", "send", "--to", f"{name}@a.example")
    assert done.returncode == (75 if reply.startswith(b"4") else 0)
    del shared.next_hop.replies[f"RCPT <{name}@a.example>".encode()]
    before = len(shared.next_hop.mails)
    assert shared.command("digest", "send").returncode == 0  # what is due: this is not
    assert len(shared.next_hop.mails) == before


def test_a_run_that_is_killed_goes_on_without_sending_anyone_two(tmp_path: Path) -> None:
    """A few hundred people; `bench/digests.py` does the same with 100,000 people and a million mails."""
    with parts() as (_, scanner, next_hop):
        section = {"schedule": "daily", "from": SENDER, "domains": ["a.example"]}
        config, _, _ = write_config(tmp_path, scanner.url, next_hop.url, digests=section)
        (tmp_path / "state").mkdir(mode=0o700)
        fill(tmp_path / "state", 900, 300)
        command, kills = ["digest", "send", "--now", "-c", str(config)], 0
        for wanted in (30, 90, 180):
            with open(os.devnull, "wb") as nothing:
                running = warm_commands(os.getpid()).start(
                    command, environment(), tmp_path, nothing.fileno(), nothing.fileno()
                )
            is_over = functools.partial(_is_over_or_has, running, next_hop.mails, wanted)
            until(is_over, "some digests")
            if running.poll() is None:
                running.send_signal(signal.SIGKILL)
                kills += 1
            running.wait()
        done = scanbridge(*command)
        assert done.returncode == 0, done.stderr
        assert "done: " in done.stderr and " people checked" in done.stderr
        got = Counter(Mail.of(mail).recipients[0] for mail in next_hop.mails)
        assert kills > 0
        assert max(got.values()) == 1
        assert len(got) >= 300 - 10 * kills  # those that were being sent at a kill get theirs a day later
        with closing(DigestStore(Database.file(tmp_path / "state" / FILE))) as store:
            waiting = Items(store, "").waiting(time.time() + UNSURE_S + 60)
            later = {each.person.address for page in waiting for each in page}
        assert {f"user{number}@a.example" for number in range(300)} - set(got) <= later
        assert len(later) <= 10 * kills


def _is_over_or_has(process: WarmProcess, mails: list[Received], wanted: int) -> bool:
    return process.poll() is not None or len(mails) >= wanted


def test_records_and_arrivals_of_the_index(tmp_path: Path) -> None:
    fill(tmp_path, 5, 2)
    index = Index(Database.file(tmp_path / "state.sqlite"))
    try:
        found = index.arrivals((0.0, ""), 3)
        rest = index.arrivals((found[-1].kept_at, found[-1].id), 10)
        assert [each.id for each in (*found, *rest)] == [f"MAIL{number:09d}" for number in range(5)]
        assert found[0].addresses == ["user0@a.example"]
        assert {mail.id for mail in index.records(["MAIL000000001", "NONE"])} == {"MAIL000000001"}
    finally:
        index.close()


def test_a_page_of_arrivals_is_bounded_by_its_recipients(tmp_path: Path) -> None:
    """A thousand mails with a thousand recipients each took two gigabytes of memory."""
    fill(tmp_path, 50, 2)
    sizes, ids, after = [], [], (0.0, "")
    with closing(Index(Database.file(tmp_path / "state.sqlite"))) as index:
        while found := index.arrivals(after, 1000, max_addresses=10, few=4):
            sizes.append(sum(len(arrival.addresses) for arrival in found))
            ids += [arrival.id for arrival in found]
            after = (found[-1].kept_at, found[-1].id)
    assert ids == [f"MAIL{number:09d}" for number in range(50)]
    assert max(sizes) < 10 + 4 and sum(sizes) == 50


def test_runs_are_counted_for_the_metrics(store: DigestStore) -> None:
    """Several runs add up, and another place counts its own."""
    counts, other = DigestCounts(store, "one"), DigestCounts(store, "two")
    assert counts.read() == Counts()
    before = time.time()
    counts.add(sent=3, failed=1)
    counts.add(sent=2, refused=1)
    Requests(store, "one").ask("release", "mail", "jane@a.example", "jane@a.example", "")
    found = counts.read()
    assert (found.sent, found.failed, found.refused, found.requests_waiting) == (5, 1, 1, 1)
    assert before <= found.run_at <= time.time()
    assert other.read() == Counts()


def test_the_daemon_exports_what_a_command_has_sent(shared: Users) -> None:
    """The numbers of `scanbridge digest send`, another process, are in the daemon's metrics."""
    hold(shared.directory, "Mcounted", "counted@a.example")
    assert shared.send_digests("--to", "counted@a.example")
    until(lambda: _metric(shared, 'scanbridge_digests{result="sent"}') >= 1, "the daemon to read the numbers")
    assert 0 <= _metric(shared, "scanbridge_digests_last_run_age_seconds") < 60
    assert _metric(shared, "scanbridge_digests_requests_waiting") == 0


def _metric(users: Users, name: str) -> float:
    lines = get(users.bridge.admin, "/metrics")[1].splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), -1.0)


def test_a_run_from_a_timer_forgets_what_is_gone(shared: Users) -> None:
    """Without `digest serve`, nothing else would."""
    with closing(DigestStore(Database.file(shared.directory / "state" / FILE))) as store:
        old = {"place": "", "mail": "OLD", "recipient": "old@a.example", "person": "old@a.example", "kept_at": 1.0}
        Items(store, "")._add([{**old, "sent_at": 0.0, "hidden": 0}], None)
        assert len(Items(store, "").of("old@a.example")) == 1
        assert shared.command("digest", "send").returncode == 0
        assert Items(store, "").of("old@a.example") == []


def test_a_digest_for_somebody_who_gets_none_is_an_error(shared: Users) -> None:
    done = shared.command("digest", "send", "--to", "stranger@elsewhere.example")
    assert done.returncode == 1 and "no digest is sent to stranger@elsewhere.example" in done.stderr
    done = shared.command("digest", "preview", "--tenant", "nonsense")
    assert done.returncode == 2 and "a tenant must be a UUID" in done.stderr
    unknown = "99999999-9999-4999-8999-999999999999"
    done = shared.command("digest", "preview", "--tenant", unknown)
    assert done.returncode == 1 and f"no tenant has the uid {unknown}" in done.stderr
