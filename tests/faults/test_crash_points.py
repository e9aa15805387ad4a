"""kill -9 at an exact moment: before the scan, in it, in every step of a quarantine write, between two 250s.

The moment is not left to chance: the scanner or the next hop kills the bridge when it has what it wants, or strace
does at a system call. Then the bridge is started again, the client sends again as mail servers do, and it is counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chain import free_port
from process_kit import MAIL, Bridge, parts, scanbridge, start, until, write_config
from requirements import need
from tracing import end_tracer, tracer_of

from bridge.testing import Background, FakeScanner, NextHop, SmtpClient, answer, result


@dataclass
class House:
    """A bridge that is started again after each death."""

    background: Background
    scanner: FakeScanner
    next_hop: NextHop
    directory: Path
    config: tuple[Path, int, int]
    bridge: Bridge

    def revive(self) -> None:
        assert self.bridge.wait() == -signal.SIGKILL
        self.bridge = start(*self.config)

    def files(self) -> set[str]:
        """The ids in the quarantine: each has its two whole files, and there is nothing else."""
        place = self.directory / "state" / "quarantine"
        ids = {path.stem for path in place.iterdir()}
        assert {path.name for path in place.iterdir()} == {f"{one}.{end}" for one in ids for end in ("eml", "json")}
        for one in ids:
            assert (place / f"{one}.eml").read_bytes().endswith(MAIL)
            assert json.loads((place / f"{one}.json").read_text())["id"] == one
        return ids

    def quarantined(self) -> set[str]:
        """The same, and the command shows them."""
        done = scanbridge("quarantine", "list", "--json", "--limit", "0", "-c", self.config[0])
        assert {json.loads(line)["id"] for line in done.stdout.splitlines()} == self.files()
        return self.files()

    def stay(self, what: Any) -> None:
        """What the scanner does with a mail; it may kill."""
        self.scanner.reply = what


@contextmanager
def house(directory: Path, deadline: str = "30s") -> Iterator[House]:
    with parts() as (background, scanner, next_hop):
        quiet = {"status_interval": "1h"}  # no other traffic when calls are counted
        port, admin = free_port(), free_port()  # they must be free again when it comes back
        listeners = [{"name": "mx", "address": f"127.0.0.1:{port}", "deadline": deadline}]
        sections = {"scanner": quiet, "listeners": listeners, "admin": {"address": f"127.0.0.1:{admin}"}}
        path, _, _ = write_config(directory, scanner.url, next_hop.url, **sections)
        config = (path, port, admin)
        made = House(background, scanner, next_hop, directory, config, start(*config))
        try:
            yield made
        finally:
            made.bridge.end()


@contextmanager
def kill_at(pid: int, call: str, number: int, *, threads: bool = True) -> Iterator[None]:
    """Any thread of it (or the first alone) dies as it enters this system call for the n-th time."""
    tracer = tracer_of([pid], f"{call}:signal=KILL:when={number}", threads=threads)
    try:
        until(lambda: "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text(), "strace to be there")
        yield
    finally:
        end_tracer(tracer)


def begun(client: SmtpClient) -> None:
    assert client.begin().startswith(b"354 ")
    client.send(MAIL + b".\r\n")


def test_before_and_during_the_scan_the_client_still_has_it(tmp_path: Path) -> None:
    """No 250 was said, nothing went on; the next try arrives once."""
    with house(tmp_path) as one:
        with one.bridge.client() as client:
            client.begin()
            client.send(MAIL[:10])
            os.kill(one.bridge.process.pid, signal.SIGKILL)
            assert client.is_cut()
        one.revive()

        async def kill(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            os.kill(one.bridge.process.pid, signal.SIGKILL)

        one.stay(kill)
        with one.bridge.client() as client:
            begun(client)
            assert client.reply() == b""
        one.stay(answer(200, result()))
        one.revive()
        assert not one.next_hop.mails and one.bridge.send().startswith("250 ")
        assert len(one.next_hop.mails) == 1


class KillingHop(NextHop):
    """Takes the mail, stops the bridge before it can hear so, says 250, and kills it."""

    victim = 0

    def _say(self, writer: asyncio.StreamWriter, verb: bytes, text: bytes) -> bool:
        if verb == b"." and self.victim:
            os.kill(self.victim, signal.SIGSTOP)
            said = super()._say(writer, verb, text)
            os.kill(self.victim, signal.SIGKILL)
            self.victim = 0
            return said
        return super()._say(writer, verb, text)


def test_between_the_next_hops_250_and_ours_there_may_be_a_duplicate_never_a_loss(tmp_path: Path) -> None:
    """RFC 1047: whoever does not hear the answer must send again."""
    with house(tmp_path) as one:
        hop = KillingHop(port=one.next_hop.port)
        one.background.run(one.next_hop.stop())
        one.background.run(_listen_again(hop))
        try:
            hop.victim = one.bridge.process.pid
            with one.bridge.client() as client:
                begun(client)
                assert client.reply() == b""
            one.revive()
            assert len(hop.mails) == 1 and one.bridge.send().startswith("250 ")
            first, second = (mail.content.partition(b"Subject:")[2] for mail in hop.mails)
            assert first == second
        finally:
            one.background.run(hop.stop())


async def _listen_again(hop: NextHop) -> None:
    hop._server = await asyncio.start_server(hop._serve, "127.0.0.1", hop.port)


# The system calls of a quarantine write in their order, and whether the mail is in it after a death there.
STEPS = [
    ("fsync", 1, False),  # the mail's file is written
    ("fsync", 2, False),  # and that about it
    ("/rename", 1, False),  # both are on disk, under their temporary names
    ("/rename", 2, False),  # the mail has its name
    ("fsync", 3, True),  # both have their names; the directory is not on disk
    ("pwrite64", 1, True),  # it is safe, and not in the index
]


def test_a_quarantine_write_that_is_killed_leaves_a_whole_mail_or_none(tmp_path: Path) -> None:
    """In every step. After the next start there is no half of it, files and index agree, and the client sends again."""
    need("strace", root=True)
    with house(tmp_path) as one:
        one.stay(answer(200, result("quarantine")))
        assert one.bridge.send().startswith("250 ")  # what is done once only is done
        expected = 1
        for call, number, is_kept in STEPS:
            with kill_at(one.bridge.process.pid, call, number), one.bridge.client() as client:
                begun(client)
                assert client.reply() == b"", (call, number)
                one.revive()
            expected += is_kept
            assert len(one.files()) == expected, (call, number)
            assert one.bridge.send().startswith("250 ")
            expected += 1
        assert len(one.quarantined()) == expected and not one.next_hop.mails


def test_between_the_quarantine_and_our_250_there_may_be_a_duplicate(tmp_path: Path) -> None:
    """The first write of the main thread after the scan is the reply: it dies there, with file and row in place."""
    need("strace", root=True)
    with house(tmp_path) as one:
        one.stay(answer(200, result("quarantine")))
        assert one.bridge.send().startswith("250 ")
        go_on = asyncio.Event()

        async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            writer.write(answer(200, result("quarantine")))

        one.stay(gate)
        assert one.scanner.arrived.acquire(timeout=10)
        with one.bridge.client() as client:
            begun(client)
            assert one.scanner.arrived.acquire(timeout=10)
            with kill_at(one.bridge.process.pid, "write,writev,sendto,sendmsg", 1, threads=False):
                one.background.loop.call_soon_threadsafe(go_on.set)
                assert client.reply() == b""
                one.revive()
        one.stay(answer(200, result("quarantine")))
        assert len(one.files()) == 2 and one.bridge.send().startswith("250 ")
        assert len(one.quarantined()) == 3


@pytest.mark.parametrize("is_said", [False, True])
def test_killed_while_a_late_decision_is_stored(tmp_path: Path, is_said: bool) -> None:
    """At the write that a scan runs on, or at that of its decision: the mail is scanned again and arrives once."""
    need("strace", root=True)
    with house(tmp_path, deadline="1s") as one:
        go_on = asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            writer.write(answer(200, result()))

        one.stay(late)
        pid = one.bridge.process.pid
        with one.bridge.client() as client:
            if is_said:
                begun(client)
                assert client.reply().startswith(b"451 4.4.7 ")
            with kill_at(pid, "pwrite64", 1):
                if is_said:
                    one.background.loop.call_soon_threadsafe(go_on.set)
                else:
                    begun(client)
                assert client.is_cut()
                one.revive()
        one.background.loop.call_soon_threadsafe(go_on.set)
        one.stay(answer(200, result()))
        assert not one.next_hop.mails and one.bridge.send().startswith("250 ")
        assert len(one.next_hop.mails) == 1
