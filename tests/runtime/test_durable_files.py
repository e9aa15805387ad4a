"""Work in a thread: what it does after its caller has ended does not count."""

from __future__ import annotations

import ast
import asyncio
import math
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.mail.next_hop import NextHopError
from bridge.relay import maildir as relay_maildir
from bridge.relay.maildir import Maildir
from bridge.runtime import durable_files
from bridge.runtime.threads import Threads
from bridge.testing import DEADLINES_S, eventually
from tests.event_loops import EACH_LOOP
from tests.relay.scripted_hop import make_tx

SOURCE = Path(durable_files.__file__).parents[1]
REASON = "can't start new thread"


@pytest.fixture(params=EACH_LOOP)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Async tests here run on uvloop; `make test-long` runs them on asyncio's loop as well."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No thread can be started, as at a pids limit, until `undo`; and none was started before."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(REASON)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.MonkeyPatch.context() as lasting:
        for module in (durable_files, relay_maildir):
            lasting.setattr(module, "_threads", Threads("files", 1))
        yield monkeypatch


async def test_without_a_thread_the_work_never_runs(threadless: pytest.MonkeyPatch) -> None:
    """The pool keeps the work and would run it in its next thread, when the message is already closed."""
    begun: list[str] = []
    with pytest.raises(OSError, match=REASON):
        await durable_files.in_thread(lambda stop: begun.append("too late"), math.inf)
    threadless.undo()
    await durable_files.in_thread(lambda stop: begun.append("in time"), math.inf)
    assert begun == ["in time"]


async def test_a_mail_deferred_for_want_of_a_thread_is_not_delivered_later(
    tmp_path: Path, threadless: pytest.MonkeyPatch
) -> None:
    """Its message is closed by then, so a truncated mail would be delivered."""
    place = tmp_path / "Maildir"
    maildir, tx = Maildir(place, "h"), make_tx(b"Subject: x\r\n\r\n" + b"x" * 5000)
    with pytest.raises(NextHopError) as caught:
        await maildir.deliver(tx, b"", math.inf)
    assert caught.value.reply.code == 451
    tx.message.close()
    threadless.undo()
    await maildir.deliver(make_tx(b"Subject: y\r\n\r\ny\r\n"), b"", math.inf)
    assert [b"Subject: y" in path.read_bytes() for path in (place / "new").iterdir()] == [True]
    assert list((place / "tmp").iterdir()) == []


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_missing_parent_was_writable_for_all_with_umask_0(tmp_path: Path, mask: int) -> None:
    """Only the directory itself is private; others may pass its parents, but never change them."""
    before = os.umask(mask)
    try:
        durable_files.make_directory(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/b/c")]
    assert modes == [0o755 & ~mask, 0o755 & ~mask, 0o700]


def test_every_directory_and_file_is_created_with_an_explicit_mode() -> None:
    """Otherwise the umask decides, and with umask 0 everybody may write to it."""
    found = []
    for path in sorted(set(SOURCE.rglob("*.py")) - set((SOURCE / "testing").iterdir())):
        text = path.read_text()
        if not any(f"{name}(" in text for name in _CREATORS):
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            if _leaves_the_mode_to_the_umask(call):
                found.append(f"{path.relative_to(SOURCE)}:{call.lineno}: {ast.unparse(call)}")
    assert found == []


_CREATORS = ("mkdir", "makedirs", "open", "write_text", "write_bytes", "touch")


def _leaves_the_mode_to_the_umask(call: ast.Call) -> bool:
    last = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if last not in _CREATORS:
        return False
    name, arguments = ast.unparse(call.func), [ast.unparse(argument) for argument in call.args]
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name.endswith((".mkdir", "makedirs")):
        return "mode" not in keywords or keywords.get("parents") == "True" or name.endswith("makedirs")
    if name == "os.open":
        return "O_CREAT" in "".join(arguments) and len(arguments) < 3
    if name.endswith((".write_text", ".write_bytes", ".touch")):
        return True
    if name == "open" or name.endswith(".open"):
        return any(argument.strip("'")[:1] in "wxa" and len(argument) <= 4 for argument in arguments[-1:]) and (
            "opener" not in keywords and "os.devnull" not in arguments
        )
    return False


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "hard link"])
def test_a_file_of_ours_is_an_ordinary_file(tmp_path: Path, kind: str) -> None:
    """Anything else was put there by somebody else."""
    target, path = tmp_path / "target", tmp_path / "there" / "file"
    target.touch()
    path.parent.mkdir()
    match kind:
        case "symlink":
            path.symlink_to(target)
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can own a file in the directory of another user")
            path.hardlink_to(target)
            os.chown(path.parent, 65534, 65534)
    with pytest.raises(OSError):
        durable_files.open_own(path, os.O_WRONLY | os.O_APPEND)


