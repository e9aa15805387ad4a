"""Mail with odd addresses and tags: the index takes it, or goes without it, and other mail is not affected."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from bridge.digests.database import DigestStore
from bridge.digests.items import Items
from bridge.digests.people import People
from bridge.quarantine.index import Index
from bridge.quarantine.index_search import Query
from bridge.quarantine.quarantine import Quarantine
from bridge.runtime.database import Database
from tests.postgresql import fresh_database
from tests.quarantine.test_quarantine_index import FACTS, found, keep, place


def _long(length: int, low: int = 0x61, high: int = 0x7A) -> str:
    """Text that PostgreSQL cannot compress: an index takes 2,700 bytes of it."""
    letters = random.Random(length)
    return "".join(chr(letters.randint(low, high)) for _ in range(length))


LONG = {
    "two spellings": '"' + "".join(f"\\{letter}" for letter in _long(1000)) + '"@EXAMPLE.org',
    "characters": f"{_long(800, 0x4E00, 0x9FFF)}@example.org",
    "growing": "\u0130" * 3 + f"{_long(1300, 0x410, 0x42F)}@example.org",
    "surrogates": f"{_long(900)}\udfff\ud800\0{_long(1200)}@example.org",
    "no domain": _long(4000),
}


@pytest.mark.parametrize(
    ("role", "address"),
    [
        pytest.param(
            role, address, id=f"{role}-{name}", marks=[] if name == own or role == "recipient" else pytest.mark.long
        )
        for role, own in (("sender", "two spellings"), ("recipient", ""), ("tag", "no domain"))
        for name, address in LONG.items()
    ],
)
def test_one_long_address_stopped_the_index(
    tmp_path: Path, database: Database, address: str, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    """PostgreSQL refused the row, and with it those of all other mails that were to be added."""
    quarantine = Quarantine(place(tmp_path, database))
    changes: dict[str, Any] = {"sender": {"sender": address}, "recipient": {"recipients": (address, "c@example.org")}}
    facts = FACTS | {"tags": [address]} if role == "tag" else FACTS
    asyncio.run(keep(quarantine, "odd", facts, **changes.get(role, {})))
    asyncio.run(keep(quarantine, "after it"))
    assert Index(database).known().keys() == {mail.id for mail in quarantine.search(Query())}
    assert sorted(found(quarantine)) == ["after it", "odd"] and not caplog.records
    if role == "recipient" and "@" in address:
        assert found(quarantine, recipient=address) == ["odd"]
        assert sorted(found(quarantine, recipient="@example.org")) == ["after it", "odd"]


def test_a_mail_that_the_index_refuses_does_not_keep_others_out(
    tmp_path: Path, postgresql: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason is: the mail is stored, and the others are found."""
    database = Database(fresh_database(postgresql))
    quarantine = Quarantine(place(tmp_path))
    for subject_ in ("a", "odd", "b"):
        asyncio.run(keep(quarantine, subject_))
    Index(database).known()
    engine = database.engine(wait_s=5.0, connections=1)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE quarantine ALTER subject TYPE varchar(2)"))
    engine.dispose()
    other = Quarantine(place(tmp_path, database))
    index = Index(database)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # only the odd one is missing from the second time on
            other.sync(index.another())
    assert len(index.known()) == 2
    assert caplog.text.count("searches will not find") == 1, "each repair logged it again"


@pytest.mark.parametrize("local", [_long(800, 0x4E00, 0x9FFF), f'"{_long(300)} {_long(650, 0x4E00, 0x9FFF)}"'])
def test_a_long_recipient_stopped_the_digests_of_everybody(tmp_path: Path, database: Database, local: str) -> None:
    """It gets none; the others do. What is left of it in the index belongs to nobody."""
    quarantine = Quarantine(place(tmp_path, database))
    asyncio.run(keep(quarantine, recipients=(f"{local}@a.example", "jane@a.example")))
    asyncio.run(keep(quarantine, recipients=("joe@a.example",)))
    items = Items(DigestStore(database), "")
    assert items.refresh(quarantine, People(["a.example"])) == 2
    waiting = [each.person.address for page in items.waiting(time.time()) for each in page]
    assert waiting == ["jane@a.example", "joe@a.example"]
