"""Segments of a day that is over are merged: the same mails, in fewer files, whatever happens in between."""

from __future__ import annotations

import json
from pathlib import Path

from bridge.history import segment_merge
from bridge.history.query import HistoryQuery
from bridge.history.segment_files import MERGING
from bridge.history.sqlite import SqliteHistory
from tests.history.history_kit import NOON, add, find, mail, sqlite_history

DAY = NOON // 86400 * 86400
LATER = DAY + 3 * 86400


def made(directory: Path) -> SqliteHistory:
    """Two days with three segments each."""
    history = sqlite_history(directory, max_rows=4)
    for day in range(2):
        add(
            history,
            *[
                mail(
                    day * 100 + number,
                    at=DAY + day * 86400 + number,
                    rule=f"policy.r{(number + day) % 5}",
                    sender=f"s{number}@sender.example",
                    subject=f"word{number} common",
                    tags=f"tag:{number % 3}",
                )
                for number in range(12)
            ],
        )
    return history


def contents(history: SqliteHistory) -> list[object]:
    searches = [
        HistoryQuery(limit=0),
        *(HistoryQuery(rule=f"policy.r{number}") for number in range(5)),
        HistoryQuery(sender="s7@sender.example"),
        HistoryQuery(subject="word3"),
        HistoryQuery(tag="tag:1", limit=5),
        HistoryQuery(what="ID0104"),
    ]
    return [
        *(history.find(query) for query in searches),
        *(history.count(by, HistoryQuery()) for by in ("rule", "tag", "hour", "sender")),
        history.count("rule", HistoryQuery(since=DAY + 5, until=DAY + 86400 + 5)),
    ]


def test_a_merged_day_has_the_same_mails(tmp_path: Path) -> None:
    """Found by all keys, and counted as before."""
    history = made(tmp_path)
    before = contents(history)
    assert len(list(tmp_path.glob("*.sqlite"))) == 6
    segment_merge.merge_days(tmp_path, LATER)
    assert len(list(tmp_path.glob("*.sqlite"))) == 2
    assert contents(history) == before
    assert not list(tmp_path.glob("*.new")) and not (tmp_path / MERGING).exists()
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("*.sqlite")} == {0o600}


def test_the_day_of_today_is_left_alone(tmp_path: Path) -> None:
    """More segments of it will come."""
    history = made(tmp_path)
    segment_merge.merge_days(tmp_path, DAY + 86400 + 100)
    assert len(list(tmp_path.glob("*.sqlite"))) == 4
    assert len(find(history, limit=0)) == 24


def test_a_late_segment_is_merged_into_its_day(tmp_path: Path) -> None:
    """Of another worker, whose segment was finished later."""
    history = made(tmp_path)
    segment_merge.merge_days(tmp_path, LATER)
    add(history, *[mail(50 + number, at=DAY + 50 + number) for number in range(4)])
    before = contents(history)
    segment_merge.merge_days(tmp_path, LATER)
    assert len(list(tmp_path.glob("*.sqlite"))) == 2
    assert contents(history) == before


def test_a_crash_while_merging_neither_loses_nor_doubles_a_mail(tmp_path: Path) -> None:
    """Before the merged segment has its name, the parts count; afterwards it does."""
    history = made(tmp_path)
    before = contents(history)
    parts = {path.name: path.read_bytes() for path in tmp_path.glob("*.sqlite")}
    segment_merge.merge_days(tmp_path, LATER)
    merged = sorted(path.name for path in tmp_path.glob("*.sqlite"))[0]
    first = sorted(parts)[:3]
    for name in first:
        (tmp_path / name).write_bytes(parts[name])
    (tmp_path / MERGING).write_text(json.dumps({"merged": merged, "parts": first}))
    assert contents(history) == before
    kept = (tmp_path / merged).read_bytes()
    (tmp_path / merged).unlink()
    assert contents(history) == before
    (tmp_path / merged).write_bytes(kept)
    segment_merge.merge_days(tmp_path, LATER)
    assert len(list(tmp_path.glob("*.sqlite"))) == 2 and not (tmp_path / MERGING).exists()
    assert contents(history) == before
