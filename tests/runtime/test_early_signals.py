"""SIGHUP ends none of our processes: those that can reload their configuration do so, the others go on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvloop

from bridge.runtime.early_signals import EarlySignals
from bridge.testing import eventually, free_port, until
from tests.daemon.process_kit import environment, get, parts, write_config
from tests.long_cases import few

ROOT = Path(__file__).parents[2]
Run = Callable[[Coroutine[None, None, None]], None]
CONSOLE, DIGESTS = ["console"], ["digest", "serve"]


@contextmanager
def served(directory: Path, words: list[str]) -> Iterator[tuple[subprocess.Popen[str], Path, int]]:
    """A process that serves pages, from its very start."""
    port = free_port()
    page = {"address": f"127.0.0.1:{port}"}
    digests = {"schedule": "weekly", "from": "q@a.example", "domains": ["a.example"], "page": page}
    with parts() as (_, scanner, hop):
        sections = {"console": page} if words == CONSOLE else {"digests": digests}
        config, _, _ = write_config(directory, scanner.url, hop.url, **sections)
        log = directory / "pages.log"
        with log.open("w") as output:
            command = [sys.executable, "-m", "bridge", *words, "-c", str(config)]
            process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=output, stderr=output, text=True)
        try:
            yield process, log, port
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("words", few([CONSOLE, DIGESTS], 1), ids=["console", "digests"])
def test_sighup_ended_the_processes_that_serve_pages(tmp_path: Path, words: list[str]) -> None:
    """During the start and later. To systemd, that is an ordinary end, so nobody started them again."""
    with served(tmp_path, words) as (process, log, port):
        until(lambda: "starting" in log.read_text() or process.poll() is not None, "the first line of its log")
        process.send_signal(signal.SIGHUP)
        until(lambda: get(port, "/")[0] or process.poll() is not None, "the pages")
        until(lambda: log.read_text().count("SIGHUP does not reload") == 1, "what the first one did")
        process.send_signal(signal.SIGHUP)
        until(lambda: log.read_text().count("SIGHUP does not reload") == 2, "what the second one did")
        assert get(port, "/")[0]
        process.terminate()
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0, log.read_text()


@pytest.fixture
def early() -> Iterator[EarlySignals]:
    before = signal.getsignal(signal.SIGHUP)
    yield EarlySignals()
    signal.signal(signal.SIGHUP, before)


def hang_up() -> None:
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_one_sighup_had_two_effects_if_the_event_loop_ran_but_had_no_handler(early: EarlySignals, run: Run) -> None:
    """It was remembered, and uvloop's wake-up socket had it too: consoles logged it twice, services reloaded twice."""

    async def main() -> None:
        effects: list[str] = []
        hang_up()
        early.pass_to(lambda: effects.append("SIGHUP"), asyncio.get_running_loop())
        assert len(effects) == 1
        await asyncio.sleep(0.05)  # nothing follows: there is no event to wait for
        assert len(effects) == 1
        hang_up()
        await eventually(lambda: len(effects) == 2, "the second one")

    run(main())


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_sighup_as_the_process_stops_has_no_effect(early: EarlySignals, run: Run) -> None:
    """Neither one that the event loop has not passed on yet nor one after it is closed."""
    effects: list[str] = []

    async def main() -> None:
        early.pass_to(lambda: effects.append("SIGHUP"), asyncio.get_running_loop())
        hang_up()
        early.ignore()
        hang_up()
        await asyncio.sleep(0.05)

    run(main())
    hang_up()
    assert effects == []


def test_a_sighup_after_a_failed_start_is_harmless(early: EarlySignals) -> None:
    """The event loop is closed, and the process reports why it could not start."""

    async def main() -> None:
        early.pass_to(lambda: None, asyncio.get_running_loop())

    uvloop.run(main())
    hang_up()
    assert early.seen  # remembered; there is no event loop to pass it on to


READERS = ["bridge.daemon.http_api.searcher", "bridge.daemon.private_service", "bridge.lists.fetch"]
WORKERS = ["bridge.service.analysis.inspector_process", "bridge.service.analysis.plugin_process"]


def ignores_hangup(process: subprocess.Popen[bytes]) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    ignored = next(line.split()[1] for line in lines if line.startswith("SigIgn:"))
    return bool(int(ignored, 16) & 1 << (signal.SIGHUP - 1))


@pytest.mark.parametrize("module", READERS + WORKERS)
def test_the_processes_that_a_daemon_starts_ignore_sighup(module: str) -> None:
    """`systemctl kill -s HUP` reaches all of them, and a mail or a query in one of them failed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [str(theirs.fileno()), str(4 << 30)] if module in WORKERS else []
        command = [sys.executable, "-P", "-m", module, *arguments]
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(PYTHONPATH=str(ROOT)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        try:
            until(lambda: process.poll() is not None or ignores_hangup(process), "it to ignore SIGHUP")
            process.send_signal(signal.SIGHUP)
            assert process.poll() is None
        finally:
            process.kill()
            process.communicate()
