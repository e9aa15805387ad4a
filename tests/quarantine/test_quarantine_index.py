"""The index: built from the files, searched, lost and rebuilt; it never makes storing a mail fail."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.errors import StoreError
from bridge.quarantine.index import Index, IndexFailed
from bridge.quarantine.index_search import Query
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings
from bridge.quarantine.record import ReleaseAttempt, subject
from bridge.runtime.database import Database
from tests.postgresql import fresh_database
from tests.quarantine.quarantine_kit import CONTENT, HEAD, desk, make_tx

FACTS: dict[str, object] = {"decision": "quarantine", "tags": ["malware:eicar", "spam"], "reason": "quarantine"}


def place(tmp_path: Path, index: Database | None = None, owner: str = "") -> QuarantineSettings:
    index = index or Database.file(tmp_path / "state.sqlite")
    return QuarantineSettings(tmp_path / "q", index, None, {"tenant.example": "t-1"}, "t-0", owner=owner)


def index_file(where: QuarantineSettings) -> Path:
    assert where.index is not None and where.index.path is not None
    return where.index.path


async def keep(quarantine: Quarantine, subject: str = "x", facts: dict[str, object] = FACTS, **changes: object) -> str:
    tx = make_tx(f"Subject: {subject}\r\n\r\nx\r\n".encode(), **changes)  # type: ignore[arg-type]
    await quarantine.keep(tx, HEAD, facts)
    return tx.id


def found(quarantine: Quarantine, **wanted: object) -> list[str]:
    return [mail.subject for mail in quarantine.search(Query(**wanted))]  # type: ignore[arg-type]


def in_index(path: Path) -> list[str]:
    """The database's own content, without the files."""
    return sorted(Index(Database.file(path)).known())


@pytest.mark.parametrize("others", [("d@elsewhere.example",), ("d@other.example",), ("d@Tenant.Example", "e")])
def test_a_mail_for_several_tenants_belonged_to_that_of_its_first_recipient(
    tmp_path: Path, others: tuple[str, ...]
) -> None:
    """Such a mail arrives while the tenants change. Only operators who see all mail may see all of its recipients."""
    tenants = {"tenant.example": "t-1", "other.example": "t-2"}
    quarantine = Quarantine(replace(place(tmp_path), tenant_by_domain=tenants))
    asyncio.run(keep(quarantine, "shared", recipients=("b@tenant.example", *others)))
    asyncio.run(keep(quarantine, "own", recipients=("b@tenant.example", "c@TENANT.example.")))
    assert found(quarantine, tenants=frozenset(["t-0", "t-1", "t-2"])) == ["own"]
    assert found(quarantine) == ["own", "shared"]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def three(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Quarantine, Quarantine]]:
    """Three different mails, the first one released; with and without an index."""
    index = None
    if request.param == "postgresql":
        index = Database(fresh_database(request.getfixturevalue("postgresql")))
    where = place(tmp_path_factory.mktemp("three"), index)
    quarantine = Quarantine(where)
    first = asyncio.run(keep(quarantine, "a"))
    asyncio.run(keep(quarantine, "b", recipients=("b@TENANT.example", "d@tenant.example")))
    asyncio.run(keep(quarantine, "c", {"reason": "unavailable"}, sender="", recipients=("100%_sure@example.org",)))
    with quarantine.lock(first):
        quarantine.write_releases(first, (ReleaseAttempt("2026-01-01", "me", ("b@example.org",), "250 2.0.0 Ok"),))
    yield quarantine, Quarantine(where.directory)
    asyncio.run(quarantine.close())


@pytest.mark.parametrize(
    ("wanted", "subjects"),
    [
        ({}, ["c", "b", "a"]),
        ({"limit": 2}, ["c", "b"]),
        ({"recipient": "B@"}, ["b", "a"]),
        ({"recipient": "B@Tenant"}, []),
        ({"recipient": "B@tenant.Example."}, ["b"]),
        ({"recipient": "<b@tenant.example>"}, ["b"]),
        ({"recipient": "sure@example.org"}, []),
        ({"recipient": "100%_sure@example.org"}, ["c"]),
        ({"recipient": "100__sure@example.org"}, []),
        ({"recipient": "@Tenant.example"}, ["b"]),
        ({"recipient": "@example"}, []),
        ({"recipient": "tenant"}, ["b"]),
        ({"recipient": "*@example.org"}, ["c", "a"]),
        ({"recipient": "100%_*"}, ["c"]),
        ({"recipient": "b_example"}, []),
        ({"sender": ""}, ["c"]),
        ({"sender": "client.example"}, ["b", "a"]),
        ({"subject": "B"}, ["b"]),
        ({"tenant": "t-1"}, ["b"]),
        ({"tenant": "t-0"}, ["c", "a"]),
        ({"decision": "unavailable"}, ["c"]),
        ({"decision": "quarantine", "tag": "spam"}, ["b", "a"]),
        ({"tag": "malware:*"}, ["b", "a"]),
        ({"tag": "malware"}, []),
        ({"listener": "mx"}, ["c", "b", "a"]),
        ({"listener": "other"}, []),
        ({"since": 0.0, "until": 1.0}, []),
        ({"since": 1.0, "until": 1e12}, ["c", "b", "a"]),
        ({"state": "released"}, ["a"]),
        ({"state": "kept", "tag": "spam"}, ["b"]),
    ],
    ids=str,
)
def test_mail_is_found(three: tuple[Quarantine, Quarantine], wanted: dict[str, object], subjects: list[str]) -> None:
    """By any field; all of them must match; newest first; with or without an index."""
    with_index, without = three
    assert found(with_index, **wanted) == subjects
    assert found(without, **wanted) == subjects


