"""A Maildir as the next hop."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge.mail.next_hop import NextHopError
from bridge.mail.reply import Reply
from bridge.relay import client_replies, maildir
from bridge.relay.maildir import Maildir
from tests.quarantine.small_disk import files, small_disk
from tests.relay.scripted_hop import HEAD, make_tx, soon

CONTENT = b"Subject: x\r\n\r\n.dot\r\n\xe9 8 bit\r\nno end"


async def test_a_mail_arrives_in_new_byte_for_byte(tmp_path: Path) -> None:
    """With CRLF line ends, after the envelope addresses and our header fields."""
    maildir = Maildir(tmp_path / "Maildir", "host/1:a")
    tx = make_tx(CONTENT, ("b@example.org", "c@example.org"))
    done = await maildir.deliver(tx, HEAD, soon())
    assert done.reply == Reply(250, "2.0.0", f"Ok: queued as {tx.id}")
    assert done.queue_id == tx.id
    (path,) = (tmp_path / "Maildir" / "new").iterdir()
    assert path.name.endswith(rf".{tx.id}.host\0571\072a")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == (
        b"Return-Path: <a@example.org>\r\nX-Original-To: b@example.org\r\nX-Original-To: c@example.org\r\n"
        + HEAD
        + CONTENT
    )
    assert sorted(p.name for p in (tmp_path / "Maildir").iterdir()) == ["cur", "new", "tmp"]
    await maildir.close()


async def test_the_second_of_two_mails_with_one_name_replaced_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both clients got 250."""
    monkeypatch.setattr(maildir, "time", SimpleNamespace(time=lambda: 1.5))
    first, second = make_tx(b"the first"), make_tx(b"the second")
    await Maildir(tmp_path, "h").deliver(first, HEAD, soon())
    await Maildir(tmp_path, "h").deliver(replace(second, id=first.id), HEAD, soon())
    found = {path.read_bytes()[-5:]: path.name for path in (tmp_path / "new").iterdir()}
    assert found.keys() == {b"first", b"econd"} and files(tmp_path / "tmp") == []
    assert found[b"first"] == f"1.{first.id}.h" and re.fullmatch(rf"1\.{first.id}_\w{{8}}\.h", found[b"econd"])


async def test_the_null_sender_and_a_large_mail(tmp_path: Path) -> None:
    content = [os.urandom(100_000) for _ in range(30)]
    await Maildir(tmp_path, "h").deliver(make_tx(content, sender=""), HEAD, soon())
    (path,) = (tmp_path / "new").iterdir()
    top = b"Return-Path: <>\r\nX-Original-To: b@example.org\r\n" + HEAD
    assert path.read_bytes() == top + b"".join(content)


async def test_a_line_end_in_an_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NextHopError) as caught:
        await Maildir(tmp_path, "h").deliver(make_tx(sender="a\r\nX: y@example.org"), HEAD, soon())
    assert caught.value.reply.code == 553
    assert files(tmp_path) == []


@pytest.mark.parametrize("inodes", [0, 5])
async def test_a_full_disk_is_a_452(tmp_path: Path, inodes: int) -> None:
    with small_disk(tmp_path / "disk", inodes=inodes) as disk:
        content = b"x" if inodes else b"x" * 200_000
        with pytest.raises(NextHopError) as caught:
            for _ in range(10):
                await Maildir(disk / "Maildir", "h").deliver(make_tx(content), HEAD, soon())
        assert (caught.value.reply.code, caught.value.reply.status) == (452, "4.3.1")
        assert not [name for name in files(disk) if "tmp" in name]


async def test_any_other_trouble_is_a_451_without_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    maildir = Maildir(tmp_path / "file" / "Maildir", "h")
    for attempt in (maildir.deliver(make_tx(), HEAD, soon()), maildir.probe()):
        with pytest.raises(NextHopError) as caught:
            await attempt
        assert (caught.value.reply.code, caught.value.reply.status) == (451, "4.3.0")
        assert str(tmp_path) not in str(caught.value.reply)
        assert str(tmp_path) in str(caught.value)


async def test_after_the_deadline_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(NextHopError) as caught:
        await Maildir(tmp_path, "h").deliver(make_tx(), HEAD, asyncio.get_running_loop().time())
    assert caught.value.reply == client_replies.LATE
    assert files(tmp_path) == []


async def test_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    assert await Maildir(tmp_path / "Maildir", "h").probe() == ("MAILDIR",)
    assert files(tmp_path) == []


async def test_cancelled_while_writing_leaves_no_half_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is closed once the caller has ended; the thread must have stopped by then."""
    writing, go_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow_disk(fd: int) -> None:
        writing.set()
        assert go_on.wait(60)
        fsync(fd)

    maildir = Maildir(tmp_path, "h")
    await maildir.probe()
    monkeypatch.setattr(os, "fsync", slow_disk)
    tx = make_tx([b"x" * 100_000] * 10)
    task = asyncio.create_task(maildir.deliver(tx, HEAD, soon()))
    assert await asyncio.to_thread(writing.wait, 60)
    for _ in range(2):
        task.cancel()
        await asyncio.wait([task], timeout=0.05)
        assert not task.done()  # it waits for its thread
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert files(tmp_path) == []


async def test_a_directory_that_cannot_be_fsynced_holds_no_mail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 250 would promise a durable mail that the disk does not have."""
    fsync = os.fsync

    def failing(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "I/O error")
        fsync(fd)

    maildir = Maildir(tmp_path, "h")
    await maildir.probe()
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(NextHopError) as caught:
        await maildir.deliver(make_tx(), HEAD, soon())
    assert (caught.value.reply.code, caught.value.reply.status) == (451, "4.3.0")
    assert files(tmp_path) == []
