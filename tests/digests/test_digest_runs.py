"""One run over everyone, in this process: what is listed, what a next hop refuses, and whose mail it is.

The quarantine, the database and the connections are real; the next hop is one that misbehaves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.config.digests import Digests
from bridge.digests.database import FILE, DigestStore
from bridge.digests.items import REFUSED_S, Item, Items, Person
from bridge.digests.listing import MAX_GONE, gather
from bridge.digests.message import DigestMaker
from bridge.digests.people import People
from bridge.digests.sending import Outbox, Progress, Run
from bridge.digests.settings import DigestSettings
from bridge.digests.signed_links import LinkKeys
from bridge.errors import StoreError
from bridge.mail.address import comparable_address
from bridge.mail.envelope import Recipient
from bridge.mail.message import Message, Spool
from bridge.quarantine.quarantine import MailNotFound, Quarantine
from bridge.quarantine.record import MailRecord
from bridge.quarantine.release_token import ReleaseTokens
from bridge.relay.handshake import RelaySettings
from bridge.relay.relay import SmtpRelay
from bridge.runtime.database import Database
from bridge.runtime.endpoints import NextHop as Hop
from bridge.testing import NextHop, free_port
from tests.console.held_kit import CONTENT, hold, quarantine
from tests.digests.digest_kit import Mail, parsed, text_of
from tests.processor_time import fair_cpu_s

PEOPLE = People(["a.example"])
TOKENS = ReleaseTokens("k" * 64, "X-Scan-")


@dataclass
class World:
    directory: Path
    quarantine: Quarantine
    items: Items
    maker: DigestMaker
    next_hop: NextHop

    def run(self, people: People = PEOPLE, *, now: bool = True, is_down: bool = False) -> Progress:
        """Read the quarantine, and send to everyone with something new."""

        async def work() -> Progress:
            if not is_down:
                await self.next_hop.start()
            url = f"smtp://127.0.0.1:{free_port()}" if is_down else self.next_hop.url
            relay = SmtpRelay(RelaySettings(Hop.parse(url), "bridge.example"))
            try:
                outbox = Outbox(relay, tokens=TOKENS)
                return await Run(self.items, self.quarantine, self.maker, outbox, now=now).go()
            finally:
                await relay.close()
                await self.next_hop.stop()

        self.items.refresh(self.quarantine, people)
        return asyncio.run(work())

    def digests(self) -> dict[str, str]:
        """The texts of all digests so far, by recipient."""
        return {mail.recipients[0]: text_of(parsed(mail.content)) for mail in map(Mail.of, self.next_hop.mails)}

    def hold(self, mail: str, recipient: str, content: bytes = CONTENT, sender: str = "", **facts: object) -> None:
        subject = CONTENT.replace(b"Subject: hello", f"Subject: about {mail}".encode())
        sender = sender or "john@client.example"
        hold(self.directory, mail, recipient, subject if content is CONTENT else content, sender, **facts)

    def age(self, person: str, **values: float) -> None:
        """As if that had happened at another time."""
        with self.items._store.writing() as connection:
            self.items._put(connection, Person(person), **values)


@contextmanager
def world_in(directory: Path, **digests: object) -> Iterator[World]:
    (directory / "state").mkdir(mode=0o700)
    config = Digests.model_validate({"from": "quarantine@a.example", "schedule": "immediate", **digests})
    keys = LinkKeys(directory / "keys")
    keys.make()
    maker = DigestMaker(DigestSettings(config, directory, {}, "bridge.example"), keys)
    with quarantine(directory) as opened, closing(DigestStore(Database.file(directory / FILE))) as store:
        yield World(directory, opened, Items(store, ""), maker, NextHop())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as made:
        yield made


# What is listed


def test_mail_behind_more_copies_than_fit_is_announced(tmp_path: Path) -> None:
    """Copies for operators are newer, and there are more of them than a digest lists."""
    with world_in(tmp_path, max_listed=3) as world:
        world.hold("WANTED", "jane@a.example")
        for number in range(4):
            world.hold(f"COPY{number}", "jane@a.example", copy_of="relay")
        assert world.run().sent == 1
        assert "about WANTED" in world.digests()["jane@a.example"]
        assert "more mail" not in world.digests()["jane@a.example"]


def test_a_digest_says_how_many_more_are_on_the_page(tmp_path: Path) -> None:
    """Only those that are held: of seven, two fit, one is a copy, and one was deleted by an operator."""
    with world_in(tmp_path, max_listed=2) as world:
        for number in range(5):
            world.hold(f"HELD{number}", "jane@a.example")
        world.hold("COPY", "jane@a.example", copy_of="relay")
        world.hold("GONE", "jane@a.example")
        world.items.refresh(world.quarantine, PEOPLE)
        world.quarantine.remove("GONE")
        done = world.run()
        text = world.digests()["jane@a.example"]
        assert (done.sent, done.mails) == (1, 5)
        assert text.count("about HELD") == 2 and "3 more mails are listed on the page." in text
        assert world.run().sent == 0


def test_a_digest_about_deleted_mail_does_not_ask_the_store_for_each(world: World) -> None:
    """Of 20,000 mails that an operator had deleted, each was a request to object storage: 17 minutes."""
    keys, asked = LinkKeys(world.directory / "keys"), []
    world.hold("HELD", "jane@a.example")

    class Store:
        def records(self, ids: list[str]) -> list[MailRecord]:
            return world.quarantine.records([each for each in ids if each != "NEWEST"])

        def read(self, mail: str) -> MailRecord:
            asked.append(mail)
            if mail.startswith("GONE"):
                raise MailNotFound(mail)
            return world.quarantine.read("HELD")

    def item(mail: str) -> Item:
        return Item(mail, "jane@a.example", 0.0)

    pages = [[item(f"GONE{page}{number}") for number in range(200)] for page in range(5)]
    store: Any = Store()
    found = gather([[item("NEWEST")], *pages, [item("HELD")]], store, keys, 10)
    assert [each.mail for each, _ in found.held] == ["NEWEST", "HELD"]
    assert len(asked) == 1 + MAX_GONE


def test_a_mail_to_a_thousand_extensions_of_an_address_took_a_digest_seconds(world: World) -> None:
    """Each item was compared with each recipient of its mail."""
    world.hold("HELD", "jane@a.example")
    recipients = [f"jane+\u00fc{number}@a.example" for number in range(1000)]
    record = world.quarantine.read("HELD")
    mail = replace(record, envelope=replace(record.envelope, recipients=tuple(map(Recipient, recipients))))
    store: Any = SimpleNamespace(records=lambda ids: [mail])
    pages = [[Item("HELD", comparable_address(each), 0.0) for each in recipients]]
    keys, found = LinkKeys(world.directory / "keys"), []
    assert fair_cpu_s(lambda: found.append(gather(pages, store, keys, 10))) < 1
    assert (len(found[0].held), found[0].more) == (10, 990)


@pytest.mark.parametrize("is_down", [False, True], ids=["one mail", "all"])
def test_a_mail_that_cannot_be_read_kept_everyone_from_their_digest(
    world: World, monkeypatch: pytest.MonkeyPatch, is_down: bool
) -> None:
    """It was not in the index, and its file belonged to root. Only a quarantine that fails as a whole ends a run."""
    for number in range(30):
        world.hold(f"M{number:02}", f"p{number:02}@a.example")
    world.items.refresh(world.quarantine, PEOPLE)
    records, asked = Quarantine.records, []

    def is_bad(mail: str) -> bool:
        return is_down or mail == "M07"

    def read(self: Quarantine, mail: str) -> MailRecord:
        asked.append(mail)
        raise StoreError(f"{mail}: Permission denied")

    monkeypatch.setattr(Quarantine, "records", lambda self, ids: records(self, [i for i in ids if not is_bad(i)]))
    monkeypatch.setattr(Quarantine, "read", read)
    if is_down:
        with pytest.raises(StoreError, match="Permission denied"):
            world.run()
        assert len(asked) < 30 and not world.digests()
        return
    done = world.run()
    assert (done.sent, done.failed, done.problem) == (29, 1, "M07: Permission denied")
    assert len(world.digests()) == 29 and asked == ["M07"]


def test_only_one_thread_reads_the_index_for_a_page(world: World) -> None:
    """Every visitor read it at the same time, with a gigabyte in each thread."""
    world.hold("MAIL1", "jane@a.example")
    with world.items._refreshing:
        assert world.items.refresh(world.quarantine, PEOPLE, is_quick=True) == 0
    assert world.items.refresh(world.quarantine, PEOPLE, is_quick=True) == 1


def test_mail_that_the_index_has_lost_is_announced_all_the_same(world: World) -> None:
    world.hold("UNINDEXED", "jane@a.example")
    world.items.refresh(world.quarantine, PEOPLE)
    index = world.quarantine._index
    assert index is not None
    index.remove(["UNINDEXED"])
    assert world.quarantine.records(["UNINDEXED"]) == []
    assert world.run().sent == 1
    assert "about UNINDEXED" in world.digests()["jane@a.example"]


def test_a_claim_does_not_take_what_another_run_is_sending(world: World) -> None:
    """A digest that takes a minute, and new mail for somebody who is told at once."""
    now = time.time()
    world.hold("FIRST", "jane@a.example")
    world.items.refresh(world.quarantine, PEOPLE)
    slow = world.items.claim(Person("jane@a.example"), now)
    assert slow is not None
    world.hold("SECOND", "jane@a.example")
    world.items.refresh(world.quarantine, PEOPLE)
    other = world.items.claim(world.items.person("jane@a.example"), now + 61)
    assert other is not None
    assert [item.mail for page in world.items.claimed(other) for item in page] == ["SECOND"]
    assert [item.mail for page in world.items.claimed(slow) for item in page] == ["FIRST"]


def test_a_held_digest_makes_no_other_digest(world: World) -> None:
    """A server on the way changed it, so its token is not valid, and the scanner wants it held."""
    world.hold("SPAM", "jane@a.example")
    assert world.run().sent == 1
    (digest,) = world.next_hop.mails
    changed = digest.content.replace(b"Subject: ", b"Subject: [EXTERNAL] ")
    world.hold("HELDDIGEST", "jane@a.example", changed, sender="owner-list@a.example")
    field = b"List-Unsubscribe: <https://x/u/" + b"a" * 60 + b">\r\n"
    forged = CONTENT.replace(b"Subject: hello", field + b"Subject: forged")
    world.hold("FORGED", "joe@a.example", forged)
    done = world.run()
    assert (done.sent, done.empty) == (1, 1)
    assert "forged" in world.digests()["joe@a.example"]  # nobody else can hide a mail from its recipient


def test_a_digest_is_not_scanned_under_another_address_of_its_reader(world: World) -> None:
    """The next hop rewrites jane@ to j.doe@ before it sends the mail through the bridge: once for each address."""
    world.hold("SPAM", "jane@a.example")
    world.run()
    with closing(Message(Spool(1 << 20))) as message:
        message.write(world.next_hop.mails[0].content)
        codes = []
        for address in ("j.doe@a.example", "jane@elsewhere.example"):
            token = TOKENS.find(message.head(), "", [address], time.time())
            assert token is not None and token.is_for(message, time.time())
            codes.append(token.codes[address])
        assert len(set(codes)) == 2
        assert TOKENS.find(message.head(), "john@client.example", ["jane@a.example"], time.time()) is None


def test_a_token_of_a_released_mail_is_for_its_recipient_alone(world: World) -> None:
    with closing(Message(Spool(1 << 20))) as message:
        message.write(CONTENT)
        head = TOKENS.field(message, "", ["jane@a.example", ""], datetime.now(UTC)) + message.head()
    assert TOKENS.find(head, "", ["jane@a.example"], time.time()) is not None
    assert TOKENS.find(head, "", ["joe@a.example"], time.time()) is None


# A next hop that refuses


def test_deferred_recipients_do_not_end_the_run_for_others(world: World) -> None:
    for number in range(25):
        world.hold(f"D{number}", f"a{number}@a.example")
        world.next_hop.replies[f"RCPT <a{number}@a.example>".encode()] = b"450 4.2.1 try again later"
    world.hold("LAST", "zoe@a.example")
    done = world.run()
    assert (done.sent, done.failed, done.problem) == (1, 25, "")
    world.next_hop.replies.clear()
    assert world.run(now=False).sent == 0  # they are tried again later, not at once
    assert world.run().sent == 25


def test_a_next_hop_that_cannot_be_reached_ends_the_run(world: World) -> None:
    for number in range(60):
        world.hold(f"D{number}", f"a{number}@a.example")
    done = world.run(is_down=True)
    assert done.sent == 0 and 20 <= done.failed < 60
    assert "cannot be reached" in done.problem
    assert world.run().sent == 60


@pytest.mark.parametrize("verb", [b"MAIL", b"DATA", b"."])
def test_refused_content_silences_nobody_for_a_week(world: World, verb: bytes) -> None:
    """It is counted as failed, and the next digest has the same mail."""
    world.hold("SPAM", "jane@a.example")
    world.next_hop.replies[verb] = b"554 5.7.1 message content rejected"
    done = world.run()
    assert (done.failed, done.refused) == (1, 0)
    person = world.items.person("jane@a.example")
    assert person.refused_at == 0 and person.last_at > 0
    before = len(world.next_hop.mails)  # the next hop keeps what it refused
    world.next_hop.replies.clear()
    assert world.run(now=False).sent == 0  # not at once
    assert world.run().sent == 1
    assert "about SPAM" in text_of(parsed(world.next_hop.mails[before].content))


def test_a_refused_recipient_is_left_alone_for_a_week(world: World) -> None:
    world.hold("SPAM", "jane@a.example")
    world.next_hop.replies[b"RCPT"] = b"550 5.1.1 no such user"
    done = world.run()
    assert (done.failed, done.refused) == (0, 1)
    assert time.time() - world.items.person("jane@a.example").refused_at < 60


# A clock that was wrong


def test_a_clock_that_was_a_year_ahead_silences_nobody(tmp_path: Path) -> None:
    year = time.time() + 365 * 86400
    with world_in(tmp_path, schedule="hourly") as world:
        with world.items._store.writing() as connection:
            world.items._set(connection, "cursor", year, "LATER")
            world.items._set(connection, "whole", year)
        world.age("jane@a.example", last_at=year, retry_at=year, refused_at=year + REFUSED_S)
        world.hold("SPAM", "jane@a.example")
        world.items.refresh(world.quarantine, PEOPLE)
        with world.items._store.writing() as connection:
            connection.exec_driver_sql("UPDATE digest_item SET kept_at = kept_at - 7200")
        assert world.run(now=False).sent == 1


# Whose mail it is


def owners(world: World) -> dict[str, str]:
    with world.items._store.reading() as connection:
        rows = connection.exec_driver_sql("SELECT recipient, person FROM digest_item")
        return {row.recipient: row.person for row in rows}


def test_exclude_and_domains_apply_to_mail_that_was_read_before(world: World) -> None:
    for name in ("jane@a.example", "list@a.example", "joe@b.example"):
        world.hold(name.partition("@")[0].upper(), name)
    world.items.refresh(world.quarantine, People(["a.example"]))
    assert owners(world) == {"jane@a.example": "jane@a.example", "list@a.example": "list@a.example"}
    assert world.run(People(["a.example", "b.example"], ["list@a.example"])).sent == 2
    assert set(world.digests()) == {"jane@a.example", "joe@b.example"}
    assert world.items.waiting_count(time.time()) == 0
    assert world.run(People(["a.example"])).sent == 1  # no longer excluded
    assert set(world.digests()) == {"jane@a.example", "joe@b.example", "list@a.example"}


def test_a_new_alias_applies_to_mail_that_was_read_before(world: World, tmp_path: Path) -> None:
    file = tmp_path / "aliases"
    file.write_text("sales@a.example jane@a.example\n")
    people = People(["a.example"], aliases=file)
    world.hold("INFO", "info@a.example")
    assert world.run(people).sent == 1
    file.write_text("info@a.example jane@a.example # new\n")
    assert world.run(people).sent == 1  # the new owner was not told
    assert "about INFO" in world.digests()["jane@a.example"]
    assert [item.mail for item in world.items.of("jane@a.example")] == ["INFO"]
    assert world.items.of("info@a.example") == []
    assert world.run(people).sent == 0


def test_an_alias_may_be_in_a_domain_that_gets_no_digests(tmp_path: Path) -> None:
    """As in the documentation: a whole domain that belongs to one person; and the address of a sign-in provider."""
    file = tmp_path / "aliases"
    file.write_text("@jane.example jane@a.example\njane@login.example jane@a.example\n@far.example x@else.example\n")
    people = People(["a.example"], ["info@a.example"], aliases=file, delimiter="+")
    assert people.person_of("shop@jane.example") == "jane@a.example"
    assert people.person_of("Jane@Login.example") == "jane@a.example"
    assert people.person_of("joe@login.example") is None
    assert people.person_of("any@far.example") is None
    assert people.person_of("jane+x@elsewhere.example") is None


def test_an_excluded_alias_is_not_its_owner_s(tmp_path: Path) -> None:
    file = tmp_path / "aliases"
    file.write_text("list@a.example jane@a.example\n")
    assert People(["a.example"], ["list@a.example"], aliases=file).person_of("list@a.example") is None


def test_two_configurations_that_share_a_database_do_not_read_everything_in_turns(world: World) -> None:
    world.hold("SPAM", "jane@a.example")
    one, two = People(["a.example"]), People(["a.example", "b.example"])
    other = Items(world.items._store, "")
    world.items.refresh(world.quarantine, one)
    other.refresh(world.quarantine, two)
    for items, people in ((world.items, one), (other, two)):
        assert not items._is_moved(people.fingerprint())


def test_a_page_of_held_mail_begins_where_the_last_one_ended(world: World, tmp_path: Path) -> None:
    """Also between two addresses of one person that got the same mail."""
    file = tmp_path / "aliases"
    file.write_text("info@a.example jane@a.example\n")
    items = [Item("SAME", name, 5.0) for name in ("jane@a.example", "info@a.example")]
    rows = [{"place": "", "mail": "SAME", "recipient": each.recipient, "person": "jane@a.example", "kept_at": 5.0,
             "sent_at": 0.0, "hidden": 0} for each in items]  # fmt: skip
    world.items._add(rows, None)
    (first,) = world.items.of("jane@a.example", limit=1)
    assert world.items.of("jane@a.example", before=first) == [items[1]]
