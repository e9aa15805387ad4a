"""The store of personal lists, on SQLite and PostgreSQL, and the copy of it that mail is compared with."""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.cli.quarantine.sender_lists import NoEntry, entry_of
from bridge.daemon.personal_refresh import PersonalRefresh
from bridge.filter.personal_rules import candidates
from bridge.lists.personal_store import (
    BadEntry,
    Change,
    PersonalListFull,
    PersonalLists,
    PersonalListsFailed,
    sender_of_mail,
)
from bridge.lists.personal_table import EMPTY, PersonalTable
from bridge.mail.envelope import Envelope
from bridge.quarantine.record import MailRecord
from bridge.runtime import yaml_file
from bridge.runtime.database import Database
from bridge.testing import FakeScanner, NextHop, configuration, running_bridge, until
from tests.filter.smtp_kit import send
from tests.postgresql import fresh_database

ANNA, BEN = "anna@example.org", "ben@example.org"


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database.file(tmp_path / "personal.sqlite")
    return Database(fresh_database(request.getfixturevalue("postgresql")))


def test_entries_are_added_replaced_and_removed(place: Database) -> None:
    """One entry for each recipient and sender; the last word counts."""
    lists = PersonalLists(place)
    assert lists.entries(ANNA) == []
    assert lists.block(ANNA, "News@Shop.Example", by="anna") and not lists.block(
        "ANNA@EXAMPLE.ORG", "news@shop.example"
    )
    assert lists.block(ANNA, "example.net") and lists.allow(BEN, "friend@example.net")
    assert [(entry.kind, entry.sender) for entry in lists.entries(ANNA)] == [
        ("block", "@example.net"),
        ("block", "news@shop.example"),
    ]
    assert lists.entries(ANNA)[1].by == "anna"
    assert lists.allow(ANNA, "news@shop.example")
    assert {(entry.kind, entry.sender) for entry in lists.entries(ANNA)} == {
        ("block", "@example.net"),
        ("allow", "news@shop.example"),
    }
    assert not lists.remove(ANNA, "block", "news@shop.example")
    assert lists.remove(ANNA, "allow", "news@shop.example") and not lists.remove(ANNA, "allow", "news@shop.example")
    assert lists.block(ANNA, "news@shop.example") and len(lists.entries()) == 3
    lists.close()


def test_number_of_entries_is_limited_for_each_recipient(place: Database) -> None:
    """One recipient's entries take no room from another's; a removed entry makes room."""
    lists = PersonalLists(place, max_entries=2)
    lists.block(ANNA, "a@x.example")
    lists.block(ANNA, "b@x.example")
    with pytest.raises(PersonalListFull, match="maximum"):
        lists.block(ANNA, "c@x.example")
    assert lists.allow(ANNA, "a@x.example")  # replaces one
    assert lists.block(BEN, "c@x.example")
    assert lists.remove(ANNA, "block", "b@x.example") and lists.block(ANNA, "c@x.example")
    assert len(lists.entries(ANNA)) == 2
    lists.close()


def test_many_at_once_stay_within_the_limit(place: Database) -> None:
    """Twenty pages that add at the same moment get ten entries, not eleven."""
    lists = [PersonalLists(place, max_entries=10, wait_s=60.0) for _ in range(5)]
    lists[0].entries(ANNA)
    refused: list[int] = []

    def add(number: int) -> None:
        try:
            lists[number % 5].block(ANNA, f"s{number}@x.example")
        except PersonalListFull:
            refused.append(number)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(lists[0].entries(ANNA)) == 10 and len(refused) == 10
    for each in lists:
        each.close()


@pytest.mark.parametrize(
    "recipient", ["", "anna", "@example.org", "a b@c.example", "a@b\0c.example", "x" * 400 + "@b.example"]
)
def test_recipient_must_be_an_address(tmp_path: Path, recipient: str) -> None:
    lists = PersonalLists(Database.file(tmp_path / "p.sqlite"))
    with pytest.raises(BadEntry):
        lists.block(recipient, "a@b.example")
    lists.close()


@pytest.mark.parametrize(
    "sender", ["", "<>", "com", "@com", "a@", "*", "x*@b.example", "192.0.2.1", "a@b\r\nc.example", "\x1b[2J"]
)
def test_sender_must_be_an_address_or_a_domain(tmp_path: Path, sender: str) -> None:
    """What could never match, or would match everything, is refused, with text that a terminal can show."""
    lists = PersonalLists(Database.file(tmp_path / "p.sqlite"))
    with pytest.raises(BadEntry) as refused:
        lists.allow(ANNA, sender)
    assert str(refused.value).isprintable()
    lists.close()


def test_copy_follows_every_change(place: Database) -> None:
    """After each step, the table equals one that is read from the start."""
    lists = PersonalLists(place)
    lists.block(ANNA, "a@x.example")
    table, seq = PersonalTable.of(lists.everything()), lists.seq()
    steps = [
        lambda: lists.block(BEN, "@y.example"),
        lambda: lists.allow(ANNA, "a@x.example"),
        lambda: lists.remove(BEN, "block", "@y.example"),
        lambda: lists.block(BEN, "@y.example"),
    ]
    for step in steps:
        step()
        table, seq = table.after(lists.changes(seq)), lists.seq()
        fresh = PersonalTable.of(lists.everything())
        assert len(table) == len(fresh) == len(lists.entries())
        for kind in ("block", "allow"):
            for person in (ANNA, BEN):
                for sender in ("a@x.example", "b@sub.y.example", "c@z.example"):
                    wanted = candidates(sender)
                    assert table.find(kind, person, wanted) == fresh.find(kind, person, wanted)
    assert table.find("allow", ANNA, candidates("a@x.example")) == "a@x.example"
    assert table.find("block", ANNA, candidates("a@x.example")) is None
    assert table.find("block", BEN, candidates("b@sub.y.example")) == "@y.example"
    lists.close()


