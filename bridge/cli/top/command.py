"""`scanbridge top`: the live picture of a running daemon, in a terminal or as one JSON object per interval."""

from __future__ import annotations

import json
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
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from bridge.cli.common import config_option, load_or_exit
from bridge.cli.top.picture import Picture
from bridge.cli.top.sample import Sample, Source, between
from bridge.runtime.endpoints import Address


@click.command()
@config_option
@click.option(
    "--interval", "interval_s", type=click.FloatRange(min=0.1), default=1.0, show_default=True, help="Seconds."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per interval, for scripts.")
@click.option("--once", is_flag=True, help="One interval, then end; exit code 1 when no daemon answers.")
def top(path: Path | None, interval_s: float, as_json: bool, once: bool) -> None:
    """Watch a running daemon: mail in processing, rates, decisions, times, scanner, next hops. `q` ends it."""
    watching = Watching(load_or_exit(path).admin.address)
    try:
        if as_json or once or not sys.stdout.isatty():
            _print_always(watching, interval_s, as_json, once)
        else:
            _show_always(watching, interval_s)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        watching.close()
    sys.exit(1 if once and not watching.is_up else 0)


class Watching:
    """One look after the other; the daemon may come and go meanwhile."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._source = Source(address)
        self._before: Sample | None = None
        self.look()

    @property
    def is_up(self) -> bool:
        return self._before is not None

    def close(self) -> None:
        self._source.close()

    def look(self) -> dict[str, Any]:
        """What happened since the last look."""
        before, now = self._before, self._source.look()
        self._before = now
        when = {"time": datetime.now(UTC).isoformat(timespec="milliseconds")}
        if now is None:
            return {**when, "up": False, "problem": f"no scanbridge answers at {self._address}"}
        return {**when, **between(before or now, now)}


def _print_always(watching: Watching, interval_s: float, as_json: bool, once: bool) -> None:
    """For a pipe or a file."""
    console, picture = Console(highlight=False), Picture()
    due = time.monotonic()
    while True:
        due = max(due + interval_s, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0.0))
        seen = watching.look()
        if as_json:
            click.echo(json.dumps(seen))
        else:
            console.print(picture.draw(seen, console.width, ascii_only=console.options.ascii_only))
        if once:
            return
        if not as_json:
            console.print()


def _show_always(watching: Watching, interval_s: float) -> None:
    console, picture = Console(highlight=False), Picture()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the terminal is to be as it was
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while True:
            seen = watching.look()
            live.update(picture.draw(seen, console.width, ascii_only=console.options.ascii_only), refresh=True)
            due = max(due + interval_s, time.monotonic())
            while (left := due - time.monotonic()) > 0:
                if pressed(left) in ("q", "Q"):
                    return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Single keys, without Enter and without an echo: the one pressed within the time, else ""."""
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
