"""Texts that no database stores: NUL and half characters. None of them stops what is written with it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select, update

from bridge.console.audit import Audit
from bridge.console.database import ConsoleStore
from bridge.events.outbox import Entry, Limit, Outbox
from bridge.feedback.report import ReportKind, ReportState
from bridge.feedback.store import ReportStore
from bridge.history.entry import LaterEvent
from bridge.history.postgresql import PostgresHistory
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryStore
from bridge.runtime import database
from bridge.runtime.database import Database
from bridge.runtime.storable import is_storable, storable, storable_row
from tests.history.history_kit import find, mail
from tests.postgresql import fresh_database

ODD = ["a\0b", "a\udcffb", "\ud83d", "\0", "caf\xe9\0\udc80", "\U0001f600\udfff"]
_TABLE = Table("odd", MetaData(), Column("id", Integer, primary_key=True), Column("text", String(20)))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database.file(tmp_path / "odd.sqlite")
    return Database(fresh_database(request.getfixturevalue("postgresql")))


@pytest.fixture
def history(place: Database, tmp_path: Path) -> Iterator[HistoryStore]:
    store = SqliteHistory(tmp_path / "history") if place.is_sqlite else PostgresHistory(place)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\0b", "ab"),
        ("a\udcffb", "a?b"),
        ("\ud83d", "?"),
        ("\0", ""),
        ("caf\xe9", "caf\xe9"),
        ("\U0001f600", "\U0001f600"),
    ],
)
def test_what_becomes_of_a_text(text: str, stored: str) -> None:
    assert storable(text) == stored and is_storable(stored)
    assert storable_row((1, text)) == (1, stored) and storable_row({"x": text}) == {"x": stored}
    assert storable([text, 1]) == [stored, 1]


def test_a_row_without_odd_texts_is_not_copied() -> None:
    row, named = (1, "a", b"\0", None), {"a": "caf\xe9", "b": 1.0}
    assert storable_row(row) is row and storable_row(named) is named


def test_a_statement_of_any_kind_takes_any_text(place: Database) -> None:
    """One row, many rows, a condition; and what was written is found by what was given."""
    engine = place.engine()
    with database.writing(engine) as connection:
        _TABLE.create(connection)
        connection.execute(insert(_TABLE).values(id=100, text="\0"))
        connection.execute(insert(_TABLE), [{"id": number, "text": text} for number, text in enumerate(ODD)])
        connection.execute(update(_TABLE).where(_TABLE.c.text == "a\udcffb").values(text="x\0\udcff"))
        assert connection.execute(select(_TABLE.c.id).where(_TABLE.c.text == "x\0\udcff")).scalars().all() == [1]
        found = connection.execute(select(_TABLE.c.id).where(_TABLE.c.text.in_(["\0", "a\0b"]))).scalars().all()
        assert sorted(found) == [0, 3, 100]
    engine.dispose()


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_mail_does_not_cost_the_others_of_its_batch(history: HistoryStore, odd: str) -> None:
    texts = ("subject", "message_id", "sender", "recipients", "helo", "reply", "verdict", "rule")
    history.append([mail(1), mail(2, **dict.fromkeys(texts, odd)), mail(3)])
    assert find(history) == ["ID0003", "ID0002", "ID0001"]


@pytest.mark.parametrize("odd", ODD)
def test_what_happened_later_was_lost_with_an_odd_name(history: HistoryStore, odd: str) -> None:
    """The operator's name and a receiver's reply may be anything."""
    history.append([mail(1)])
    history.note([LaterEvent(1.0, "ID0001", "released", odd, odd), LaterEvent(2.0, "ID0001", "deleted", "ok", "ok")])
    assert [event.event for event in history.later(["ID0001", odd])] == ["released", "deleted"]


@pytest.mark.parametrize("odd", ODD)
def test_one_odd_event_does_not_stop_the_outbox(place: Database, odd: str) -> None:
    outbox = Outbox(place)
    entries = [Entry("siem", f"id{number}", "mail", odd if number == 1 else "x", 1.0, b"{}") for number in range(3)]
    assert outbox.add(entries, {"siem": Limit(100, 1 << 20)}) == {"siem": 0}
    due = outbox.due("siem", 10)
    assert [entry.id for entry in due] == ["id0", "id1", "id2"]
    outbox.settle("siem", [due[0].seq], [], odd)
    assert [state.waiting for state in outbox.states()] == [2]
    outbox.close()


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_person_reports_a_mail_once(place: Database, odd: str) -> None:
    store = ReportStore(place, 3600.0)
    assert store.begin("MAIL", odd, ReportKind.SPAM)
    store.finish("MAIL", odd, ReportKind.SPAM, ReportState.LEARNED)
    assert not store.begin("MAIL", odd, ReportKind.SPAM)
    store.close()


@pytest.mark.parametrize("odd", ODD)
def test_an_action_with_odd_words_is_in_the_audit_log(place: Database, odd: str) -> None:
    store = ConsoleStore(place)
    Audit(store).write(None, odd, "sign-in", mail=odd, detail=odd, result=odd)
    assert len(Audit(store).find(limit=5)) == 1
    Audit(store).delete_before(time.time() + 1)
    store.close()
