"""Whatever index a segment is searched by, it finds what reading every mail finds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.history.query import HistoryQuery
from bridge.history.sqlite import SqliteHistory
from tests.history.history_kit import NOON, ids, mail, sqlite_history

MAILS = 6_000  # more than what counts as many entries of an index
ASKED: dict[str, list[dict[str, Any]]] = {
    "kind": [{}, {"action": "reject"}, {"tag": "rare"}, {"tenants": frozenset({"large"})}, {"tenants": frozenset()}],
    "client": [
        {},
        {"client": "10.0.0.0/8"},
        {"client": "10.0.7.7"},
        {"client": "0.0.0.0/0"},
        {"client": "10.9.0.0/16"},
    ],
    "address": [{}, {"recipient": "many.example"}, {"sender": "s7@few.example"}, {"sender": ""}, {"address": "x@y"}],
    "words": [{}, {"subject": "often"}, {"subject": "seldom"}, {"subject": "sel*"}],
    "place": [{}, {"before": f"{NOON + 4_000.0!r}:ID4000", "since": NOON + 100}],
}


def made(number: int) -> Any:
    return mail(
        number,
        action="reject" if number % 50 == 0 else "relay",
        tags="rare" if number % 1500 == 0 else "",
        tenant="large" if number % 10 else "small",
        client=f"10.0.{number % 40}.{number % 9}" if number % 5 else "192.0.2.1",
        sender="" if number % 400 == 0 else f"s{number % 90}@few.example",
        recipients=f"r{number % 7}@{'many' if number % 4 else 'other'}.example",
        subject="often" if number % 3 else f"seldom {number % 200}",
    )


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqliteHistory, SqliteHistory]]:
    """The same mails without any index, and in two finished segments."""
    both = tuple(sqlite_history(tmp_path_factory.mktemp("history"), max_rows=rows) for rows in (40_000, 5_000))
    mails = [made(number) for number in range(MAILS)]
    for history in both:
        history.append(mails[:5_000])
        history.append(mails[5_000:])
        history.close()
    both[1].maintain(0.0, None)  # finishes the second one
    yield both[0], both[1]


@pytest.mark.parametrize("share", [7, pytest.param(1, marks=pytest.mark.long)], ids=["a share", "all"])
@pytest.mark.parametrize("kind", range(len(ASKED["kind"])))
def test_every_index_finds_the_same(histories: tuple[SqliteHistory, SqliteHistory], kind: int, share: int) -> None:
    """With every combination of filters, or some in which each filter is, on the first page and behind it."""
    live, finished = histories
    others = [ASKED[name] for name in ("client", "address", "words", "place")]
    hits = 0
    for parts in itertools.islice(itertools.product(*others), kind, None, share):
        asked = {name: value for part in (ASKED["kind"][kind], *parts) for name, value in part.items()}
        for limit in (5, 0) if kind == 1 else (5,):
            query = HistoryQuery(**asked, limit=limit)
            found = ids(finished.find(query))
            assert found == ids(live.find(query)), asked
            hits += len(found)
    assert hits or ASKED["kind"][kind] == {"tenants": frozenset()}


def test_a_search_that_ends_early_is_continued_without_gaps(tmp_path: Path) -> None:
    """Each part ends where it is certain that no newer mail is missing."""
    history = sqlite_history(tmp_path, max_rows=3)
    other = sqlite_history(tmp_path, max_rows=4)  # its segments overlap with the others
    for number in range(24):
        (history, other)[number % 2].append([mail(number, subject="odd" if number % 2 else "even")])
    whole = ids(history.find(HistoryQuery(limit=100)))
    assert len(whole) == 24
    for limit in (2, 5, 100):
        found: list[str] = []
        before, early = "", 0
        while True:
            part = history.find_within(HistoryQuery(limit=limit, before=before), -1.0)
            found += ids(part.entries)
            if part.back_to is not None:
                assert all(entry.row.at >= part.back_to for entry in part.entries)
                before, early = part.cursor, early + 1
            elif len(part.entries) == limit:
                before = part.entries[-1].cursor
            else:
                break
        assert found == whole, limit
        assert early or limit == 2
    for store in (history, other):
        store.close()


def test_a_search_with_enough_time_is_complete(tmp_path: Path) -> None:
    """There is nothing to go on with."""
    history = sqlite_history(tmp_path, max_rows=2)
    for number in range(5):
        history.append([mail(number)])
    found = history.find_within(HistoryQuery(), 60.0)
    assert len(found.entries) == 5 and found.back_to is None and found.cursor == ""
    history.close()
