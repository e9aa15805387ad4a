"""`scanbridge reload`: reload the running daemon's configuration and wait for the result."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bridge.cli.common import config_option, fail_config
from bridge.cli.single_values import Command
from bridge.cli.terminal import say, say_lines
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.config.model import Config

_POLL_S = 0.1


@click.command(cls=Command)
@config_option
@click.option(
    "--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Seconds to wait for the result."
)
def reload(path: Path | None, timeout_s: float) -> None:
    """Reload the running daemon's configuration (SIGHUP). Exit code 0 only if the new configuration is in use.

    The file is checked first: exit code 78 if it has errors. Exit code 1 if no daemon answers, if it cannot be
    signalled, or if it keeps its old configuration; the reason is printed.
    """
    from bridge.observe.admin_client import ask

    address = _load(path).admin.address
    before = ask(address)
    if before is None:
        _fail(f"no daemon answers at {address}; is it running?")
    pid = before["pid"]
    if type(pid) is not int or pid <= 1:  # another program may answer on that port, and -1 would mean every process
        _fail(f"the program at {address} is not our daemon: its process id is {pid!r:.20}")
    try:
        os.kill(pid, signal.SIGHUP)
    except PermissionError:
        _fail("the daemon runs as another user: run this command as that user or as root")
    except ProcessLookupError:
        _fail("the daemon runs in another container or on another machine: send it SIGHUP there")
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        state = ask(address)
        if state is not None and state["reload"]["count"] > before["reload"]["count"]:
            _report(state["reload"])
        time.sleep(_POLL_S)
    _fail(f"no result within {timeout_s:g} s: see the log and `scanbridge status`")


def _load(path: Path | None) -> Config:
    """The configuration; if it has errors, the daemon is not signalled and keeps its configuration."""
    from bridge.daemon import config_file

    try:
        return config_file.load(path)
    except ConfigError as exc:
        fail_config(ConfigError(f"{exc}\nnothing was reloaded: a running daemon keeps its configuration"))


def _report(outcome: dict[str, Any]) -> NoReturn:
    if not outcome["ok"]:
        _fail(f"reload failed, keeping the old configuration: {outcome['problem']}")
    say("the new configuration is in use")
    sys.exit(0)


def _fail(text: str) -> NoReturn:
    say_lines(text, err=True)
    sys.exit(1)
