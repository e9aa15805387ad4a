"""Stopping while the next hop has a complete mail and has not answered: the limit holds, and nothing is lost.

The mail is the next hop's once the dot is written, so waiting longer prevents no duplicate: a client that read 421
sends it again either way.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.testing import WaitingHop
from tests.daemon.process_kit import MAIL, Bridge, get, parts, start, until, write_config


@contextmanager
def silent(directory: Path, **sections: Any) -> Iterator[tuple[Bridge, WaitingHop, Any]]:
    with parts() as (background, scanner, _):
        hop = WaitingHop()
        background.run(hop.start())
        config, port, admin = write_config(directory, scanner.url, hop.url, **sections)
        bridge = start(config, port, admin)
        try:
            yield bridge, hop, lambda: background.loop.call_soon_threadsafe(hop.go_on.set)
        finally:
            bridge.end()
            background.run(hop.stop())


def test_the_answer_is_awaited_when_the_client_is_gone(tmp_path: Path) -> None:
    """After the dot the mail is finished whatever the client does, even by a daemon that is stopping."""
    with silent(tmp_path) as (bridge, hop, answer):
        with bridge.client() as client:
            client.begin()
            client.send(MAIL + b".\r\n")
            assert hop.heard.acquire(timeout=30)
        until(lambda: "action=cancelled" in bridge.log, "the disconnect to be noticed")
        bridge.signal()
        until(lambda: get(bridge.admin, "/readyz")[0] != 200, "the signal to be handled")
        assert bridge.process.poll() is None
        answer()
        assert bridge.wait() == 0
        assert "client disconnected, but the next hop accepted the mail" in bridge.log and len(hop.mails) == 1


@pytest.mark.parametrize("at_once", [False, True])
def test_a_second_signal_does_not_wait_for_a_silent_next_hop(tmp_path: Path, at_once: bool) -> None:
    """Not for the relay's own timeout of a minute, whether the client waits (and reads 421) or has left."""
    with silent(tmp_path, drain_timeout="50s") as (bridge, hop, _):
        with bridge.client() as client, bridge.client() as leaving:
            for sender in (client, leaving):
                sender.begin()
                sender.send(MAIL + b".\r\n")
                assert hop.heard.acquire(timeout=30)
            leaving.close()
            until(lambda: "action=cancelled" in bridge.log, "the disconnect to be noticed")
            if at_once:  # so that both signals are pending when it continues
                bridge.signal(signal.SIGSTOP)
            bridge.signal(signal.SIGTERM)
            if not at_once:
                until(lambda: get(bridge.admin, "/readyz")[0] != 200, "the signal to be handled")
            began = time.monotonic()
            bridge.signal(signal.SIGINT)
            bridge.signal(signal.SIGCONT)
            assert client.reply().startswith(b"421 4.3.2 ")
        assert bridge.wait() == 0
        assert time.monotonic() - began < 45 and "second stop signal" in bridge.log


def test_the_drain_time_limits_the_stop_with_a_silent_next_hop(tmp_path: Path) -> None:
    """One signal is enough for that."""
    with silent(tmp_path, drain_timeout="500ms") as (bridge, hop, _):
        with bridge.client() as client:
            client.begin()
            client.send(MAIL + b".\r\n")
            assert hop.heard.acquire(timeout=30)
            began = time.monotonic()
            bridge.signal()
            assert client.reply().startswith(b"421 4.3.2 ")
        assert bridge.wait() == 0
        assert time.monotonic() - began < 45
        assert "before the next hop had answered for" in bridge.log
