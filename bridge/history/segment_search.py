"""Searching the segments: the newest first, one after the other, until the page is full.

A finished segment is searched by its indexes; a live one has none and is read from end to end. If a segment is
finished or deleted while we search, the search begins again, because its file has another name now.
"""

from __future__ import annotations

import math
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, TypeVar

from bridge.history.conditions import common_conditions, common_text
from bridge.history.entry import Kind, MailEntry, Row, address_keys, key_of, storable
from bridge.history.query import WORD, By, HistoryQuery, Sum
from bridge.history.segments import is_damage, is_live, open_for_reading, segment_files, set_aside
from bridge.history.store import HistoryError
from bridge.history.sums import labels_of, ordered_sums

_COLUMNS = ", ".join([*(f'mail."{name}"' for name in Row._fields), *(f"kind.{name}" for name in Kind._fields)])
_MAILS = "mail JOIN kind ON kind.number = mail.kind"
_HOURS = "hourly JOIN kind ON kind.number = hourly.kind"
_OF_KIND: tuple[By, ...] = ("action", "decision", "rule", "tag", "listener", "tenant")
_OF_MAIL: tuple[By, ...] = ("client", "sender", "recipient")
_RETRIES = 50
_RETRY_S = 0.01

T = TypeVar("T")
Statement = tuple[str, dict[str, Any]]
Segment = tuple[float, float, Path]  # the times of its first and last mail


