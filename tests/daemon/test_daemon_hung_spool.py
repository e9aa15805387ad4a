"""The disk of the spool hangs: mail goes on, and the status says what is wrong."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from bridge.mail.spool import DiskLimits, SpoolDisk
from bridge.testing import RunningBridge, SmtpClient, running_bridge, until
from tests.daemon.process_kit import get
from tests.intake.hooks.hooks_kit import MailServer, facts, hooks_bridge
from tests.mail.test_spool_file import HangingDisk

KiB = 1024
SLOW = DiskLimits(max_unwritten=1024 * KiB, hangs_after_s=60.0)
STUCK = DiskLimits(hangs_after_s=60.0, max_wait_s=60.0)
LARGE = b"Subject: large\r\n\r\n" + (b"x" * 998 + b"\r\n") * 600


def problems(bridge: RunningBridge) -> list[str]:
    return list(json.loads(get(bridge.admin_port, "/status")[1])["problems"])


def test_a_disk_that_hangs_stopped_all_mail(tmp_path: Path) -> None:
    """The event loop itself wrote to it, so nobody was answered: no client, no admin page, no watchdog."""
    disk = HangingDisk(DiskLimits(max_unwritten=2 * len(LARGE) + 100 * KiB))
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
        until(lambda: any("SPOOL: the spool's disk has not responded" in text for text in problems(bridge)), "it")
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


class SlowDisk(HangingDisk):
    """Once it is told to, it writes slowly."""

    most = 0

    def write(self, descriptor: int, chunk: bytes) -> None:
        super().write(descriptor, chunk)
        time.sleep(0.005)  # the part of a slow disk
        self.most = max(self.most, self.unwritten)


@pytest.mark.parametrize("protocol", ["smtp", "lmtp"])
def test_a_client_that_is_faster_than_the_disk_is_slowed_down(tmp_path: Path, protocol: str) -> None:
    """Its mail is not deferred for want of room, and small mail does not wait for it."""
    disk = SlowDisk(SLOW)
    content = LARGE * 20
    with running_bridge(tmp_path, {"spool": {"memory_per_mail": "64KiB"}}, protocol=protocol) as bridge:
        bridge.daemon.spool.disk = disk
        with bridge.client() as client, bridge.client() as other, ThreadPoolExecutor(1) as thread:
            for each in (client, other):
                each.open(b"LHLO client.example" if protocol == "lmtp" else b"EHLO client.example")
            assert client.begin()[:3] == b"354"
            sending = thread.submit(client.say, content + b".")
            until(lambda: disk.unwritten > 512 * KiB, "the bridge to stop reading")
            assert other.mail().startswith(b"250")
            disk.goes_on.set()
            assert sending.result()[0].startswith(b"250")
        assert disk.most <= 1024 * KiB
        assert len(bridge.next_hop.mails[-1].content) > len(content)


class StuckDisk(HangingDisk):
    """Hangs after its first write."""

    def write(self, descriptor: int, chunk: bytes) -> None:
        if self.asked.is_set():
            super().write(descriptor, chunk)
        else:
            SpoolDisk.write(self, descriptor, chunk)
            self.asked.set()


TENANTS = [
    {"uid": "11111111-1111-4111-8111-111111111111", "recipient_domains": ["one.example"]},
    {"uid": "22222222-2222-4222-8222-222222222222", "recipient_domains": ["two.example"]},
]
SMALL_MEMORY = {"spool": {"memory_per_mail": "64KiB"}}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets at which files were read."""
    found: list[int] = []
    pread = os.pread

    def read(descriptor: int, count: int, offset: int) -> bytes:
        found.append(offset)
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", read)
    return found


