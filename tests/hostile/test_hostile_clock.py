"""The wall clock may jump: wrong daylight saving, a machine resuming from sleep, NTP after a flat battery."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from bridge.testing import running_bridge
from tests.hostile.hostile_kit import Hanging, receives

YEARS_S = 10 * 365 * 86400.0


async def never(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


@pytest.mark.parametrize("jump_s", [-YEARS_S, YEARS_S], ids=["back", "forward"])
def test_deadlines_survive_a_jump_of_the_wall_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """No connection is cut, no mail being scanned or received is dropped, and deadlines keep their length."""
    now, hang = time.time, Hanging()
    with (
        running_bridge(tmp_path, {"late_decisions": {"store": "off"}}, deadline="3s") as bridge,
        bridge.client() as idle,
        bridge.client() as sending,
        bridge.client() as scanned,
    ):
        bridge.scanner.reply = hang
        for client in (idle, sending, scanned):
            client.open()
        assert sending.begin().startswith(b"354 ")
        assert scanned.begin().startswith(b"354 ")
        scanned.send(b"x\r\n.\r\n")
        assert bridge.scanner.arrived.acquire(timeout=60)
        monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        assert [receives(client, 0.2) for client in (idle, sending, scanned)] == [b"", b"", b""]
        bridge.background.loop.call_soon_threadsafe(hang.release.set)
        assert scanned.reply().startswith(b"250 ")
        assert sending.say(b"x\r\n.")[0].startswith(b"250 ")
        assert idle.say(b"NOOP") == [b"250 2.0.0 OK"]
        bridge.scanner.reply = never
        began = time.monotonic()
        assert idle.mail(b"Subject: other\r\n\r\nx\r\n").startswith(b"451 4.4.7 ")
        assert 1 < time.monotonic() - began < 50
