"""Files that a thread writes: always complete for a reader, whatever the disk does."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.errors import Saturated
from bridge.mail.message import Message, Spool
from bridge.mail.spool import DiskLimits, SpoolDisk
from bridge.testing import until
from tests.quarantine.small_disk import small_disk

KiB = 1024


class HangingDisk(SpoolDisk):
    """Writes nothing until it is told to."""

    def __init__(self, limits: DiskLimits | None = None) -> None:
        super().__init__(limits)
        self.asked = threading.Event()
        self.goes_on = threading.Event()

    def write(self, descriptor: int, chunk: bytes) -> None:
        self.asked.set()
        assert self.goes_on.wait(60)
        super().write(descriptor, chunk)


@contextmanager
def hanging(directory: Path, limits: DiskLimits | None = None) -> Iterator[tuple[HangingDisk, Spool]]:
    disk = HangingDisk(limits)
    try:
        yield disk, Spool(1 << 24, memory_per_mail=10, directory=str(directory), disk=disk)
    finally:
        disk.goes_on.set()


def content(message: Message) -> bytes:
    return b"".join(message.chunks())


def deleted_files(directory: Path) -> int:
    """Open files without a name in it."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{directory}/")
        except FileNotFoundError:
            continue
    return found


def test_a_mail_can_be_read_while_its_disk_hangs(tmp_path: Path) -> None:
    """Nothing was written yet, then a part, then all of it: the reader sees the same."""
    blocks = [bytes([number]) * 5000 for number in range(20)]
    with hanging(tmp_path) as (disk, spool):
        message = Message(spool)
        for block in blocks[:10]:
            message.write(block)
        assert disk.asked.wait(60)
        reader = message.chunks()
        first = next(reader)
        assert content(message) == b"".join(blocks[:10]) and disk.unwritten == 50_000
        disk.goes_on.set()
        for block in blocks[10:]:
            message.write(block)
            assert len(content(message)) % 5000 == 0
        until(lambda: not disk.unwritten, "all blocks to be written")
        assert content(message) == b"".join(blocks)
        assert first + b"".join(reader) == b"".join(blocks[:10])
        with message.original() as whole:
            assert whole[:] == b"".join(blocks)
        message.close()
        until(lambda: not deleted_files(tmp_path), "the file to be closed")


def test_a_mail_that_ends_while_its_disk_hangs_leaves_nothing(tmp_path: Path) -> None:
    """Its memory is free at once, and its file is closed once the disk answers."""
    with hanging(tmp_path) as (disk, spool):
        messages = [Message(spool) for _ in range(10)]
        for message in messages:
            message.write(b"x" * KiB)
        assert disk.asked.wait(60)
        for message in messages:
            message.close()
        assert spool.in_use == disk.unwritten == 0 and content(messages[0]) == b""
        disk.goes_on.set()
        until(lambda: not deleted_files(tmp_path), "the files to be closed")
        last = Message(spool)
        last.write(b"y" * KiB)
        until(lambda: not disk.unwritten, "the disk to be used again")
        assert content(last) == b"y" * KiB
        last.close()


def test_what_a_hanging_disk_keeps_in_memory_has_a_limit(tmp_path: Path) -> None:
    with hanging(tmp_path, DiskLimits(max_unwritten=64 * KiB)) as (_, spool):
        first, second = Message(spool), Message(spool)
        for _ in range(6):
            first.write(b"x" * 10 * KiB)
        with pytest.raises(OSError, match="cannot keep up"):
            second.write(b"x" * 10 * KiB)
        second.close()
        first.close()
        third = Message(spool)
        third.write(b"x" * 10 * KiB)
        third.close()
    assert spool.in_use == 0


def test_a_disk_that_hangs_is_noticed(tmp_path: Path) -> None:
    with hanging(tmp_path, DiskLimits(hangs_after_s=0.05)) as (disk, spool):
        assert not disk.hangs_s()
        message = Message(spool)
        message.write(b"x" * KiB)
        until(lambda: disk.hangs_s() > 0.05, "the disk to be noticed")
        disk.goes_on.set()
        until(lambda: not disk.hangs_s(), "the disk to be well again")
        message.close()


def test_a_mail_is_read_from_the_page_cache_while_the_disk_hangs(tmp_path: Path) -> None:
    """Its file is complete; the disk hangs with another mail."""
    with hanging(tmp_path, DiskLimits(hangs_after_s=0.0)) as (disk, spool):
        complete, other = Message(spool), Message(spool)
        disk.goes_on.set()
        complete.write(b"x" * 600 * KiB)
        until(lambda: not disk.unwritten, "the mail to be written")
        disk.goes_on.clear()
        disk.asked.clear()
        other.write(b"y" * KiB)
        assert disk.asked.wait(60) and disk.hangs_s()
        assert content(complete) == b"x" * 600 * KiB
        complete.close()
        other.close()


