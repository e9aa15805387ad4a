"""kill -9 at an exact moment: before and during the scan, at every step of a quarantine write, between two 250s.

The moment is not left to chance: the scanner or the next hop kills the bridge, or strace does at a system call. Then
the bridge is started again, the client sends again as mail servers do, and the mails are counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.testing import Background, FakeScanner, NextHop, SmtpClient, answer, result
from tests.chain import free_port
from tests.daemon.process_kit import MAIL, Bridge, parts, scanbridge, start, until, write_config
from tests.faults.tracing import end_tracer, is_traced, tracer_of
from tests.requirements import need


class KillingHop(NextHop):
    """Accepts the mail, but stops the bridge before it reads the 250, and then kills it."""

    victim = 0

    def _say(self, writer: asyncio.StreamWriter, verb: bytes, text: bytes) -> bool:
        if verb == b"." and self.victim:
            os.kill(self.victim, signal.SIGSTOP)
            said = super()._say(writer, verb, text)
            os.kill(self.victim, signal.SIGKILL)
            self.victim = 0
            return said
        return super()._say(writer, verb, text)


@dataclass
class CrashRig:
    """A bridge that is restarted after each kill."""

    background: Background
    scanner: FakeScanner
    next_hop: KillingHop
    directory: Path
    config: tuple[Path, int, int]
    bridge: Bridge

    def restart(self) -> None:
        assert self.bridge.wait() == -signal.SIGKILL
        self.bridge = start(*self.config)

    def files(self) -> set[str]:
        """The ids in the quarantine; checks that each has two complete files, and that there are no others."""
        place = self.directory / "state" / "quarantine"
        ids = {path.stem for path in place.iterdir()}
        assert {path.name for path in place.iterdir()} == {
            f"{mail_id}.{end}" for mail_id in ids for end in ("eml", "json")
        }
        for mail_id in ids:
            assert (place / f"{mail_id}.eml").read_bytes().endswith(MAIL)
            assert json.loads((place / f"{mail_id}.json").read_text())["id"] == mail_id
        return ids

    def quarantined(self) -> set[str]:
        """The same, as the command shows them."""
        done = scanbridge("quarantine", "list", "--json", "--limit", "0", "-c", self.config[0])
        assert {json.loads(line)["id"] for line in done.stdout.splitlines()} == self.files()
        return self.files()


@contextmanager
def crash_rig(directory: Path, deadline: str = "30s") -> Iterator[CrashRig]:
    with parts() as (background, scanner, _):
        next_hop = KillingHop()
        background.run(next_hop.start())
        quiet = {"status_interval": "1h"}  # no other traffic when calls are counted
        port, admin = free_port(), free_port()  # must be free again at the restart
        listeners = [{"name": "mx", "address": f"127.0.0.1:{port}", "deadline": deadline}]
        sections = {"scanner": quiet, "listeners": listeners, "admin": {"address": f"127.0.0.1:{admin}"}}
        sections["history"] = {"enabled": False}  # its thread syncs and writes, too, whenever it gets the processor
        path, _, _ = write_config(directory, scanner.url, next_hop.url, **sections)
        config = (path, port, admin)
        rig = CrashRig(background, scanner, next_hop, directory, config, start(*config))
        try:
            yield rig
        finally:
            rig.bridge.end()
            background.run(next_hop.stop())


@contextmanager
def kill_at(pid: int, call: str, number: int, *, threads: bool = True, file: Path | None = None) -> Iterator[None]:
    """Kill the process when any thread (or only the first) enters this system call for the n-th time.

    `file`: only calls for this file count.
    """
    tracer = tracer_of([pid], f"{call}:signal=KILL:when={number}", threads=threads, file=file)
    try:
        until(lambda: is_traced(pid), "strace to attach")
        yield
    finally:
        end_tracer(tracer)


def begun(client: SmtpClient) -> None:
    assert client.begin().startswith(b"354 ")
    client.send(MAIL + b".\r\n")


def test_a_mail_without_our_250_stays_with_the_client(tmp_path: Path) -> None:
    """Before and during the scan nothing was relayed. Between the two 250s a duplicate is possible (RFC 1047)."""
    with crash_rig(tmp_path) as rig:
        with rig.bridge.client() as client:
            client.begin()
            client.send(MAIL[:10])
            os.kill(rig.bridge.process.pid, signal.SIGKILL)
            assert client.is_cut()
        rig.restart()

        async def kill(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            os.kill(rig.bridge.process.pid, signal.SIGKILL)

        rig.scanner.reply = kill
        with rig.bridge.client() as client:
            begun(client)
            assert client.reply() == b""
        rig.scanner.reply = answer(200, result())
        rig.restart()
        assert not rig.next_hop.mails

        rig.next_hop.victim = rig.bridge.process.pid
        with rig.bridge.client() as client:
            begun(client)
            assert client.reply() == b""
        rig.restart()
        assert len(rig.next_hop.mails) == 1 and rig.bridge.send().startswith("250 ")
        first, second = (mail.content.partition(b"Subject:")[2] for mail in rig.next_hop.mails)
        assert first == second


def test_our_250_leaves_after_the_last_fsync(tmp_path: Path) -> None:
    """In the order of system calls: both files, their names, the directory; then the reply."""
    need("strace", root=True)
    trace = tmp_path / "trace"
    with crash_rig(tmp_path) as rig:
        rig.scanner.reply = answer(200, result("quarantine"))
        pid = rig.bridge.process.pid
        tracer = tracer_of([pid], "fsync,/rename,write,writev,sendto,sendmsg", output=trace)
        try:
            until(lambda: is_traced(pid), "strace to attach")
            assert rig.bridge.send().startswith("250 ")
        finally:
            end_tracer(tracer)
    steps = [word for line in trace.read_text().splitlines() if (word := _step(line))]
    before = iter(steps[: steps.index("250")])  # among others: the index may sync its file meanwhile
    assert all(step in before for step in ("fsync", "fsync", "rename", "rename", "fsync")), steps


def _step(line: str) -> str:
    """The name of a finished call; "" for any other line."""
    if "250 2.0.0 Ok: queued as" in line and "fsync" not in line:
        return "250" if "time=" not in line and "id=" not in line else ""  # not the log line
    done = re.search(r"(fsync|rename)\w*(?:\(| resumed>).* = 0$", line)
    return done[1] if done else ""


# The system calls of a quarantine write in order, and whether the mail is stored after a kill there.
STEPS = [
    ("fsync", 1, False),  # the mail's file is written
    ("/rename", 1, False),  # both are on disk, under their temporary names
    ("/rename", 2, False),  # the mail has its name
    ("fsync", 3, True),  # both have their names; the directory is not on disk
    ("pwrite64", 1, True),  # it is durable, but not yet in the index
]


def test_a_quarantine_write_that_is_killed_leaves_a_whole_mail_or_none(tmp_path: Path) -> None:
    """At every step. After a restart no part of it is left, files and index agree, and the client sends again."""
    need("strace", root=True)
    with crash_rig(tmp_path) as rig:
        rig.scanner.reply = answer(200, result("quarantine"))
        assert rig.bridge.send().startswith("250 ")  # so that one-time work is done
        expected = 1
        for call, number, is_kept in STEPS:
            with kill_at(rig.bridge.process.pid, call, number), rig.bridge.client() as client:
                begun(client)
                assert client.reply() == b"", (call, number)
                rig.restart()
            expected += is_kept
            assert len(rig.files()) == expected, (call, number)
            assert rig.bridge.send().startswith("250 ")
            expected += 1
        kill_before_our_250(rig)
        assert rig.quarantined() == rig.files() and len(rig.files()) == expected + 1
        assert not rig.next_hop.mails


def kill_before_our_250(rig: CrashRig) -> None:
    """The main thread's first write after the scan is the reply: the kill comes there, with file and row in place."""
    go_on = asyncio.Event()

    async def gate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await go_on.wait()
        writer.write(answer(200, result("quarantine")))

    arrived = threading.Event()
    rig.scanner.reply = gate
    with rig.bridge.client() as client:
        begun(client)
        assert arrived.wait(60)
        with kill_at(rig.bridge.process.pid, "write,writev,sendto,sendmsg", 1, threads=False):
            rig.background.loop.call_soon_threadsafe(go_on.set)
            assert client.reply() == b""
            assert rig.bridge.wait() == -signal.SIGKILL


def test_killed_while_a_late_decision_is_stored(tmp_path: Path) -> None:
    """When a running scan is stored, and when its decision is: the mail is scanned again and arrives once."""
    need("strace", root=True)
    with crash_rig(tmp_path, deadline="1s") as rig:
        go_on = asyncio.Event()

        async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            writer.write(answer(200, result()))

        rig.scanner.reply = late
        store = rig.directory / "state" / "late.sqlite-wal"
        with rig.bridge.client() as client, kill_at(rig.bridge.process.pid, "pwrite64", 1, file=store):
            begun(client)
            assert client.is_cut()
            rig.restart()
        with rig.bridge.client() as client:
            begun(client)
            assert client.reply().startswith(b"451 4.4.7 ")
            with kill_at(rig.bridge.process.pid, "pwrite64", 1, file=store):
                rig.background.loop.call_soon_threadsafe(go_on.set)
                assert client.is_cut()
                rig.restart()
        assert not rig.next_hop.mails and rig.bridge.send().startswith("250 ")
        assert len(rig.next_hop.mails) == 1 and len(rig.scanner.submissions) == 3