@pytest.mark.parametrize("reason", ["client_header", "tenants"])
def test_a_mail_was_read_while_a_thread_wrote_it(tmp_path: Path, reads: list[int], reason: str) -> None:
    """On XFS and NFS such a read waits for the write, and everything else for the event loop."""
    is_lmtp = reason == "tenants"
    config = SMALL_MEMORY | ({"tenants": TENANTS} if is_lmtp else {})
    listener = {"protocol": "lmtp"} if is_lmtp else {"client_header": "X-Client"}
    disk = StuckDisk(STUCK)
    with running_bridge(tmp_path, config, **listener) as bridge, ExitStack() as stack:
        stack.callback(disk.goes_on.set)
        bridge.daemon.spool.disk = disk
        client, other = (stack.enter_context(bridge.client()) for _ in range(2))
        for each in (client, other):
            each.open(b"LHLO client.example" if is_lmtp else b"EHLO client.example")
        recipients = [b"RCPT TO:<b@one.example>", b"RCPT TO:<b@two.example>"]
        assert client.say(b"MAIL FROM:<a@client.example>", *recipients, b"DATA")[-1].startswith(b"354")
        client.send(LARGE + b".\r\n")
        until(lambda: disk.unwritten > len(LARGE) - 200 * KiB and disk.asked.is_set(), "the content to arrive")
        assert other.mail().startswith(b"250")  # by now, the dot has arrived as well
        assert reads == []
        disk.goes_on.set()
        assert client.reply().startswith(b"250")
        assert reads


def test_a_mail_of_a_hook_was_read_while_a_thread_wrote_it(tmp_path: Path, reads: list[int]) -> None:
    """The same with MTA Hooks."""
    disk = StuckDisk(STUCK)
    with hooks_bridge(tmp_path, SMALL_MEMORY) as bridge, ThreadPoolExecutor(1) as thread:
        bridge.daemon.spool.disk = disk
        with MailServer(bridge.port) as server, MailServer(bridge.port) as other:
            try:
                sending = thread.submit(server.action, facts(LARGE))
                until(lambda: disk.unwritten > len(LARGE) - 200 * KiB and disk.asked.is_set(), "the content to arrive")
                assert other.action(facts())[0] == "accept"
                assert reads == []
            finally:
                disk.goes_on.set()
            assert sending.result()[0] == "accept"
    assert reads


def test_a_hook_that_is_faster_than_the_disk_is_slowed_down(tmp_path: Path) -> None:
    """Its mail was deferred for want of room: only SMTP and milter clients were stopped."""
    disk = SlowDisk(SLOW)
    with hooks_bridge(tmp_path, SMALL_MEMORY) as bridge, ThreadPoolExecutor(1) as thread:
        bridge.daemon.spool.disk = disk
        with MailServer(bridge.port) as server, MailServer(bridge.port) as other:
            try:
                sending = thread.submit(server.action, facts(LARGE * 10))
                until(lambda: disk.unwritten > 512 * KiB or sending.done(), "the bridge to stop reading")
                assert other.action(facts())[0] == "accept"
            finally:
                disk.goes_on.set()
            assert sending.result() == ("accept", None)
        assert disk.most <= 1024 * KiB


def test_a_client_that_we_had_stopped_was_cut_off_as_too_slow(tmp_path: Path) -> None:
    """The disk was behind for longer than a client may be silent, and the client was told that it was."""
    disk = SlowDisk(SLOW)
    limits = {"limits": {"data_timeout": "200ms"}}
    with running_bridge(tmp_path, SMALL_MEMORY | limits) as bridge, ThreadPoolExecutor(1) as thread:
        bridge.daemon.spool.disk = disk
        with bridge.client() as client, ExitStack() as stack:
            stack.callback(disk.goes_on.set)
            client.open()
            assert client.begin()[:3] == b"354"
            sending = thread.submit(client.say, LARGE * 5 + b".")
            until(lambda: disk.unwritten > 512 * KiB, "the bridge to stop reading")
            patience = time.monotonic() + 2.0  # ten times as long as silence is allowed
            until(lambda: time.monotonic() > patience or sending.done(), "the time to pass")
            disk.goes_on.set()
            assert sending.result()[0].startswith(b"250")
