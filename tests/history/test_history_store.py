"""Both homes of the history: whatever is recorded is found by all its keys, in order, and counted."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from bridge.history.entry import LaterEvent
from bridge.history.query import BY, By, HistoryQuery, Sum, Top
from bridge.history.store import MAX_LATER, HistoryStore
from tests.history.history_kit import NOON, add, find, ids, mail


def test_a_mail_is_read_as_it_was_written(store: HistoryStore) -> None:
    """Every value comes back, also those that few mails have."""
    kind, row = mail(tags="a:b,c", recipients="b@example.org\nc@example.org", more='{"why": "because"}')
    add(store, (kind, row))
    (found,) = store.find(HistoryQuery())
    assert (found.row, found.kind, found.more) == (row, kind, {"why": "because"})
    assert found.tags == ("a:b", "c") and found.recipients == ("b@example.org", "c@example.org")
    shown = found.to_dict()
    assert shown["scan_ms"] == 250 and shown["recipients"] == ["b@example.org", "c@example.org"]


WANTED: dict[str, dict[str, Any]] = {
    "our id": {"what": "ID0005"},
    "session": {"what": "S5"},
    "queue id before us": {"what": "Q5"},
    "queue id behind us": {"what": "N5"},
    "Message-ID": {"what": "<m5@sender.example>"},
    "Message-ID without brackets": {"what": "m5@sender.example"},
    "ggrid": {"what": "G5"},
    "sender": {"sender": "a5@sender.example"},
    "sender, another spelling": {"sender": "A5@Sender.Example."},
    "sender's domain": {"sender": "five.example"},
    "sender's domain with @": {"sender": "@FIVE.example"},
    "recipient": {"recipient": "second5@example.org"},
    "recipient's domain": {"recipient": "five.example.org"},
    "address of the sender": {"address": "a5@sender.example"},
    "address of a recipient": {"address": "second5@example.org"},
    "client": {"client": "192.0.2.55"},
    "network": {"client": "192.0.2.52/30"},
    "network of several octets": {"client": "192.0.2.48/28"},
    "IPv6 network": {"client": "2001:db8:5::/48"},
    "word of the subject": {"subject": "fünf"},
    "beginning of a word": {"subject": "INVO*"},
    "a number with a prefix": {"subject": "INV-12345"},
    "a word with a sharp s": {"subject": "straße"},
    "two words": {"subject": "five INVOICES"},
    "tag": {"tag": "mime:five:x"},
    "group of tags": {"tag": "mime:five:*"},
    "pattern": {"tag": "*:five:x"},
    "pattern with several asterisks": {"tag": "**five*x*"},
    "decision": {"decision": "bounce"},
    "action": {"action": "reject"},
    "rule": {"rule": "policy.bounce"},
    "listener": {"listener": "five"},
    "tenant": {"tenant": "T5"},
    "stage": {"stage": "rcpt"},
    "attempt": {"attempt": "abc5"},
    "time": {"since": NOON + 5, "until": NOON + 6},
    "several": {"decision": "bounce", "sender": "a5@sender.example", "client": "192.0.2.55"},
}
FIFTH: dict[str, Any] = {
    "session": "S5", "queue_id": "Q5", "next_id": "N5", "message_id": "<m5@sender.example>", "ggrid": "G5",
    "sender": "a5@sender.example", "recipients": "first5@five.example.org\nsecond5@example.org",
    "client": "192.0.2.55", "subject": "Fünf, five invoices", "tags": "other,mime:five:x", "decision": "bounce",
    "action": "reject", "rule": "policy.bounce", "listener": "five", "tenant": "T5", "stage": "rcpt", "attempt": "abc5",
}  # fmt: skip
OTHERWISE: dict[str, dict[str, Any]] = {
    "a number with a prefix": {"subject": "Your invoice INV-12345/2026 of mx.example.org"},
    "a word with a sharp s": {"subject": "Große Straße"},
    "sender's domain": {"sender": "x@five.example"},
    "sender's domain with @": {"sender": "x@five.example"},
    "IPv6 network": {"client": "2001:db8:5::1"},
}


@pytest.mark.parametrize("key", WANTED)
def test_a_mail_is_found_by_each_key(store: HistoryStore, key: str) -> None:
    """And no other mail is."""
    mails = [mail(number, client="198.51.100.1", subject="hello") for number in range(9)]
    mails[5] = mail(5, **FIFTH | OTHERWISE.get(key, {}))
    add(store, *mails)
    assert find(store, **WANTED[key]) == ["ID0005"]


ODD_SPELLINGS = [
    "jane @example.org", "jane\t@example.org", "jane(her work)@example.org", '"ja\\ne"@example.org',
    '"jane"@example.org', "Jane Doe <jane@example.org>", "@relay.example:jane@example.org", "JANE@Example.ORG.",
    "jane@ex\uff41mple.org",
]  # fmt: skip


@pytest.mark.parametrize("written", ODD_SPELLINGS)
@pytest.mark.parametrize("column", ["sender", "recipients"])
def test_an_address_is_found_however_it_was_written(store: HistoryStore, column: str, written: str) -> None:
    """A mail server that speaks milter passes addresses as its client wrote them."""
    add(store, mail(1), mail(2, **{column: written}))
    name = "sender" if column == "sender" else "recipient"
    assert find(store, **{name: "jane@example.org"}) == find(store, address="jane@example.org") == ["ID0002"]


def test_an_odd_address_is_found_that_came_after_a_search(store: HistoryStore) -> None:
    """A search remembers which mails of a live segment have one."""
    for number in range(1, 5):
        add(store, mail(number), mail(10 + number, recipients=f'"person{number}"@example.org'))
        assert find(store, recipient=f"person{number}@example.org") == [f"ID{10 + number:04d}"]
    assert [find(store, address=f"person{number}@example.org") for number in (1, 4)] == [["ID0011"], ["ID0014"]]


def test_a_client_without_an_address_does_not_disturb_a_search_for_a_network(store: HistoryStore) -> None:
    """It is recorded as unknown, or not at all (a unix socket)."""
    add(
        store, mail(1, client="unknown"), mail(2, client=""), mail(3, client="192.0.2.9"), mail(4, client="2001:db8::9")
    )
    assert find(store, client="192.0.2.0/25") == ["ID0003"]
    assert find(store, client="2001:db8::/33") == ["ID0004"]
    assert find(store, client="0.0.0.0/0") == ["ID0003"]


def test_the_null_sender_is_found(store: HistoryStore) -> None:
    """A bounce has no sender, and its keys do not match those of other mail."""
    add(store, mail(1), mail(2, sender=""))
    assert find(store, sender="") == find(store, sender="<>") == ["ID0002"]


def test_a_sender_is_found_page_by_page_however_often_and_however_long_ago(store: HistoryStore) -> None:
    """PostgreSQL is searched some days at a time, and in another way for what occurs very often."""
    seldom = [mail(number, sender="seldom@x.example", at=NOON - number * 70_000) for number in range(40)]
    often = [mail(1000 + number, sender="often@x.example", at=NOON - 3600 - number) for number in range(2500)]
    store.append(seldom + often)
    for sender, mails in (("seldom@x.example", seldom), ("often@x.example", often[:63]), ("@x.example", [])):
        found: list[str] = []
        cursor = ""
        while len(found) < max(len(mails), 20):
            page = store.find(HistoryQuery(sender=sender, limit=7, before=cursor))
            found += [entry.row.id for entry in page]
            if not page:
                break
            cursor = page[-1].cursor
        expected = mails or sorted(seldom + often, key=lambda one: one[1].at, reverse=True)[:21]
        assert found == [row.id for _, row in expected]


HOSTILE = ["' OR 1=1 --", '"', "%", "_", "*", "\\", "\0x", "a" * 5000, "x\udcff", "\N{SNOWMAN}"]


@pytest.mark.parametrize("name", ["what", "sender", "recipient", "address", "subject", "tag", "listener", "rule"])
def test_no_text_finds_what_it_does_not_name(store: HistoryStore, name: str) -> None:
    """Values are values, whatever they look like. A subject without a word does not restrict the search."""
    add(store, mail(1))
    is_open = [name == "subject" and not HistoryQuery(subject=hostile).words for hostile in HOSTILE]
    found = [find(store, **{name: hostile}) for hostile in HOSTILE]
    assert found == [["ID0001"] if all_mail else [] for all_mail in is_open]


def test_hostile_values_are_stored(store: HistoryStore) -> None:
    """Bytes that are no text cost a character, not the batch."""
    store.append([mail(1, helo="bad \udcff", subject="nul \0 snow \N{SNOWMAN}"), mail(2)])
    assert find(store) == ["ID0002", "ID0001"]
    assert find(store, subject="snow") == ["ID0001"]


def test_values_of_any_length_are_stored(store: HistoryStore) -> None:
    """What is longer than an index takes is found by its end."""
    long = "x" * 5000
    add(store, mail(1, sender=f"{long}@sender.example", recipients=f"{long}@example.org", tags=long[:900]), mail(2))
    assert find(store, sender="sender.example") == ["ID0002", "ID0001"]
    assert find(store, recipient=f"{long}@example.org") == ["ID0001"]


def test_asterisks_in_the_tag_of_a_search_froze_the_process(store: HistoryStore) -> None:
    """Each further asterisk took several times as long; twelve took minutes, in which no other thread could run."""
    add(store, mail(1, tags="mime:ambiguous:header-line"))
    before = time.process_time()
    for pattern in ("*" * 11 + "~", "*e" * 11 + "~", "*" * 999 + "~", "*:" * 400):
        assert find(store, tag=pattern) == []
        assert time.process_time() - before < 2
    assert find(store, tag="*" * 1000) == find(store, tag="*m***:a**-line*") == ["ID0001"]


def test_only_the_asterisk_is_a_wildcard_in_the_tag_of_a_search(store: HistoryStore) -> None:
    add(store, mail(1, tags="a:[x]?1_%"), mail(2, tags="a:x31zz"))
    assert find(store, tag="a:[x]?1_%") == find(store, tag="a:*[x]?1_%") == ["ID0001"]
    assert find(store, tag="a:[x]?1*") == find(store, tag="*_%") == ["ID0001"]
    assert find(store, tag="a:?31*") == []


def test_a_tag_that_is_too_long_for_an_index_lost_its_mail(store: HistoryStore) -> None:
    """Nothing compresses it, and each character has three bytes; the other mails of the batch were lost or late."""
    letters = random.Random(1)
    tag = "".join(chr(letters.randint(0x4E00, 0x9FFF)) for _ in range(1000))
    add(store, mail(1, tags=tag), mail(2))
    assert find(store, tag=tag) == ["ID0001"] and find(store) == ["ID0002", "ID0001"]


def test_pages_have_no_gaps_and_no_repetitions(store: HistoryStore) -> None:
    """Also where several mails have the same time, and while new mail arrives."""
    add(store, *[mail(number, at=NOON + number // 4) for number in range(23)])
    seen: list[str] = []
    cursor = ""
    while page := store.find(HistoryQuery(limit=5, before=cursor)):
        seen += ids(page)
        cursor = page[-1].cursor
        add(store, mail(100 + len(seen), at=NOON + 1000))
    assert seen == [f"ID{number:04d}" for number in reversed(range(23))]


def test_two_writers_are_read_in_one_order(store: HistoryStore, request: pytest.FixtureRequest) -> None:
    """Each worker writes for itself; a page has the newest of all of them."""
    other = request.getfixturevalue("another_store")
    for number in range(20):
        (store, other)[number % 2].append([mail(number)])
    assert find(store, limit=7) == find(other, limit=7) == [f"ID{number:04d}" for number in range(19, 12, -1)]


def test_mails_are_counted_by_each_property(store: HistoryStore) -> None:
    """A mail with two tags or two recipients counts for both; a sum counts as many."""
    add(
        store,
        mail(1, tags="a,b", size=10, recipients="x@example.org\ny@example.org"),
        mail(2, tags="a", size=20, client="192.0.2.9", action="reject"),
        mail(3700, size=30, mails=5),
    )  # fmt: skip

    def counted(by: Any, **query: Any) -> dict[str, tuple[int, int]]:
        return {line.label: (line.mails, line.size) for line in store.count(by, HistoryQuery(**query))}

    assert counted("tag") == {"a": (2, 30), "b": (1, 10)}
    assert counted("recipient") == {"b@example.org": (6, 170), "x@example.org": (1, 10), "y@example.org": (1, 10)}
    assert counted("action") == {"relay": (6, 160), "reject": (1, 20)}
    assert counted("client") == {"192.0.2.7": (6, 160), "192.0.2.9": (1, 20)}
    assert counted("sender", action="reject") == {"a@sender.example": (1, 20)}
    assert list(counted("hour").values()) == [(2, 30), (5, 150)]
    assert list(counted("day").values()) == [(7, 180)]
    assert counted("action", since=NOON + 2, until=NOON + 60) == {"reject": (1, 20)}


def test_what_happened_later_is_found_in_order(store: HistoryStore) -> None:
    """Of several mails at once, and of none."""
    assert store.later(["ID0001"]) == []
    first = LaterEvent(NOON, "ID0001", "released", "alice", "to b@example.org")
    second = LaterEvent(NOON + 1, "ID0002", "deleted")
    store.note([second])
    store.note([first])
    assert store.later(["ID0001", "ID0002"]) == [first, second]
    assert store.later(["ID0001"]) == [first]


def test_the_story_of_a_mail_has_its_last_events(store: HistoryStore) -> None:
    """With a full mailbox, a user tried to release a mail again and again: the console took a minute for its story."""
    events = [LaterEvent(float(number), "ID0001", "release failed", "user") for number in range(MAX_LATER + 50)]
    store.note(events)
    assert store.later(["ID0001", "ID0002"]) == events[50:]


def test_old_entries_are_deleted_and_others_stay(store: HistoryStore) -> None:
    """The newest always stay, also what happened later to them."""
    now = time.time()
    add(store, *[mail(number, at=now - 40 * 86400 + number) for number in range(6)])
    add(store, *[mail(10 + number, at=now - 3 + number) for number in range(3)])
    store.note([LaterEvent(now - 40 * 86400, "ID0001", "released"), LaterEvent(now, "ID0010", "released")])
    store.maintain(now - 30 * 86400, None)
    if find(store, since=now - 50 * 86400, until=now - 86400):  # a live segment is deleted when it is finished
        assert set(find(store)) >= {"ID0010", "ID0011", "ID0012"}
    else:
        assert find(store) == ["ID0012", "ID0011", "ID0010"]
    assert store.later(["ID0001"]) == [] and len(store.later(["ID0010"])) == 1


def test_beyond_the_size_the_oldest_are_deleted(store: HistoryStore, request: pytest.FixtureRequest) -> None:
    """The part that is being written stays."""
    now = time.time()
    add(store, *[mail(number, at=now - (9 - number) * 86400) for number in range(10)])
    deleted = store.maintain(0, 1)
    kind = request.node.callspec.params["store"]
    assert deleted == {"live": (0, 0), "finished": (0, 3), "postgresql": (0, 9)}[kind]
    assert find(store)[0] == "ID0009"
    assert store.size() > 0


def test_networks_of_any_width_are_found(store: HistoryStore) -> None:
    """Also those whose addresses have no common beginning; what is no address is in none."""
    clients = ["10.1.2.3", "11.200.0.1", "192.0.2.7", "2001:db8::1", "::1", "unknown", "", "9x.1"]
    add(store, *(mail(number, client=client) for number, client in enumerate(clients)))
    found = {
        network: sorted(clients[int(name[2:])] for name in find(store, client=network))
        for network in ("0.0.0.0/0", "8.0.0.0/6", "8.0.0.0/7", "10.0.0.0/8", "::/0", "2000::/3", "2001:db8::/32")
    }
    assert found == {
        "0.0.0.0/0": ["10.1.2.3", "11.200.0.1", "192.0.2.7"],
        "8.0.0.0/6": ["10.1.2.3", "11.200.0.1"],
        "8.0.0.0/7": [],
        "10.0.0.0/8": ["10.1.2.3"],
        "::/0": ["2001:db8::1", "::1"],
        "2000::/3": ["2001:db8::1"],
        "2001:db8::/32": ["2001:db8::1"],
    }


def test_a_key_is_found_in_other_spellings(store: HistoryStore) -> None:
    """In one search; brackets belong to a Message-ID."""
    add(store, mail(1, queue_id="4BXYZ"), mail(2, queue_id="4bxyz"), mail(3, message_id="<m@x>"), mail(4))
    assert find(store, what="4bXyZ") == []
    assert find(store, what="4bXyZ", spellings=("4BXYZ", "4bxyz")) == ["ID0002", "ID0001"]
    assert find(store, what="m@x") == ["ID0003"] == find(store, what="<m@x>")


@pytest.mark.parametrize("by", BY)
def test_the_largest_sums_and_the_rest_are_those_of_all(store: HistoryStore, by: By) -> None:
    """However many are shown."""
    for number in range(12):
        people = "\n".join(f"r{each}@example.org" for each in range(number % 4))
        add(store, mail(number, sender=f"s{number % 3}@x", recipients=people, client=f"192.0.2.{number % 5}",
                        tags="a,b" if number % 2 else "", size=number, mails=number % 2 + 1))  # fmt: skip
    for query in (HistoryQuery(limit=0), HistoryQuery(limit=0, sender="s1@x"), HistoryQuery(limit=0, until=NOON + 7)):
        counted = store.count(by, query)
        for most in (0, 1, 2, 100):
            assert store.top(by, query, most) == Top.of(counted, most)
    assert store.top(by, HistoryQuery(limit=0, sender="nobody@x"), 5) == Top([], 0, Sum("", 0, 0))


@pytest.mark.parametrize("store", ["postgresql"], indirect=True)
@pytest.mark.parametrize("query", [{}, {"sender": "a@sender.example"}])
def test_mails_that_were_written_twice_did_not_end_a_listing(store: HistoryStore, query: dict[str, Any]) -> None:
    """The answer to a commit was lost. They made their page shorter, which looked like the last one."""
    store.append([mail(number) for number in range(10)])
    store.append([mail(number) for number in range(4, 10)])
    newest = [f"ID{number:04d}" for number in range(9, -1, -1)]
    assert find(store, limit=7, **query) == newest[:7]
    assert find(store, limit=20, **query) == newest


def test_a_message_id_that_was_sent_without_brackets_was_not_found_with_them(store: HistoryStore) -> None:
    add(store, mail(1, message_id="odd@sender.example"), mail(2))
    assert find(store, what="<odd@sender.example>") == find(store, what="odd@sender.example") == ["ID0001"]


SPELLINGS = [
    ("sender", "J\u00dcRGEN@b\u00fccher.example", "j\u00fcrgen@xn--bcher-kva.EXAMPLE."),
    ("sender", '"j%_o"@sender.example', "J%_O@sender.example"),
    ("recipient", "anna+news@example.org", "Anna+News@EXAMPLE.org"),
    ("recipient", "a@stra\u00dfe.example", "@xn--strae-oqa.example"),
    ("recipient", "a@EXAMPLE\u3002org", "example.org"),
    ("recipient", '"an\\na"@example.org', "anna@example.org"),
]


@pytest.mark.parametrize(("role", "written", "asked"), SPELLINGS)
def test_each_spelling_of_an_address_finds_its_mail(store: HistoryStore, role: str, written: str, asked: str) -> None:
    """In the newest mails, which have no index, spellings were missed that were found an hour later."""
    column = {"sender": "sender", "recipient": "recipients"}[role]
    add(store, mail(1, **{column: written}), mail(2, **{column: "jxxo@other.example"}))
    assert find(store, **{role: asked}) == ["ID0001"]