def test_a_full_disk_refuses_the_rest_of_a_mail(tmp_path: Path) -> None:
    """What was received until then is still there; a mail that was already complete is not affected."""
    with small_disk(tmp_path / "small", 32 * KiB) as place:
        spool = Spool(1 << 24, memory_per_mail=10, directory=str(place), disk=SpoolDisk())
        message, received = Message(spool), b""

        def is_refused() -> bool:
            nonlocal received
            try:
                message.write(b"x" * KiB)
            except OSError:
                return True
            received += b"x" * KiB
            return False

        until(is_refused, "the disk to be full")
        assert len(received) > 16 * KiB and content(message) == received
        message.close()
        until(lambda: not deleted_files(place), "the file to be closed")


def test_the_limit_of_all_mail_applies_first(tmp_path: Path) -> None:
    spool = Spool(100, memory_per_mail=10, directory=str(tmp_path), disk=SpoolDisk())
    message = Message(spool)
    message.write(b"x" * 100)
    with pytest.raises(Saturated):
        message.write(b"x")
    message.close()
    assert spool.in_use == 0


async def test_a_slow_disk_is_not_waited_for_forever(tmp_path: Path) -> None:
    """No single write took long enough to be called a hang, and the mail waited without a limit."""
    with hanging(tmp_path, DiskLimits(hangs_after_s=600.0, max_wait_s=0.05)) as (disk, spool):
        message = Message(spool)
        for _ in range(3):
            message.write(b"x" * 5000)
        assert not await asyncio.wait_for(message.is_kept(), 30)
        assert not await asyncio.wait_for(message.is_kept(), 30)
        with pytest.raises(OSError, match="cannot keep up"):
            message.write(b"x")
        assert content(message) == b"x" * 15_000
        message.close()
        disk.goes_on.set()
        until(lambda: not deleted_files(tmp_path), "the file to be closed")


async def test_a_mail_for_which_no_thread_starts_is_deferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its last block nothing started one again, and the mail waited for as long as its client did."""
    disk = SpoolDisk(DiskLimits(max_wait_s=0.05))
    spool = Spool(1 << 24, memory_per_mail=10, directory=str(tmp_path), disk=disk)
    message = Message(spool)
    with monkeypatch.context() as patch:

        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", refuse)
        message.write(b"x" * KiB)
    assert not await asyncio.wait_for(message.is_kept(), 30)
    message.close()
    other = Message(spool)
    other.write(b"y" * KiB)
    disk.limits = DiskLimits(max_wait_s=60.0)
    assert await other.is_kept() and content(other) == b"y" * KiB
    other.close()
    assert disk.unwritten == spool.in_use == 0


@pytest.mark.parametrize("has_flag", [True, False])
def test_a_file_system_that_can_only_wait_is_not_read_while_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_flag: bool
) -> None:
    """NFS, which cannot read from the page cache alone, was taken for a file system in memory, and stopped all mail."""
    limits = DiskLimits(hangs_after_s=0.0, in_memory=frozenset())  # wherever the tests' directory is

    def refuse(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "as NFS says")

    with hanging(tmp_path, limits) as (disk, spool):
        complete, other = Message(spool), Message(spool)
        disk.goes_on.set()
        complete.write(b"x" * KiB)
        until(lambda: not disk.unwritten, "the mail to be written")
        disk.goes_on.clear()
        disk.asked.clear()
        other.write(b"y" * KiB)
        assert disk.asked.wait(60) and disk.hangs_s()
        with monkeypatch.context() as patch:
            if has_flag:
                patch.setattr(os, "preadv", refuse)
            else:
                patch.delattr(os, "RWF_NOWAIT")
            with pytest.raises(OSError, match="is not responding") as caught:
                content(complete)
        assert caught.value.errno == errno.EIO
        complete.close()
        other.close()


def test_a_spool_in_memory_is_read_while_its_disk_seems_to_hang(tmp_path: Path) -> None:
    """Such a file system cannot read from the page cache alone either, but it has no disk."""
    limits = DiskLimits(hangs_after_s=0.0)
    with small_disk(tmp_path / "small", 1024 * KiB) as place, hanging(place, limits) as (disk, spool):
        complete, other = Message(spool), Message(spool)
        disk.goes_on.set()
        complete.write(b"x" * KiB)
        until(lambda: not disk.unwritten, "the mail to be written")
        disk.goes_on.clear()
        disk.asked.clear()
        other.write(b"y" * KiB)
        assert disk.asked.wait(60) and disk.hangs_s()
        assert content(complete) == b"x" * KiB
        complete.close()
        other.close()
        disk.goes_on.set()
        until(lambda: not deleted_files(place), "the files to be closed")


def test_a_mail_that_is_closed_under_its_reader_is_not_a_shorter_mail(tmp_path: Path) -> None:
    """Its reader saw the end of the content where there was none."""
    file = Spool(1 << 24, directory=str(tmp_path)).make_file()
    file.write(b"x" * 600 * KiB)
    reader = file.read(0)
    assert len(next(reader)) == 256 * KiB
    file.close()
    with pytest.raises(OSError, match="the mail is closed"):
        next(reader)
    with pytest.raises(OSError, match="the mail is closed"):
        file.write(b"x")