class SegmentSearch:
    """Reads the segments of one directory. Every method may raise HistoryError."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, query: HistoryQuery) -> list[MailEntry]:
        return self._retried(lambda segments: _find(query, segments), query)

    def count(self, by: By, query: HistoryQuery) -> list[Sum]:
        """Numbers of mails and bytes by this property: the largest first; hours and days in order."""
        return self._retried(lambda segments: _count(by, query, segments), query)

    def oldest(self) -> float | None:
        """The time of the first mail; None if there is none."""
        return self._retried(_oldest, HistoryQuery())

    def _retried(self, search: Callable[[list[Segment]], T], query: HistoryQuery) -> T:
        """Until no segment was finished meanwhile: what was in a live one could then be missed."""
        problem = "its files change all the time"
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
        """Those that may have mails of the time in question."""
        cursor = query.cursor
        until = min(query.until or math.inf, cursor[0] if cursor else math.inf)
        try:
            segments = segment_files(self._directory)
        except OSError as exc:
            raise HistoryError(exc.strerror or str(exc)) from exc
        return [segment for segment in segments if segment[0] <= until and segment[1] >= (query.since or 0.0)]


def _find(query: HistoryQuery, segments: list[Segment]) -> list[MailEntry]:
    found: list[MailEntry] = []
    for _, last, path in segments:
        if query.limit and len(found) >= query.limit and found[-1].row.at >= last:
            break
        found += map(MailEntry.of, _read(path, query, _page(query, is_live(path))))
        found.sort(key=lambda entry: (entry.row.at, entry.row.id), reverse=True)
        del found[query.limit or len(found) :]
    return found


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
        by_hour = is_whole and not is_live(path) and by not in _OF_MAIL and not (_has_key(query) or query.before)
        statement = _hourly_sums(by, query) if by_hour else _sums(by, query, is_live(path))
        for value, number, size in _read(path, query, statement):
            for label in labels_of(by, value):
                mails[label] += number
                sizes[label] += size
    return ordered_sums(by, mails, sizes)


class _Changing(Exception):
    """A segment was finished or deleted while we searched, or its owner is just about to do it."""


def _read(path: Path, query: HistoryQuery, statement: Statement) -> list[Any]:
    try:
        with closing(open_for_reading(path)) as connection:
            _add_functions(connection, query)
            return connection.execute(*statement).fetchall()
    except (sqlite3.Error, OSError) as exc:
        if not path.exists():
            raise _Changing from None
        if is_live(path) and "no such table" in str(exc):  # it was only just created
            return []
        if is_live(path):
            raise _Changing(f"{path.name}: {exc}") from exc
        if is_damage(exc):
            set_aside(path)
            raise _Changing(f"{path.name}: {exc}") from exc
        raise HistoryError(f"{path.name}: {exc}") from exc


# Statements. Values are never part of the text.


def _page(query: HistoryQuery, live: bool) -> Statement:
    """In no order. Rows are wide, so those of the page are chosen before they are read.

    A key is looked up in its own index; the plus keeps SQLite from reading all mails in their order instead.
    """
    where, values = _conditions(query, live)
    plus = "+" if _has_key(query) else ""
    limit = f" LIMIT {query.limit:d}" if query.limit else ""
    chosen = f"SELECT rowid FROM mail WHERE {where} ORDER BY {plus}at DESC, {plus}id DESC{limit}"  # noqa: S608
    return f"SELECT {_COLUMNS} FROM {_MAILS} WHERE mail.rowid IN ({chosen})", values  # noqa: S608


def _sums(by: By, query: HistoryQuery, live: bool) -> Statement:
    where, values = _conditions(query, live)
    hour = "CAST(mail.at / 3600 AS INTEGER)"
    label = {"hour": hour, "day": f"{hour} / 24", "tag": "kind.tags", "recipient": "mail.recipients"}.get(
        by, f"kind.{by}" if by in _OF_KIND else f"mail.{by}"
    )
    counted = "sum(mail.mails), sum(mail.size * mail.mails)"
    chosen = f"SELECT rowid FROM mail WHERE {where}"  # noqa: S608
    mails = f"{_MAILS} WHERE mail.rowid IN ({chosen})" if where != "1" else _MAILS
    return f"SELECT {label}, {counted} FROM {mails} GROUP BY 1", values  # noqa: S608


def _hourly_sums(by: By, query: HistoryQuery) -> Statement:
    conditions, values = _of_kind(query)
    label = {"hour": "hour", "day": "hour / 24", "tag": "kind.tags"}.get(by, f"kind.{by}")
    where = " AND ".join(conditions) or "1"
    values = {name: storable(value) for name, value in values.items()}
    return f"SELECT {label}, sum(hourly.mails), sum(hourly.size) FROM {_HOURS} WHERE {where} GROUP BY 1", values  # noqa: S608


def _has_key(query: HistoryQuery) -> bool:
    """Whether more than kinds and times are asked for."""
    return bool(
        query.id or query.what or query.attempt or query.sender is not None or query.recipient or query.address
        or query.client or query.words
    )  # fmt: skip


def _conditions(query: HistoryQuery, live: bool) -> Statement:
    """About the table `mail`."""
    conditions, values = common_conditions(query, lambda name: f":{name}")
    kinds, of_kind = _of_kind(query)
    values |= of_kind
    if kinds:
        conditions.append(f"kind IN (SELECT number FROM kind WHERE {' AND '.join(kinds)})")  # noqa: S608
    conditions += _of_addresses(query, values, live)
    conditions += _of_client(query, values)
    conditions += _of_subject(query, values, live)
    return " AND ".join(conditions) or "1", {name: storable(value) for name, value in values.items()}


def _of_subject(query: HistoryQuery, values: dict[str, Any], live: bool) -> Iterator[str]:
    if query.words and live:
        yield from (f"subject LIKE '%{word}%'" for word, _ in query.words if word.isascii())  # letters and digits
        yield "has_words(subject)"
    elif query.words:
        values["words"] = " ".join(f'"{word}"{"*" if is_beginning else ""}' for word, is_beginning in query.words)
        yield "rowid IN (SELECT rowid FROM words WHERE words MATCH :words)"


def _of_kind(query: HistoryQuery) -> tuple[list[str], dict[str, Any]]:
    wanted = {name: getattr(query, name) for name in ("action", "decision", "rule", "listener", "stage")}
    values = {name: value for name, value in wanted.items() if value}
    if query.tenant is not None:
        values["tenant"] = query.tenant
    conditions = [f"kind.{name} = :{name}" for name in values]
    if query.tag:
        conditions.append("has_tag(kind.tags)")
    if query.tenants is not None:
        allowed = {f"tenant_{number}": uid for number, uid in enumerate(sorted(query.tenants))}
        conditions.append(f"kind.tenant IN ({', '.join(f':{name}' for name in allowed)})")
        values |= allowed
    return conditions, values


def _of_addresses(query: HistoryQuery, values: dict[str, Any], live: bool) -> Iterator[str]:
    wanted: dict[str, tuple[str, ...]] = {
        "sender": () if query.sender is None else (key_of("from", query.sender),),
        "recipient": (key_of("to", query.recipient),) if query.recipient else (),
        "address": (key_of("from", query.address), key_of("to", query.address)) if query.address else (),
    }
    for name, keys in wanted.items():
        values |= {f"{name}_{number}": key for number, key in enumerate(keys)}
        names = ", ".join(f":{name}_{number}" for number in range(len(keys)))
        if not names:
            continue
        if live:
            values[f"{name}_part"] = f"%{_part_of(keys[0])}%"
            part = f"LIKE :{name}_part ESCAPE '\\'"  # a cheap test that spares nearly all calls of the other
            yield f"(sender {part} OR recipients {part}) AND has_key(sender, recipients, {names})"
        else:
            yield f"rowid IN (SELECT mail FROM address WHERE key IN ({names}))"  # noqa: S608


def _part_of(key: str) -> str:
    """A part that every spelling of the address contains; "" if that is not certain."""
    address = key.partition(":")[2]
    local, _, domain = address.rpartition("@")
    part = local or domain
    is_plain = part.isascii() and '"' not in part and "xn--" not in part
    return part.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") if is_plain else ""


def _of_client(query: HistoryQuery, values: dict[str, Any]) -> Iterator[str]:
    if not query.client:
        return
    network = ip_network(query.client, strict=False)
    if network.num_addresses == 1:
        values["client"] = str(network.network_address)
        yield "client = :client"
        return
    if prefix := common_text(network):
        values |= {"client_from": prefix, "client_to": prefix + "~"}
        yield "client BETWEEN :client_from AND :client_to"
    yield "in_network(client)"


def _add_functions(connection: sqlite3.Connection, query: HistoryQuery) -> None:
    words = query.words
    tag = re.compile(".*".join(map(re.escape, query.tag.split("*")))).fullmatch
    network = ip_network(query.client, strict=False) if query.client else None

    def has_words(subject: str) -> bool:
        found = [word.lower() for word in WORD.findall(subject)]
        return all(
            any(part == word or (is_beginning and part.startswith(word)) for part in found)
            for word, is_beginning in words
        )

    def has_tag(tags: str) -> bool:
        return any(part and tag(part) for part in tags.split(","))

    def has_key(sender: str, recipients: str, *keys: str) -> bool:
        return any(key in keys for key in address_keys(sender, recipients.split("\n") if recipients else ()))

    def in_network(client: str) -> bool:
        try:
            return network is not None and ip_address(client) in network
        except ValueError:
            return False

    connection.create_function("has_words", 1, has_words, deterministic=True)
    connection.create_function("has_tag", 1, has_tag, deterministic=True)
    connection.create_function("has_key", -1, has_key, deterministic=True)
    connection.create_function("in_network", 1, in_network, deterministic=True)
