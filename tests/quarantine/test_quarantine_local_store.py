"""The quarantine's files: complete or absent."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import json
import os
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bridge.errors import StoreError, StoreFull
from bridge.mail.envelope import Recipient
from bridge.mail.session import Client
from bridge.mail.transaction import Transaction
from bridge.quarantine.index_search import Query
from bridge.quarantine.quarantine import Quarantine, QuarantineSettings
from bridge.runtime.database import Database
from bridge.testing import DEADLINES_S, eventually
from tests.event_loops import EACH_LOOP
from tests.quarantine.small_disk import files, small_disk
from tests.relay.scripted_hop import HEAD, make_tx

CONTENT = b"Subject: x\r\n\r\n.dot\r\n\xe9\r\n"


@pytest.fixture(params=EACH_LOOP)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Async tests here run on uvloop; `make test-long` runs them on asyncio's loop as well."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


def mail() -> Transaction:
    people = (Recipient("b@example.org", ("NOTIFY=NEVER",)), Recipient("ü@example.org"))
    client = Client(address="192.0.2.1", helo="<script>\udcff")
    return make_tx(CONTENT, people, "", ("SMTPUTF8",), client)


async def test_a_mail_is_stored_with_its_metadata(tmp_path: Path) -> None:
    tx = mail()
    await Quarantine(tmp_path / "a" / "q").keep(tx, HEAD, {"decision": "quarantine", "tags": ["eicar"]})
    place = tmp_path / "a" / "q"
    assert files(place) == [f"{tx.id}.eml", f"{tx.id}.json"]
    assert (place / f"{tx.id}.eml").read_bytes() == HEAD + CONTENT
    about = json.loads((place / f"{tx.id}.json").read_bytes())
    assert abs(datetime.now(UTC) - datetime.fromisoformat(about.pop("time"))) < timedelta(minutes=1)
    assert about == {
        "id": tx.id,
        "sender": "",
        "recipients": ["b@example.org", "ü@example.org"],
        "mail_parameters": ["SMTPUTF8"],
        "subject": "x",
        "tenant": None,
        "recipient_parameters": [["NOTIFY=NEVER"], []],
        "remote_address": "192.0.2.1",
        "helo": "<script>\udcff",
        "client_named": True,
        "listener": "mx",
        "session": "s1",
        "size": len(CONTENT),
        "head_size": len(HEAD),
        "facts": {"decision": "quarantine", "tags": ["eicar"]},
    }
    assert place.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in place.iterdir()} == {0o600}


async def test_both_files_are_on_disk_before_they_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content, metadata, rename, rename, directory: in this order."""
    steps: list[str] = []
    fsync = os.fsync

    def recording(fd: int) -> None:
        steps.append("fsync " + Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    def renames(event: str, args: tuple[object, ...]) -> None:
        if event == "os.rename" and str(args[0]).startswith(str(tmp_path)):
            steps.append(f"rename {Path(str(args[0])).name} {Path(str(args[1])).name}")

    sys.addaudithook(renames)
    quarantine = Quarantine(tmp_path / "q")
    quarantine.clean()
    monkeypatch.setattr(os, "fsync", recording)
    tx = mail()
    await quarantine.keep(tx, HEAD, {})
    new_mail, new_about = f".tmp-{tx.id}.eml", f".tmp-{tx.id}.json"
    assert steps == [
        f"fsync {new_mail}",
        f"fsync {new_about}",
        f"rename {new_mail} {tx.id}.eml",
        f"rename {new_about} {tx.id}.json",
        "fsync q",
    ]


async def test_the_second_of_two_mails_with_one_id_replaced_the_first(tmp_path: Path) -> None:
    """Both clients got 250."""
    quarantine = Quarantine(tmp_path / "q")
    first = mail()
    await quarantine.keep(first, HEAD, {})
    with pytest.raises(StoreError, match="File exists"):
        await quarantine.keep(replace(make_tx(b"the second"), id=first.id), HEAD, {})
    assert b"".join(quarantine.chunks(first.id)) == HEAD + CONTENT
    assert files(tmp_path / "q") == [f"{first.id}.eml", f"{first.id}.json"]


async def test_two_mails_with_one_id_at_the_same_time(tmp_path: Path) -> None:
    """One is stored, whole; the others are not."""
    for number in range(20):
        quarantine = Quarantine(tmp_path / "q")
        mails = [replace(make_tx(b"%d " % n * 5000), id=f"SAME{number}") for n in range(5)]
        done = await asyncio.gather(*(quarantine.keep(tx, b"", {}) for tx in mails), return_exceptions=True)
        (kept,) = [tx for tx, result in zip(mails, done, strict=True) if not isinstance(result, BaseException)]
        assert b"".join(quarantine.chunks(kept.id)) == b"".join(kept.message.chunks())
    assert len(files(tmp_path / "q")) == 40


async def test_a_full_disk(tmp_path: Path) -> None:
    """The client receives 452, and no part of the mail is on the disk."""
    with small_disk(tmp_path / "disk") as disk:
        quarantine = Quarantine(disk / "q")
        await quarantine.keep(mail(), HEAD, {})
        before = files(disk)
        with pytest.raises(StoreFull):
            await quarantine.keep(make_tx([b"x" * 1000] * 200), HEAD, {})
        assert files(disk) == before


async def test_a_disk_that_fills_up_with_the_index_on_it(tmp_path: Path) -> None:
    """Every mail that got a 250 is complete and found again; the others left nothing behind."""
    large = make_tx([b"x" * 1000] * 300)  # its own temporary file is not on the small disk
    with small_disk(tmp_path / "disk", size=256 * 1024) as disk:
        quarantine = Quarantine(QuarantineSettings(disk / "q", Database.file(disk / "state.sqlite")))
        quarantine.clean()
        promised = []
        with pytest.raises(StoreFull):
            for _ in range(100):
                tx = make_tx([b"Subject: x\r\n\r\n", b"x" * 4000])
                await quarantine.keep(tx, HEAD, {})
                promised.append(tx.id)
            await quarantine.keep(large, HEAD, {})
        assert promised
        assert files(disk / "q") == sorted(f"{mail_id}.{kind}" for mail_id in promised for kind in ("eml", "json"))
        assert sorted(mail.id for mail in quarantine.search(Query())) == sorted(promised)
        assert [mail.is_damaged for mail in quarantine.search(Query(limit=1))] == [False]


async def test_no_inodes_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", inodes=7) as disk:
        quarantine = Quarantine(disk / "q")
        quarantine.clean()
        kept = 0
        with pytest.raises(StoreFull):
            for _ in range(10):
                await quarantine.keep(mail(), HEAD, {})
                kept += 1
        assert len(files(disk)) == 2 * kept
        assert not [name for name in files(disk) if "tmp" in name]


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_a_failing_fsync_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    calls = 0

    def failing(fd: int) -> None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise OSError(errno.EIO, "I/O error")

    quarantine = Quarantine(tmp_path / "q")
    quarantine.clean()
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreError) as caught:
        await quarantine.keep(mail(), HEAD, {})
    assert not isinstance(caught.value, StoreFull)
    assert calls == number
    assert files(tmp_path) == []


