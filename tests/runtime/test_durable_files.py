"""Work in a thread: it never continues after its caller has ended."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import pytest

from bridge.mail.next_hop import NextHopError
from bridge.relay.maildir import Maildir
from bridge.runtime import durable_files
from tests.relay.scripted_hop import make_tx

REASON = "can't start new thread"


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Async tests here run on both event loops."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture
def threadless(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No thread can be started, as at a pids limit, until `undo`."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(REASON)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


async def test_without_a_thread_the_work_never_runs(threadless: pytest.MonkeyPatch) -> None:
    """The pool keeps the work and would run it in its next thread, when the message is already closed."""
    begun: list[str] = []
    with pytest.raises(OSError, match=REASON):
        await durable_files.in_thread(lambda stop: begun.append("too late"), math.inf)
    threadless.undo()
    await durable_files.in_thread(lambda stop: begun.append("in time"), math.inf)
    await asyncio.get_running_loop().shutdown_default_executor()
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
    await asyncio.get_running_loop().shutdown_default_executor()
    assert [b"Subject: y" in path.read_bytes() for path in (place / "new").iterdir()] == [True]
    assert list((place / "tmp").iterdir()) == []