def test_a_file_of_ours_is_created_and_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        os.close(durable_files.open_own(tmp_path / "file", os.O_RDWR))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


class HungDisk:
    """Work that hangs in its only step, and then ends like a write: with a confirmation, or by undoing it."""

    def __init__(self) -> None:
        self.begun, self.answers = threading.Event(), threading.Event()
        self.ended: list[str] = []

    def __call__(self, stop: durable_files.Stop) -> str:
        self.begun.set()
        assert self.answers.wait(60)
        try:
            stop.confirm()
        except durable_files.Stopped:
            self.ended.append("undone")
            raise
        self.ended.append("confirmed")
        return "stored"

    async def release(self, how: str) -> None:
        self.answers.set()
        await eventually(lambda: self.ended == [how], f"the work to be {how}")


async def test_a_disk_that_hung_kept_its_client_waiting_past_the_deadline() -> None:
    """The client gave up, sent the mail again, and later found it stored twice."""
    for patience_s in DEADLINES_S:
        disk = HungDisk()
        with pytest.raises(durable_files.Stopped):
            await durable_files.in_thread(disk, time.monotonic() + patience_s)
        if disk.begun.is_set():
            break
    assert disk.ended == []
    await disk.release("undone")


async def test_a_client_that_left_a_hung_disk_was_never_forgotten() -> None:
    """Its mail, its memory and its task stayed until the disk answered."""
    disk = HungDisk()
    waiting = asyncio.create_task(durable_files.in_thread(disk, math.inf))
    await eventually(disk.begun.is_set, "the work to begin")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert disk.ended == []
    await disk.release("undone")


async def test_a_result_that_is_confirmed_counts() -> None:
    disk = HungDisk()
    waiting = asyncio.create_task(durable_files.in_thread(disk, math.inf))
    await disk.release("confirmed")
    assert await waiting == "stored"


async def test_a_hung_disk_stopped_all_other_work_in_threads() -> None:
    """The event loop's threads hash large mail, and read the structure of others: mail that needs no disk."""
    for patience_s in DEADLINES_S:
        disks, end = [HungDisk() for _ in range(40)], time.monotonic() + patience_s
        waiting = [asyncio.create_task(durable_files.in_thread(disk, end)) for disk in disks]
        found = asyncio.gather(*waiting, return_exceptions=True)
        await eventually(lambda d=disks[0], f=found: d.begun.is_set() or f.done(), "the first work to begin")
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 30) == "done"
        assert {type(exc) for exc in await found} == {durable_files.Stopped}
        if disks[0].begun.is_set():
            break
    assert disks[0].begun.is_set()
    for disk in disks:
        disk.answers.set()
    assert await durable_files.in_thread(lambda stop: "works again", math.inf) == "works again"


async def test_the_jobs_that_callers_of_a_hung_disk_gave_up_piled_up(tmp_path: Path) -> None:
    """Each stayed in the queue until the disk answered. Now, mail beyond the limit gets 451 at once."""
    threads = Threads("maildir", 1, max_waiting=3)
    maildir, disk, begun = Maildir(tmp_path / "Maildir", "h", threads), HungDisk(), []
    hung = asyncio.create_task(durable_files.in_thread(disk, math.inf, threads))
    await eventually(disk.begun.is_set, "the disk to hang")
    for _ in range(3):
        with pytest.raises(durable_files.Stopped):
            await durable_files.in_thread(lambda stop: begun.append("too late"), 0.0, threads)
    for _ in range(20):
        with pytest.raises(NextHopError, match="3 jobs are already waiting for a thread") as caught:
            await maildir.deliver(make_tx(b"Subject: x\r\n\r\n"), b"", math.inf)
        assert caught.value.reply.code == 451
    await disk.release("confirmed")
    assert await hung == "stored"
    await maildir.deliver(make_tx(b"Subject: again\r\n\r\n"), b"", math.inf)
    stored = [path.read_bytes() for path in (tmp_path / "Maildir" / "new").iterdir()]
    assert begun == [] and len(stored) == 1 and b"Subject: again" in stored[0]


def test_a_hung_disk_kept_a_stopped_process_from_ending() -> None:
    program = """
import asyncio, threading, time
from bridge.runtime import durable_files
async def main():
    try:
        await durable_files.in_thread(lambda stop: threading.Event().wait(), time.monotonic())
    except durable_files.Stopped:
        pass
    try:
        await durable_files.in_thread(lambda stop: threading.Event().wait(), time.monotonic() + 0.1)
    except durable_files.Stopped:
        print("stopped")
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("stopped\n", "")
