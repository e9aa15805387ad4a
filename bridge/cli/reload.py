"""`scanbridge reload`: have a running daemon read its configuration anew, and wait for what comes of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import click

from bridge.cli.common import config_option, load_or_exit
from bridge.cli.status import ask

_LOOK_S = 0.1


@click.command()
@config_option
@click.option("--timeout", "timeout_s", type=float, default=120.0, show_default=True, help="Seconds to wait.")
def reload(path: Path | None, timeout_s: float) -> None:
    """Have the running daemon read its configuration anew (SIGHUP). Exit code 0 only if it is in force.

    The file is checked first: 78 when it has mistakes. 1 when no daemon answers, when it may not be
    signalled, or when it keeps its old configuration, which it then says why.
    """
    conf = load_or_exit(path)
    before = ask(conf.admin.address)
    if before is None:
        _fail(f"no scanbridge answers at {conf.admin.address}")
    try:
        os.kill(before["pid"], signal.SIGHUP)
    except PermissionError:
        _fail("the running scanbridge belongs to another user: run this as that user or as root")
    except ProcessLookupError:
        _fail("the running scanbridge is in another container or on another machine: send it SIGHUP there")
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        state = ask(conf.admin.address)
        if state is not None and state["reload"]["count"] > before["reload"]["count"]:
            _report(state["reload"])
        time.sleep(_LOOK_S)
    _fail(f"no answer within {timeout_s:g} s: see the log, and `scanbridge status`")


def _report(outcome: dict[str, Any]) -> NoReturn:
    if not outcome["ok"]:
        _fail(f"the old configuration stays: {outcome['problem']}")
    click.echo("the new configuration is in force")
    sys.exit(0)


def _fail(text: str) -> NoReturn:
    click.echo(text, err=True)
    sys.exit(1)
