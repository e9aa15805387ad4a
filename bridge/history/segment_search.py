"""Searching the segments: the newest first, one after the other, until the page is full.

A finished segment is searched by its indexes; a live one has none and is read from end to end. If a segment is
finished or deleted while we search, the search begins again, because its file has another name now.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bridge.history import odd_addresses
from bridge.history.entry import MailEntry
from bridge.history.query import By, HistoryQuery, Sum, Top
from bridge.history.segment_conditions import add_functions
from bridge.history.segment_files import is_live, segment_files
from bridge.history.segment_plan import read_page
from bridge.history.segment_sums import OF_MAIL, Statement, SumsFile, has_key, hourly_sums, sums
from bridge.history.segments import is_damage, open_for_reading, set_aside
from bridge.history.store import Found, HistoryError
from bridge.history.sums import labels_of, ordered_sums

_RETRIES = 50
_RETRY_S = 0.01

T = TypeVar("T")
Segment = tuple[float, float, Path]  # the times of its first and last mail


class SegmentSearch:
    """Reads the segments of one directory. Every method may raise HistoryError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, query: HistoryQuery) -> list[MailEntry]:
        return self.find_within(query, math.inf).entries

    def find_within(self, query: HistoryQuery, seconds: float) -> Found:
        """No segment is begun after this time; the first one is searched in any case."""
        end = time.monotonic() + seconds
        return self._retried(lambda segments: _find(query, segments, end), query)

    def count(self, by: By, query: HistoryQuery) -> list[Sum]:
        """Numbers of mails and bytes by this property: the largest first; hours and days in order."""
        return self._retried(lambda segments: _count(by, query, segments), query)

    def top(self, by: By, query: HistoryQuery, most: int) -> Top:
        """The largest of `count`, and the sum of the others."""
        return self._retried(lambda segments: _top(by, query, segments, most), query)

    def oldest(self) -> float | None:
        """The time of the first mail; None if there is none."""
        return self._retried(_oldest, HistoryQuery())

    def _retried(self, search: Callable[[list[Segment]], T], query: HistoryQuery) -> T:
        """Repeats the search until no segment was finished meanwhile: what was in a live one could then be missed."""
        problem = "its files keep changing"
        for _ in range(_RETRIES):
            segments = self._segments(query)
            try:
                found = search(segments)
            except _Changing as exc:
                problem = str(exc) or problem
                time.sleep(_RETRY_S)
                continue
            if not {path for _, _, path in self._segments(query)} - {path for _, _, path in segments}:
                return found
        raise HistoryError(problem)

    def _segments(self, query: HistoryQuery) -> list[Segment]:
        """The segments that may have mails of the time in question."""
        until = _newest(query)
        try:
            segments = segment_files(self._directory)
        except OSError as exc:
            raise HistoryError(exc.strerror or str(exc)) from exc
        return [segment for segment in segments if segment[0] <= until and segment[1] >= (query.since or 0.0)]


def _newest(query: HistoryQuery) -> float:
    """The latest time that a mail in question may have."""
    cursor = query.cursor
    return min(query.until or math.inf, cursor[0] if cursor else math.inf)


def _find(query: HistoryQuery, segments: list[Segment], end: float) -> Found:
    found: list[MailEntry] = []
    newest = _newest(query)
    for number, (_, last, path) in enumerate(segments):
        if query.limit and len(found) >= query.limit and found[-1].row.at >= last:
            break
        if number and time.monotonic() > end and last < newest:  # otherwise, continuing would find the same again
            return Found([entry for entry in found if entry.row.at >= last], last)
        found += map(MailEntry.of, _page(path, query))
        found.sort(key=lambda entry: (entry.row.at, entry.row.id), reverse=True)
        del found[query.limit or len(found) :]
    return Found(found)


def _page(path: Path, query: HistoryQuery) -> list[Any]:
    return _with(path, query, lambda connection: read_page(connection, query, is_live(path)))


def _oldest(segments: list[Segment]) -> float | None:
    firsts = []
    for first, _, path in segments:
        found = _read(path, HistoryQuery(), ("SELECT min(at) FROM mail", {})) if is_live(path) else [(first,)]
        firsts += [value for (value,) in found if value is not None]
    return min(firsts, default=None)


def _count(by: By, query: HistoryQuery, segments: list[Segment]) -> list[Sum]:
    mails: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for first, last, path in segments:
        is_whole = (query.since or 0.0) <= first and last <= (query.until or math.inf)
        by_hour = is_whole and not is_live(path) and by not in OF_MAIL and not (has_key(query) or query.before)
        statement = hourly_sums(by, query) if by_hour else sums(by, query, is_live(path))
        for value, number, size in _read(path, query, statement):
            for label in labels_of(by, value):
                mails[label] += number
                sizes[label] += size
    return ordered_sums(by, mails, sizes)


def _top(by: By, query: HistoryQuery, segments: list[Segment], most: int) -> Top:
    if by not in OF_MAIL:  # there are few
        return Top.of(_count(by, query, segments), most)
    with SumsFile() as file:
        for _, _, path in segments:
            _with(path, query, partial(file.add, by=by, query=query, live=is_live(path)))
        return file.top(most)


class _Changing(Exception):
    """A segment was finished or deleted while we searched, or its owner is just about to do it."""


def _read(path: Path, query: HistoryQuery, statement: Statement) -> list[Any]:
    return _with(path, query, lambda connection: connection.execute(*statement).fetchall())


def _with(path: Path, query: HistoryQuery, work: Callable[[sqlite3.Connection], list[Any]]) -> list[Any]:
    try:
        with closing(open_for_reading(path)) as connection:
            add_functions(connection, query)
            if is_live(path) and query.has_addresses:
                odd_addresses.add_table(connection, path)
            return work(connection)
    except (sqlite3.Error, OSError) as exc:
        if not path.exists():
            raise _Changing from None
        if is_live(path) and "no such table" in str(exc):  # the file has only just been created
            return []
        if is_live(path):
            raise _Changing(f"{path.name}: {exc}") from exc
        if is_damage(exc):
            set_aside(path)
            raise _Changing(f"{path.name}: {exc}") from exc
        raise HistoryError(f"{path.name}: {exc}") from exc
