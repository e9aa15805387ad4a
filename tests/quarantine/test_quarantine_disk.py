"""The disk fails during a release: nothing is sent that cannot be recorded, or recorded that was not sent."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import StoreError, StoreFull
from bridge.quarantine.action_log import log_action
from bridge.quarantine.index_search import Query
from bridge.quarantine.local_store import LocalStore
from bridge.quarantine.quarantine import MailLocked, Quarantine, QuarantineSettings
from bridge.quarantine.release import ReleaseRequest, ReleaseUncertain, release
from bridge.quarantine.usage import Quota
from bridge.runtime.database import Database
from bridge.testing import eventually
from tests.quarantine.quarantine_kit import HEAD, SOON_S, Taker, make_tx, thread_is_in


async def kept(tmp_path: Path) -> tuple[Quarantine, str]:
    quarantine = Quarantine(QuarantineSettings(tmp_path / "q", Database.file(tmp_path / "state.sqlite")))
    tx = make_tx()
    await quarantine.keep(tx, HEAD, {})
    return quarantine, tx.id


def fail_fsync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def failing(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", failing)


def states(quarantine: Quarantine) -> list[str]:
    return [mail.state for mail in quarantine.search(Query())]


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, StoreFull), (errno.EIO, StoreError)])
async def test_a_release_that_cannot_be_recorded_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    """Otherwise the next operator would send it a second time."""
    quarantine, mail_id = await kept(tmp_path)
    hop = Taker()
    fail_fsync(monkeypatch, number)
    with pytest.raises(kind):
        await release(quarantine, mail_id, hop, ReleaseRequest("me"))
    monkeypatch.undo()
    assert not hop.taken and states(quarantine) == ["kept"]
    assert sorted(path.suffix for path in (tmp_path / "q").iterdir()) == [".eml", ".json"]
    await release(quarantine, mail_id, hop, ReleaseRequest("me"))
    assert len(hop.taken) == 1 and states(quarantine) == ["released"]


async def test_a_disk_failure_after_the_delivery_shows_the_release_as_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that the mail was delivered, and the list shows that the release was interrupted."""
    quarantine, mail_id = await kept(tmp_path)
    hop = Taker()
    hop.before.append(lambda: fail_fsync(monkeypatch, errno.EIO))
    with pytest.raises(StoreError, match="it was delivered"):
        await release(quarantine, mail_id, hop, ReleaseRequest("me"))
    monkeypatch.undo()
    assert len(hop.taken) == 1 and states(quarantine) == ["interrupted"]


async def test_cancelled_in_the_middle_a_release_is_interrupted_and_gives_back_its_claim(tmp_path: Path) -> None:
    quarantine, mail_id = await kept(tmp_path)
    hop = Taker()

    def stop() -> None:
        raise asyncio.CancelledError

    hop.before.append(stop)
    with pytest.raises(asyncio.CancelledError):
        await release(quarantine, mail_id, hop, ReleaseRequest("me"))
    assert states(quarantine) == ["interrupted"]
    hop.before.clear()
    with pytest.raises(ReleaseUncertain):
        await release(quarantine, mail_id, hop, ReleaseRequest("me"))
    await release(quarantine, mail_id, hop, ReleaseRequest("me", even_if_unsure=True))
    assert states(quarantine) == ["released"]


async def test_a_cancelled_release_holds_its_lock_until_the_disk_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process could write the same record otherwise."""
    quarantine, mail_id = await kept(tmp_path)
    begun, answers, write = threading.Event(), threading.Event(), quarantine.write_releases

    def hang(*arguments: Any) -> None:
        begun.set()
        answers.wait(SOON_S)
        write(*arguments)

    monkeypatch.setattr(quarantine, "write_releases", hang)
    releasing = asyncio.create_task(release(quarantine, mail_id, Taker(), ReleaseRequest("me")))
    await eventually(begun.is_set, "the attempt to be recorded")
    for _ in range(2):
        releasing.cancel()
        await asyncio.sleep(0)
        with pytest.raises(MailLocked), quarantine.lock(mail_id):
            pass
    answers.set()
    with pytest.raises(asyncio.CancelledError):
        await releasing
    assert states(quarantine) == ["interrupted"]
    with quarantine.lock(mail_id):
        pass


async def test_a_record_left_incomplete_by_a_crash_does_no_harm(tmp_path: Path) -> None:
    quarantine, mail_id = await kept(tmp_path)
    (tmp_path / "q" / f".tmp-{mail_id}.releases").write_text("[")
    await release(quarantine, mail_id, Taker(), ReleaseRequest("me"))
    assert states(quarantine) == ["released"]


async def test_the_daemon_can_use_files_that_root_creates(tmp_path: Path) -> None:
    """Files that root makes belong to the directory's owner."""
    quarantine, mail_id = await kept(tmp_path)
    if os.geteuid() == 0:
        for path in (tmp_path, tmp_path / "q"):
            os.chown(path, 65534, 65534)
    (tmp_path / "state.sqlite").unlink()
    await release(quarantine, mail_id, Taker(), ReleaseRequest("me"))
    log_action(tmp_path / "q", "released", mail_id, "me")
    made = [*tmp_path.glob("state.sqlite*"), tmp_path / "q" / "actions.log", tmp_path / "q" / f"{mail_id}.releases"]
    assert len(made) >= 3
    assert {path.stat().st_uid for path in made} == {tmp_path.stat().st_uid}


