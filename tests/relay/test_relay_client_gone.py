"""A client that disconnects while its mail is relayed: stopped before the dot, finished after it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.testing import Background, NextHop, RunningBridge, running_bridge, until
from tests.filter.smtp_kit import counted


@dataclass
class HoldingHop(NextHop):
    """Holds back the answer to one verb until `go_on` is set."""

    hold: bytes = b""
    heard: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._serve(reader, writer)
        self.ended.release()

    def _say(self, writer: asyncio.StreamWriter, verb: bytes, text: bytes) -> bool:
        if verb != self.hold or self.go_on.is_set():
            return super()._say(writer, verb, text)
        self._later = asyncio.get_running_loop().create_task(self._answer(writer, text))
        self.heard.release()
        return True

    async def _answer(self, writer: asyncio.StreamWriter, text: bytes) -> None:
        await self.go_on.wait()
        writer.write(text + b"\r\n")


@contextmanager
def held(directory: Path, hold: bytes, protocol: str) -> Iterator[tuple[RunningBridge, HoldingHop, Background]]:
    background, hop = Background(), HoldingHop(hold=hold)
    background.run(hop.start())
    try:
        with running_bridge(directory, {"relay": {"next_hop": hop.url}}, protocol=protocol) as bridge:
            yield bridge, hop, background
    finally:
        background.run(hop.stop())
        background.close()


def leave_while_held(bridge: RunningBridge, hop: HoldingHop, protocol: str) -> None:
    with bridge.client() as client:
        client.open(b"LHLO x" if protocol == "lmtp" else b"EHLO x")
        client.begin()
        client.send(b"Subject: x\r\n\r\nx\r\n.\r\n")
        assert hop.heard.acquire(timeout=30)


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_before_the_dot_a_client_that_goes_away_stops_the_relay(tmp_path: Path, protocol: str) -> None:
    """The connection to the next hop is dropped, so it has no mail; the client will send it again."""
    with held(tmp_path, b"MAIL", protocol) as (bridge, hop, background):
        leave_while_held(bridge, hop, protocol)
        assert hop.ended.acquire(timeout=30)
        background.loop.call_soon_threadsafe(hop.go_on.set)
        assert hop.mails == []


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_after_the_dot_the_relay_is_finished_whatever_the_client_does(
    tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next hop's answer is awaited and logged, and its connection serves the next mail."""
    caplog.set_level(logging.INFO)
    with held(tmp_path, b".", protocol) as (bridge, hop, background):
        leave_while_held(bridge, hop, protocol)
        assert not hop.ended.acquire(timeout=0.2), "hung up on the next hop"
        until(lambda: counted(bridge, "next_hop_mails_total", next_hop=hop.url, result="lost") == 1, "the count")
        background.loop.call_soon_threadsafe(hop.go_on.set)
        with bridge.client() as client:
            client.open(b"LHLO x" if protocol == "lmtp" else b"EHLO x")
            assert client.mail().startswith(b"250 ")
        assert len(hop.mails) == 2
    assert "client disconnected, but the next hop accepted the mail: 250 2.0.0 Ok: queued as NEXT1" in caplog.text
