"""The keys of addresses in a finished segment: indexes for plain addresses, stored keys for the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.history import segment_merge
from bridge.history.entry import address_keys
from bridge.history.query import HistoryQuery
from bridge.history.segment_conditions import add_functions, conditions
from bridge.history.segments import open_for_reading
from bridge.history.sqlite import SqliteHistory
from tests.history.history_kit import NOON, add, find, mail

ADDRESSES = [
    *("", "a@example.org", "A.b+c@EXAMPLE.Org", "postmaster", "~0123456789abcdef", "*@example.org", "a%b@example.org"),
    *('"a b"@example.org', '"Jane"@Example.org', "a@example.org.", "a@", "@example.org", "a@b@example.org"),
    *("J\u00fcrgen@example.org", "a@B\u00dcCHER.example", "a@xn--bcher-kva.example", "a(x)@example.org"),
    *("a@[192.0.2.1]", "o'brien@example.org", "<a@example.org>", "@relay.example:a@example.org"),
    *(f"{'x' * 450}@example.org", "\u212a@example.org", "a@b..c"),
]
ODD_CHARACTERS = 'aAzZ09.@"()<>\\[]:,;%!+-_~* \u00fc\u00dc\u212a\u0130'
texts = st.one_of(st.sampled_from(ADDRESSES), st.text(ODD_CHARACTERS, max_size=12))
several = st.lists(texts.filter(bool), max_size=3)


def finished(directory: Path) -> Path:
    (path,) = directory.glob("*.sqlite")
    return path


def keys_in(path: Path) -> list[tuple[str, int]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT key, mail FROM address ORDER BY mail, key").fetchall()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mails=st.lists(st.tuples(texts, several), min_size=1, max_size=6))
def test_a_finished_segment_has_every_key_once(
    tmp_path_factory: pytest.TempPathFactory, mails: list[tuple[str, list[str]]]
) -> None:
    """What an index has in addition is not a key that anybody can ask for: the end of an odd address."""
    directory = tmp_path_factory.mktemp("history")
    history = SqliteHistory(directory, max_rows=len(mails))
    history.append([mail(n, sender=sender, recipients="\n".join(to)) for n, (sender, to) in enumerate(mails)])
    found = keys_in(finished(directory))
    assert len(found) == len(set(found))
    for number, (sender, to) in enumerate(mails, 1):
        keys = {key for key, of in found if of == number}
        assert set(address_keys(sender, to)) <= keys
    history.close()


@pytest.mark.parametrize("is_merged", [False, True])
def test_every_spelling_is_found_in_finished_segments_as_in_live_ones(tmp_path: Path, is_merged: bool) -> None:
    """By address and by domain, as sender, as the only recipient, and as one of two."""
    live, other = SqliteHistory(tmp_path / "live"), SqliteHistory(tmp_path / "finished", max_rows=len(ADDRESSES))
    recipients = [*ADDRESSES, *(f"first@other.example\n{address}" for address in ADDRESSES if address)]
    mails = [
        mail(number, sender=ADDRESSES[number % len(ADDRESSES)], recipients=to) for number, to in enumerate(recipients)
    ]
    for history in (live, other):
        for first in range(0, len(mails), len(ADDRESSES)):
            history.append(mails[first : first + len(ADDRESSES)])
        history.close()
    other.maintain(0.0, None)
    if is_merged:
        segment_merge.merge_days(tmp_path / "finished", NOON + 3 * 86_400)
    assert len(list((tmp_path / "finished").glob("*.sqlite"))) == (1 if is_merged else 2)
    domains = ["example.org", "xn--bcher-kva.example", "b\u00fccher.example", "postmaster", "other.example"]
    for asked in [*ADDRESSES, *domains]:
        for role in ("sender", "recipient", "address"):
            if asked or role == "sender":
                expected = find(live, **{role: asked}, limit=0)
                assert find(other, **{role: asked}, limit=0) == expected, (role, asked)
                assert find(other, **{role: asked}, limit=5) == expected[:5], (role, asked)


@pytest.mark.parametrize("query", [{"sender": "a@x.example"}, {"recipient": "@x.example"}, {"address": "a@x.example"}])
def test_addresses_are_looked_up_in_indexes_only(tmp_path: Path, query: dict[str, str]) -> None:
    """Reading every mail of a segment takes a hundred times as long."""
    history = SqliteHistory(tmp_path, max_rows=2)
    add(history, mail(1), mail(2))
    asked = conditions(HistoryQuery(**query), live=False)
    (other,) = asked.others
    with closing(open_for_reading(finished(tmp_path))) as connection:
        for text in (other.entries, f"SELECT 1 FROM mail WHERE {other.by_index}"):
            plan = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", asked.values)]
            assert any("mail_sender" in step or "mail_recipient" in step for step in plan), plan
            assert not any(step.startswith("SCAN mail") for step in plan), plan
        add_functions(connection, HistoryQuery(**query))
        own = f"SELECT 1 FROM mail INDEXED BY mail_at WHERE at > 0 AND {other.text}"
        plan = [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {own}", asked.values)]
        assert not any("SUBQUERY" in step or step.startswith("SCAN") for step in plan), "once for each mail"


@pytest.fixture
def earlier(tmp_path: Path) -> Iterator[SqliteHistory]:
    """Two finished segments as an earlier version wrote them: with a table of all keys, and one of today's."""
    history = SqliteHistory(tmp_path, max_rows=3)
    add(history, *[mail(number, sender=f"s{number % 2}@sender.example") for number in range(9)])
    for path in sorted(tmp_path.glob("*.sqlite"))[:2]:
        keys = keys_in(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(
                "DROP VIEW address; DROP TABLE odd_address; DROP INDEX mail_sender; DROP INDEX mail_sender_domain;"
                "DROP INDEX mail_recipient; DROP INDEX mail_recipient_domain;"
                "CREATE TABLE address (key TEXT, mail INTEGER, PRIMARY KEY (key, mail)) WITHOUT ROWID;"
            )
            connection.executemany("INSERT INTO address VALUES (?, ?)", keys)
            connection.commit()
    yield history
    history.close()


def test_segments_of_an_earlier_version_are_searched_and_merged(tmp_path: Path, earlier: SqliteHistory) -> None:
    """Beside those of today, and together with them."""
    queries = [{"sender": "s1@sender.example"}, {"sender": "sender.example"}, {"recipient": "B@example.org."}]
    before = [find(earlier, **query) for query in queries]
    assert [len(found) for found in before] == [4, 9, 9]
    segment_merge.merge_days(tmp_path, NOON + 3 * 86_400)
    assert len(list(tmp_path.glob("*.sqlite"))) == 1
    assert [find(earlier, **query) for query in queries] == before
    keys = keys_in(finished(tmp_path))
    assert len(keys) == len(set(keys)) == 4 * 9


def test_an_earlier_version_merges_segments_of_today(tmp_path: Path) -> None:
    """It reads all keys of the parts and stores them: none may be there twice."""
    history = SqliteHistory(tmp_path, max_rows=len(ADDRESSES))
    history.append([mail(n, sender=text, recipients=f"{text}\n{text}") for n, text in enumerate(ADDRESSES)])
    with closing(sqlite3.connect(tmp_path / "merged")) as connection:
        connection.execute("ATTACH ? AS part", (str(finished(tmp_path)),))
        connection.execute("CREATE TABLE address (key TEXT, mail INTEGER, PRIMARY KEY (key, mail)) WITHOUT ROWID")
        connection.execute("INSERT INTO main.address SELECT key, mail + 10 FROM part.address")
    history.close()