def test_table_of_many_changes() -> None:
    """More changes than are kept apart; an empty table says so."""
    table = EMPTY
    assert table.is_empty and not table.has(ANNA)
    made = [Change(f"u{n}@example.org", "s@x.example", "block", n) for n in range(3000)]
    table = table.after(made)
    assert len(table) == 3000 and table.has("u2999@example.org") and not table.is_empty
    table = table.after([Change(each.recipient, each.sender, "", 4000 + each.seq) for each in made])
    assert len(table) == 0 and table.is_empty


def test_damaged_database_costs_no_mail(tmp_path: Path) -> None:
    """A store that cannot be read is reported, and mail is delivered as if there were no entries."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "personal.sqlite").write_bytes(b"not a database" * 1000)
    with pytest.raises(PersonalListsFailed):
        PersonalLists(Database.file(tmp_path / "state" / "personal.sqlite")).entries(ANNA)
    with running_bridge(tmp_path) as bridge:
        assert send(bridge) == "250 2.0.0 Ok: queued as NEXT1"
        until(lambda: bridge.daemon.personal.problem, "the problem to be known")


def test_command_shows_and_changes_entries(tmp_path: Path) -> None:
    """`scanbridge lists personal`, with a tenant that has its own limit."""
    tenant = {"uid": "123e4567-e89b-12d3-a456-426614174000", "recipient_domains": ["example.org"]}
    more = {"tenants": [tenant | {"personal_lists": {"max_entries": 1}}], "personal_lists": {"allow_by": "nobody"}}
    data = configuration(tmp_path, FakeScanner(), NextHop(port=1), more)
    data["scanner"]["urls"] = ["http://127.0.0.1:1"]
    (tmp_path / "bridge.yml").write_text(yaml_file.dump(data))

    def run(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["lists", "personal", *words, "-c", str(tmp_path / "bridge.yml")])
        return done.exit_code, done.output

    assert run("show") == (0, "no personal entries\n")
    assert run("add", "block", ANNA, "a@x.example") == (0, f"a@x.example: blocked for {ANNA}\n")
    code, said = run("add", "block", ANNA, "b@x.example")
    assert code == 1 and "1 entry, the maximum" in said
    code, said = run("add", "allow", "anna@example.net", "b@x.example", "c@x.example")
    assert code == 0 and "allow_by is `nobody`" in said
    code, said = run("show", "--json")
    assert code == 0 and said.count("\n") == 3
    assert run("delete", "block", ANNA, "a@x.example", "z@x.example")[1] == (
        "a@x.example: deleted\nz@x.example: no such entry\n"
    )


async def test_two_changes_at_the_same_time_are_both_seen(tmp_path: Path) -> None:
    """Within a tick of the file system's clock, the files kept size and time, and the second change stayed unseen."""
    path = tmp_path / "p.sqlite"
    lists = PersonalLists(Database.file(path))
    refresh = PersonalRefresh(PersonalLists(Database.file(path), only_reads=True), path)
    now_ns = time.time_ns() + 3600 * 10**9  # later than any look, however slow this machine is
    sizes = []
    for number, sender in enumerate(("a@x.example", "b@x.example"), 1):
        lists.block(ANNA, sender)
        for file in tmp_path.glob("p.sqlite*"):
            os.utime(file, ns=(now_ns, now_ns))
        sizes.append(sum(file.stat().st_size for file in tmp_path.glob("p.sqlite*")))
        await refresh.look()
        assert len(refresh.table) == number, sizes
    refresh.close()
    lists.close()


@pytest.mark.parametrize("sender", ["example.net", "@example.net", "<@example.net>", "*@", "<example.net"])
def test_a_sender_without_a_local_part_listed_a_whole_domain(sender: str) -> None:
    """Spam from `MAIL FROM:<example.net>`: who blocked its sender blocked everybody at example.net."""
    with pytest.raises(BadEntry):
        sender_of_mail(sender)
    mail = MailRecord("M1", datetime.now(UTC), Envelope(sender))
    with pytest.raises(NoEntry):  # nor does `quarantine block-sender`, or the console
        entry_of(mail, "sender", whole_domain=False)


@pytest.mark.parametrize("sender", ["*@example.net", '"*"@example.net', "a*b@example.net"])
def test_a_sender_with_an_asterisk_listed_a_whole_domain(place: Database, sender: str) -> None:
    """Spam from `*@example.net`, likewise. The entry is about that address alone, and can be removed again."""
    lists = PersonalLists(place)
    lists.block(ANNA, "example.net")
    lists.block(ANNA, sender_of_mail(sender))
    plain = sender.replace('"', "")
    assert {entry.sender for entry in lists.entries(ANNA)} == {"@example.net", plain}
    assert lists.remove(ANNA, "block", plain)
    assert [entry.sender for entry in lists.entries(ANNA)] == ["@example.net"]
    assert lists.remove(ANNA, "block", "*@example.net") and not lists.entries(ANNA)  # typed, it is the domain
    lists.close()