def test_only_stored_mail_counts_towards_the_limit(tmp_path: Path) -> None:
    """A failed mail frees its reservation, and mail removed by others no longer counts before a refusal."""
    (tmp_path / "A1.eml").write_bytes(b"x" * 60)
    (tmp_path / ".tmp-B1.eml").write_bytes(b"x" * 1000)
    quota = Quota(lambda: LocalStore(tmp_path).usage().size_bytes, 100, 60.0)
    quota.reserve(40)
    with pytest.raises(StoreFull):
        quota.reserve(1)
    quota.settle(40, is_stored=False)
    quota.reserve(40)
    quota.settle(40, is_stored=True)
    with pytest.raises(StoreFull):
        quota.reserve(1)
    (tmp_path / "A1.eml").unlink()
    quota.recount()
    quota.reserve(100)


async def test_a_client_that_disconnected_during_the_count_left_its_bytes_reserved(tmp_path: Path) -> None:
    """An empty quarantine was full for ever: nothing was stored, and nothing gave the bytes back."""
    quarantine = Quarantine(QuarantineSettings(tmp_path / "q", max_size=1500))
    quarantine.clean()
    quota = quarantine._quota
    for _ in range(3):
        tx = make_tx(b"x" * 600)
        with quota._counting:  # as if another mail's thread were counting
            keeping = asyncio.ensure_future(quarantine.keep(tx, HEAD, {}))
            await eventually(lambda: thread_is_in(Quota.reserve), "the thread that waits for the count")
            keeping.cancel()
            await asyncio.wait([keeping], timeout=0.05)
            assert not keeping.done()  # it waits for its thread
        with pytest.raises(asyncio.CancelledError):
            await keeping
    assert not list((tmp_path / "q").iterdir())
    await quarantine.keep(make_tx(b"x" * 600), HEAD, {})


def test_the_event_loop_waited_for_the_count_of_another_mail(tmp_path: Path) -> None:
    """A mail that has been stored is settled at once, however long the files of the quarantine are counted."""
    counting, go_on = threading.Event(), threading.Event()

    def count() -> int:
        counting.set()
        assert go_on.wait(60)
        return 10

    quota = Quota(count, 100, 60.0)
    go_on.set()
    quota.reserve(40)
    quota.recount()
    counting.clear()
    go_on.clear()
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(quota.reserve, 40)
        assert counting.wait(60)
        quota.settle(40, is_stored=True)  # meanwhile: the count may have missed it
        go_on.set()
        second.result(60)
    quota.reserve(10)
    with pytest.raises(StoreFull, match="50 of 100"):
        quota.reserve(1)


def test_without_a_limit_nothing_is_counted(tmp_path: Path) -> None:
    quota = Quota(lambda: LocalStore(tmp_path / "nowhere").usage().size_bytes, None, 60.0)
    for _ in range(2):
        quota.reserve(1 << 40)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("first", [b" a", b"\ta", b" " + b"a" * (2 << 20)])
async def test_a_first_line_with_white_space_continued_our_field_if_it_was_long(tmp_path: Path, first: bytes) -> None:
    """`X-Scan-Released` is put in front of a released mail, and a first line of 2 MiB became part of it."""
    quarantine = Quarantine(tmp_path / "q")
    tx = make_tx(first + b"\r\nSubject: x\r\n\r\nbody\r\n")
    await quarantine.keep(tx, b"", {})
    taker = Taker()
    with pytest.raises(StoreError, match="white space"):
        await release(quarantine, tx.id, taker, ReleaseRequest("me"))
    assert not taker.taken
