"""The disk of the spool hangs: mail goes on, and the status says what is wrong."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from bridge.mail import spool_file
from bridge.testing import RunningBridge, SmtpClient, running_bridge, until
from tests.daemon.process_kit import get
from tests.mail.test_spool_file import HangingDisk

KiB = 1024
LARGE = b"Subject: large\r\n\r\n" + (b"x" * 998 + b"\r\n") * 600


def problems(bridge: RunningBridge) -> list[str]:
    return list(json.loads(get(bridge.admin_port, "/status")[1])["problems"])


def test_a_disk_that_hangs_stopped_all_mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop itself wrote to it, so nobody was answered: no client, no admin page, no watchdog."""
    monkeypatch.setattr(spool_file, "MAX_UNWRITTEN", 2 * len(LARGE) + 100 * KiB)
    disk = HangingDisk()
    with running_bridge(tmp_path, {"spool": {"memory_per_mail": "64KiB"}}) as bridge, ExitStack() as stack:
        stack.callback(disk.goes_on.set)
        bridge.daemon.spool.disk = disk
        with bridge.client() as client:
            client.open()
            assert client.mail(LARGE).startswith(b"250")  # it fits in memory, and needs no disk
            assert bridge.next_hop.mails[-1].content.endswith(LARGE.partition(b"\r\n\r\n")[2])
        clients = [stack.enter_context(bridge.client()) for _ in range(3)]
        replies = [begin(client) for client in clients]
        assert disk.asked.wait(60) and replies == [b"354"] * 3
        for number, client in enumerate(clients):
            client.send(LARGE)
            if number < 2:
                until(partial(has_arrived, disk, number + 1), "the content to arrive")
        until(lambda: any("SPOOL: the disk of the spool has not answered" in text for text in problems(bridge)), "it")
        assert get(bridge.admin_port, "/readyz")[0] == 200
        said = sorted(client.say(b".")[0][:9] for client in clients)
        assert said == [b"250 2.0.0", b"250 2.0.0", b"452 4.3.1"]
        with bridge.client() as client:
            client.open()
            assert client.mail().startswith(b"250")
        disk.goes_on.set()
        until(lambda: not problems(bridge), "the disk to be well again")
        assert disk.unwritten == bridge.daemon.spool.in_use == 0
        with bridge.client() as client:
            client.open()
            assert client.mail(LARGE).startswith(b"250")


def has_arrived(disk: HangingDisk, mails: int) -> bool:
    return disk.unwritten >= mails * (len(LARGE) - 4)  # a line end waits for the next block


def begin(client: SmtpClient) -> bytes:
    client.open()
    return client.begin()[:3]