async def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    quarantine = Quarantine(tmp_path / "file" / "q")
    with pytest.raises(StoreError):
        await quarantine.keep(mail(), HEAD, {})
    with pytest.raises(StoreError):
        quarantine.clean()
    with pytest.raises(StoreError):
        await quarantine.purge(1.0)


async def test_an_earlier_mail_is_never_touched_by_a_failing_one(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    tx = mail()
    await quarantine.keep(tx, HEAD, {})
    with pytest.raises(StoreError):
        await quarantine.keep(replace(tx, deadline=time.monotonic()), HEAD, {})
    assert files(tmp_path) == [f"{tx.id}.eml", f"{tx.id}.json"]


async def test_cancelled_while_writing_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def slow_disk(fd: int) -> None:
        writing.set()
        assert go_on.wait(60)

    quarantine = Quarantine(tmp_path)
    monkeypatch.setattr(os, "fsync", slow_disk)
    task = asyncio.create_task(quarantine.keep(mail(), HEAD, {}))
    assert await asyncio.to_thread(writing.wait, 60)
    task.cancel()
    await asyncio.wait([task], timeout=0.05)
    assert not task.done()  # it waits for its thread
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(tmp_path) == []


@pytest.mark.parametrize("hanging", [1, 2, 3], ids=["content", "record", "directory"])
async def test_a_disk_that_hung_stored_a_mail_whose_client_was_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: int
) -> None:
    """The client is answered in time, and when the disk continues, nothing of the mail remains."""
    hangs, answers, real = threading.Event(), threading.Event(), os.fsync

    def hang(fd: int) -> None:
        if next(calls) == hanging:
            hangs.set()
            assert answers.wait(60)
        real(fd)

    place = tmp_path / "q"
    place.mkdir(mode=0o700)
    monkeypatch.setattr(os, "fsync", hang)
    for patience_s in DEADLINES_S:
        calls = itertools.count(1)
        tx = replace(mail(), deadline=time.monotonic() + patience_s)
        with pytest.raises(StoreError, match="deadline passed"):
            await Quarantine(place).keep(tx, HEAD, {})
        tx.message.close()
        if hangs.is_set():
            break
    assert files(place) != []
    answers.set()
    await eventually(lambda: files(place) == [], "the mail to be removed")