@pytest.mark.parametrize(
    ("wanted", "senders"),
    [
        ("na3@partner.example", []),
        ("anna3@partner.example", ["anna3@partner.example", '"Anna3"@PARTNER.example.']),
        ("anna3@xn--mnchen-3ya.example", ["anna3@m\u00fcnchen.example"]),
        ("anna3@M\u00dcNCHEN.example", ["anna3@m\u00fcnchen.example"]),
        ('"two anna3"@partner.example', ['"two anna3"@partner.example']),
        ("@m\u00fcnchen.example", ["anna3@m\u00fcnchen.example"]),
        ("@partner.example", ["anna3@partner.example", '"Anna3"@PARTNER.example.', '"two anna3"@partner.example']),
        ("*na3@partner.example", ["anna3@partner.example", '"Anna3"@PARTNER.example.']),
    ],
)
async def test_a_whole_address_matches_that_address_only(tmp_path: Path, wanted: str, senders: list[str]) -> None:
    """In any spelling that mail servers take for the same; `delete --sender ann@...` must not take joann@... along."""
    quarantine = Quarantine(place(tmp_path))
    for sender in (
        "anna3@partner.example",
        '"Anna3"@PARTNER.example.',
        "anna3@partner.example.evil.example",
        "anna3@m\u00fcnchen.example",
        '"two anna3"@partner.example',
    ):
        await keep(quarantine, sender=sender)
    assert {mail.envelope.sender for mail in quarantine.search(Query(sender=wanted))} == set(senders)
    await quarantine.close()


