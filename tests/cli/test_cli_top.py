"""`scanbridge top`: on a terminal, over a pipe, and while the daemon comes and goes."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.cli.top.picture import sparkline
from bridge.observe.sample import Sample, between, quantile
from bridge.testing import FakeScanner, NextHop
from tests.daemon.process_kit import ROOT, Bridge, environment, parts, start, until, write_config

ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")


class Terminal:
    """A command on its own terminal."""

    def __init__(self, *arguments: str, columns: int = 100) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.before = termios.tcgetattr(self._slave)
        command = [sys.executable, "-m", "bridge", *arguments]
        env = {name: value for name, value in environment(TERM="xterm-256color").items() if name != "COLUMNS"}
        streams = {"stdin": self._slave, "stdout": self._slave, "stderr": self._slave}
        own = {"start_new_session": True, "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)}  # for Ctrl-C
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, **streams, **own)
        self.raw = ""

    def read(self) -> str:
        """All output so far, without colours and cursor movements."""
        while select.select([self._master], [], [], 0)[0]:
            self.raw += os.read(self._master, 65536).decode()
        return ESCAPES.sub("", self.raw)

    def wait_for(self, text: str, since: int = 0) -> int:
        """Wait for this text on the screen; returns the position after it."""
        until(lambda: text in self.read()[since:], f"{text!r} on the screen")
        return self.read().index(text, since) + len(text)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        """Wait for the command to exit; returns its exit code. The terminal must be restored."""
        until(lambda: self.read() is not None and self.process.poll() is not None, "the command to exit")
        self.read()
        assert termios.tcgetattr(self._slave) == self.before
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        os.close(self._master)
        os.close(self._slave)


@contextmanager
def on_terminal(*arguments: str, columns: int = 100) -> Iterator[Terminal]:
    terminal = Terminal("top", *arguments, columns=columns)
    try:
        yield terminal
    finally:
        terminal.close()


@contextmanager
def flowing(bridge: Bridge) -> Iterator[None]:
    """Send mail continuously until the block ends."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            with suppress(OSError):
                bridge.send()
            time.sleep(0.03)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, FakeScanner, NextHop]]:
    with parts() as (_, scanner, next_hop):
        yield tmp_path_factory.mktemp("top"), scanner, next_hop


def test_top_shows_a_daemon_before_and_after_its_restart(place: tuple[Path, FakeScanner, NextHop]) -> None:
    """Rates and times while mail flows; a stopped daemon is awaited; `q` and Ctrl-C restore the terminal."""
    directory, scanner, next_hop = place
    config, port, admin = write_config(directory, scanner.url, next_hop.url)
    bridge = start(config, port, admin)
    try:
        with on_terminal("-c", str(config), "--interval", "0.2") as terminal:
            with flowing(bridge):
                seen = terminal.wait_for(f"smtp://127.0.0.1:{next_hop.port}")
                until(lambda: re.search(r"deliver [1-9]", terminal.read()), "a mail rate")
                until(lambda: re.search(r"scan +p50 <?\d+ ms", terminal.read()), "a scan time")
            text = terminal.read()
            assert f"{scanner.url}" in text and "GREEN" in text and "closed" in text and "of 20" in text
            assert "\x1b[?1049h" in terminal.raw and "\x1b[32m" in terminal.raw  # the alternate screen, and colour
            bridge.end()
            seen = terminal.wait_for("no daemon", seen)
            bridge = start(config, port, admin)
            terminal.wait_for("ready", seen)
            terminal.press(b"xq")
            assert terminal.end() == 0
            assert terminal.raw.rindex("\x1b[?1049l") > terminal.raw.rindex("\x1b[?1049h")
            assert "\x1b[?25h" in terminal.raw[terminal.raw.rindex("\x1b[?25l") :]
        with on_terminal("-c", str(config), columns=40) as narrow:
            narrow.wait_for("next hop")
            assert max(map(len, narrow.read().splitlines())) <= 40
            narrow.press(b"\x03")
            assert narrow.end() == 0, "Ctrl-C is a regular exit"
        check_pipes(bridge, config)
    finally:
        bridge.end()
    done = CliRunner().invoke(main, ["top", "--once", "--json", "--interval", "0.1", "-c", str(config)])
    assert done.exit_code == 1 and json.loads(done.stdout)["up"] is False


def check_pipes(bridge: Bridge, config: Path) -> None:
    with flowing(bridge):
        command = [sys.executable, "-m", "bridge", "top", "--json", "--interval", "0.3", "-c", str(config)]
        with subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = map(json.loads, islice(process.stdout, 50))
            found = [next(line for line in lines if line["mails_per_s"] > 0) for _ in range(2)]
            process.stdout.close()  # the command then exits without a traceback
            assert process.wait(60) == 0
    assert all(line["up"] and line["scan_s"]["p50"] > 0 for line in found), found
    assert found[0]["next_hops"][0]["mails_per_s"]["taken"] > 0 and found[0]["scanner"][0]["status"] == "GREEN"
    once = CliRunner().invoke(main, ["top", "--once", "--interval", "0.1", "-c", str(config)], env={"COLUMNS": "80"})
    assert once.exit_code == 0 and "\x1b" not in once.stdout and "in processing" in once.stdout
    assert max(map(len, once.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("q", "counts", "expected"),
    [
        (0.5, [], None),
        (0.5, [0, 0, 0], None),
        (0.5, [10, 10, 10], 0.05),
        (0.99, [0, 100, 100], 0.991),
        (0.5, [0, 0, 5], 1.0),  # above the highest finite bound, Prometheus returns that bound
    ],
)
def test_quantiles_are_computed_as_prometheus_does(q: float, counts: list[float], expected: float | None) -> None:
    """Values are assumed to be spread evenly within a bucket."""
    bounds = [0.1, 1.0, math.inf]
    assert quantile(q, list(zip(bounds, counts, strict=False))) == expected


def test_counters_that_decrease_mean_a_restart() -> None:
    """After a restart the rates count from zero and are never negative."""
    state = {
        "version": "1",
        "pid": 1,
        "ready": True,
        "in_processing": 0,
        "max_in_processing": 20,
        "connections": 0,
        "bytes_in_processing": 0,
        "scanner": [],
        "workers": [],
        "reload": {"ok": True},
    }
    name, labels = "scanbridge_mails_total", (("decision", "deliver"),)
    before = Sample(1.0, {**state, "uptime_s": 50}, {name: {labels: 1000.0}})
    seen = between(before, Sample(3.0, {**state, "uptime_s": 1}, {name: {labels: 10.0}}))
    assert seen["mails_per_s"] == 5.0 and seen["warnings"] == ["the daemon was restarted"]


def test_sparkline_is_scaled_to_its_highest_value() -> None:
    """Only the last values count; ASCII is used where Unicode is not available."""
    assert sparkline(deque([9.0, 0.0, 1.0, 2.0]), 3) == "▁▅█"
    assert sparkline(deque([0.0, 2.0]), 9, ascii_only=True) == "_#" and sparkline(deque([0.0]), 5) == "▁"