async def test_clean_removes_what_a_crash_left(tmp_path: Path) -> None:
    """Complete mails stay; incomplete ones never got a 250."""
    quarantine = Quarantine(tmp_path)
    tx = mail()
    await quarantine.keep(tx, HEAD, {})
    for name in ("A1.eml", "B2.json", ".tmp-C3.eml", ".tmp-C3.json"):
        (tmp_path / name).write_text("half")
    (tmp_path / "notes.txt").write_text("not ours")
    assert quarantine.clean() == 4
    assert files(tmp_path) == sorted([f"{tx.id}.eml", f"{tx.id}.json", "notes.txt"])


def test_clean_does_not_disturb_a_process_that_is_still_writing(tmp_path: Path) -> None:
    """The old process finishes its mail while the new one starts."""
    (tmp_path / ".tmp-A1.eml").write_text("being written")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        assert Quarantine(tmp_path).clean() == 0
    finally:
        os.close(fd)
    assert Quarantine(tmp_path).clean() == 1


async def test_purge_removes_old_mail_and_only_that(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path)
    old, new = mail(), mail()
    await quarantine.keep(old, HEAD, {})
    await quarantine.keep(new, HEAD, {})
    os.utime(tmp_path / f"{old.id}.json", (time.time() - 100, time.time() - 100))
    assert await quarantine.purge(50) == 1
    assert files(tmp_path) == [f"{new.id}.eml", f"{new.id}.json"]
    assert await quarantine.purge(50) == 0


async def test_one_mail_that_could_not_be_removed_kept_all_others_from_being_removed(tmp_path: Path) -> None:
    """Its file had been put there by somebody else, or the disk could not read it: every purge ended there."""
    quarantine = Quarantine(tmp_path)
    for _ in range(9):
        await quarantine.keep(tx := mail(), HEAD, {})
        os.utime(tmp_path / f"{tx.id}.json", (0, 0))
    odd = quarantine.ids()[0]
    (tmp_path / f"{odd}.eml").unlink()
    (tmp_path / f"{odd}.eml").symlink_to("/dev/null")
    with pytest.raises(StoreError, match=odd):
        await quarantine.purge(3600)
    assert quarantine.ids() == [odd]