@pytest.mark.parametrize("how", ["deleted", "garbage", "damaged page", "emptied", "directory in the way"])
async def test_a_lost_index_is_rebuilt(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    """At the daemon's start or at the next search, whichever comes first."""
    where = place(tmp_path)
    quarantine = Quarantine(where)
    ids = sorted([await keep(quarantine) for _ in range(3)])
    quarantine._index.close()  # type: ignore[union-attr]
    match how:
        case "deleted":
            index_file(where).unlink()
        case "garbage":
            index_file(where).write_bytes(b"this is no database" * 1000)
        case "damaged page":
            content = index_file(where).read_bytes()
            index_file(where).write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
        case "emptied":
            index_file(where).write_bytes(b"")
        case _:
            index_file(where).unlink()
            index_file(where).mkdir()
    assert found(Quarantine(where)) == ["x"] * 3
    fresh = Quarantine(where)
    assert fresh.clean() == 0
    if how != "directory in the way":
        assert in_index(index_file(where)) == ids
    else:
        assert "mail is still stored" in caplog.text
    assert index_file(where).with_name("state.sqlite.damaged").exists() == (how in ("garbage", "damaged page"))


async def test_the_index_follows_what_others_do_with_the_files(tmp_path: Path) -> None:
    where = place(tmp_path)
    quarantine = Quarantine(where)
    first, second, third = await keep(quarantine, "1"), await keep(quarantine, "2"), await keep(quarantine, "3")
    (where.directory / f"{first}.json").unlink()
    to = quarantine.read(second).envelope.addresses
    releases = [{"at": "2026-01-01", "by": "me", "to": to, "reply": "250 2.0.0 Ok"}]
    (where.directory / f"{second}.releases").write_text(json.dumps(releases))
    (where.directory / f"{third}.json").rename(where.directory / f"{third}X.json")
    assert found(quarantine) == ["3", "2"]
    assert found(quarantine, state="released") == ["2"]
    assert await quarantine.purge(3600) == 0
    assert in_index(index_file(where)) == sorted([second, third + "X"])


async def test_an_index_that_disappears_under_a_running_daemon_is_no_longer_used(tmp_path: Path) -> None:
    where = place(tmp_path)
    quarantine = Quarantine(where)
    await keep(quarantine)
    for path in tmp_path.glob("state.sqlite*"):
        path.unlink()
    second = await keep(quarantine)
    assert in_index(index_file(where)) == [second]
    assert len(found(quarantine)) == 2


async def test_a_busy_index_delays_mail_only_briefly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While another process locks the database, mail is stored, one line is logged, and the next search finds it."""
    where = place(tmp_path)
    quarantine = Quarantine(where)
    await keep(quarantine)
    other = sqlite3.connect(index_file(where), isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    await keep(quarantine)
    await keep(quarantine)
    other.execute("ROLLBACK")
    other.close()
    assert len(caplog.records) == 1 and "mail is still stored" in caplog.text
    assert len(in_index(index_file(where))) == 1
    assert len(found(quarantine)) == 3
    assert len(in_index(index_file(where))) == 3


async def test_a_newer_index_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a downgrade, operators still see all mail."""
    where = place(tmp_path)
    quarantine = Quarantine(where)
    await keep(quarantine)
    quarantine._index.close()  # type: ignore[union-attr]
    with sqlite3.connect(index_file(where)) as connection:
        connection.execute("UPDATE quarantine_schema SET version = 99, oldest_reader = 99")
    connection.close()
    with pytest.raises(IndexFailed, match="newer version"):
        Index(where.index).known()
    assert found(Quarantine(where)) == ["x"]
    assert "newer version" in caplog.text
    assert not index_file(where).with_name("state.sqlite.damaged").exists()


async def test_several_processes_share_the_index(tmp_path: Path) -> None:
    """Three processes start together without an index, and each sees every mail."""
    where = place(tmp_path)
    plain = Quarantine(where.directory)
    for _ in range(20):
        await keep(plain)
    program = (
        "import sys; from pathlib import Path; from bridge.runtime.database import Database;"
        "from bridge.quarantine.quarantine import QuarantineSettings, Quarantine, Query;"
        "q = Quarantine(QuarantineSettings(Path(sys.argv[1]), Database.file(Path(sys.argv[2]))));"
        "print(len(q.search(Query())), len(q.search(Query())))"
    )
    command = [sys.executable, "-c", program, str(where.directory), str(index_file(where))]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    assert [process.communicate(timeout=60)[0] for process in processes] == [b"20 20\n"] * 3
    assert len(in_index(index_file(where))) == 20


async def test_a_mail_whose_json_is_damaged_is_still_seen(tmp_path: Path) -> None:
    where = place(tmp_path)
    quarantine = Quarantine(where)
    mail_id = await keep(quarantine)
    for content in (b"", b"{", b"[]", b"\xff", b'{"recipients": 1}', b'{"time": 7, "sender": "", "recipients": []}'):
        (where.directory / f"{mail_id}.json").write_bytes(content)
        mail = quarantine.read(mail_id)
        assert mail.is_damaged and mail.id == mail_id and mail.state == "kept"
    (where.directory / f"{mail_id}.releases").write_bytes(b"{")
    assert [mail.state for mail in quarantine.search(Query())] == ["interrupted"]


async def test_clean_removes_the_releases_of_a_mail_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "A1.releases").write_text("[]")
    quarantine = Quarantine(tmp_path)
    mail_id = await keep(quarantine)
    (tmp_path / f"{mail_id}.releases").write_text("[]")
    assert quarantine.clean() == 1
    assert len(list(tmp_path.iterdir())) == 3
    quarantine.remove(mail_id)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError):
        quarantine.remove(mail_id)


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        (b"From: x\r\nsubject:  hello \r\n world\r\nTo: y\r\n", "hello world"),
        (b"Subject: =?utf-8?q?gr=C3=BC=C3=9Fe?= =?utf-8?b?4oKs?=\r\n", "grüße€"),
        (b"Subject: =?nosuch?q?x?=\r\n", "=?nosuch?q?x?="),
        (b"Subject: =?utf-8?b?!!!?=\r\n", ""),
        (b"Subject: caf\xc3\xa9 \xff\r\n", "café \ufffd"),
        (b"Subject:" + b" x" * 5000 + b"\r\n", "x " * 100),
        (b"X-Subject: no\r\n", ""),
        (b"", ""),
    ],
)
def test_a_subject_is_decoded_for_people(head: bytes, shown: str) -> None:
    """Subjects come from strangers, so no subject may make storing the mail fail."""
    assert subject(head) == shown


async def test_a_full_disk_for_the_index_loses_no_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk has room for the files, but not for the database."""
    where = place(tmp_path)
    quarantine = Quarantine(where)
    await keep(quarantine)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    quarantine._index.close()  # type: ignore[union-attr]
    index_file(where).unlink()
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *a, **k: full() if path == index_file(where) else real(path, *a, **k))
    await keep(quarantine)
    assert len(found(quarantine)) == 2
    monkeypatch.undo()
    quarantine.clean()
    assert len(in_index(index_file(where))) == 2


def test_the_daemon_rebuilds_the_index_at_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with desk(tmp_path) as here:
        first = here.send(CONTENT)
        assert in_index(here.index) == [first]
    for path in here.index.parent.glob("state.sqlite*"):
        path.unlink()
    with desk(tmp_path) as here:
        assert in_index(here.index) == [first]
        second = here.send(CONTENT)
        assert in_index(here.index) == sorted([first, second])
