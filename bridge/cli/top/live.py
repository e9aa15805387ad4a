"""The loop of `scanbridge top`: sample, draw, wait for the next interval or a key."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from rich.live import Live

from bridge.cli.config_option import no_daemon
from bridge.cli.terminal import console, discard_output, printing, say_json
from bridge.cli.top.picture import Picture
from bridge.observe.sample import Sample, between, take
from bridge.runtime.endpoints import Endpoint


def watch(address: Endpoint, interval_s: float, *, as_json: bool, once: bool, on_silence: Callable[[], object]) -> bool:
    """Runs until the user stops it; returns whether a daemon answers and reports no problem.

    If no daemon answers at the beginning, `on_silence` is called first.
    """
    monitor = Monitor(address)
    if not monitor.is_up:
        on_silence()
    try:
        if as_json or once or not sys.stdout.isatty():
            _print_updates(monitor, interval_s, as_json, once)
        else:
            _show_updates(monitor, interval_s)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the reader closed the pipe
        discard_output()
    return monitor.is_good


class Monitor:
    """Takes one sample after another; the daemon may stop and start in between."""

    def __init__(self, address: Endpoint) -> None:
        self._address = address
        self._before: Sample | None = None
        self.sample()

    @property
    def is_up(self) -> bool:
        return self._before is not None

    @property
    def is_good(self) -> bool:
        """Whether a daemon answers, and reports no problem."""
        return self._before is not None and not self._before.state.get("problems")

    def sample(self) -> dict[str, Any]:
        """What happened since the last sample."""
        before, now = self._before, take(self._address)
        self._before = now
        when = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        if now is None:
            return {
                **when,
                "up": False,
                "problem": no_daemon(self._address),
            }
        return {**when, **between(before or now, now)}


def _print_updates(monitor: Monitor, interval_s: float, as_json: bool, once: bool) -> None:
    """Print updates to a pipe or a file."""
    screen, picture = console(), Picture(waits=not once)
    due = time.monotonic()
    while True:
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))
        seen = monitor.sample()
        if as_json:
            say_json(seen)
        else:
            with printing():
                screen.print(picture.draw(seen, screen.width, ascii_only=screen.options.ascii_only))
                if not once:
                    screen.print()
        if once:
            return


def _show_updates(monitor: Monitor, interval_s: float) -> None:
    screen, picture = console(), Picture()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # restores the terminal on the way out
    with _keys() as pressed, Live(console=screen, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while True:
            seen = monitor.sample()
            live.update(picture.draw(seen, screen.width, ascii_only=screen.options.ascii_only), refresh=True)
            due = max(due + interval_s, time.monotonic())
            while (left := due - time.monotonic()) > 0:
                if pressed(left) in ("q", "Q"):
                    return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Reads single keys without Enter or echo: the key pressed within the time limit, or ""."""
    if not sys.stdin.isatty():
        yield _nothing_pressed
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed(limit_s: float) -> str:
        ready, _, _ = select.select([fd], [], [], limit_s)
        return os.read(fd, 1).decode("latin-1") if ready else ""

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _nothing_pressed(limit_s: float) -> str:
    time.sleep(limit_s)
    return ""
