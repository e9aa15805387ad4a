"""`scanbridge reload`: reload the running daemon's configuration and wait for the result."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from bridge.cli.config_option import config_option, fail_config, no_daemon
from bridge.cli.parameters import Seconds
from bridge.cli.single_values import Command
from bridge.cli.terminal import say, say_lines
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.config.model import Config
    from bridge.runtime.endpoints import Endpoint

_POLL_S = 0.1
_SCANNER_S = 10.0  # longer than a status request may take


@click.command(cls=Command)
@config_option
@click.option(
    "--timeout",
    "timeout_s",
    type=Seconds(),
    default=120.0,
    show_default=True,
    help="Seconds to wait for the result.",
)
def reload(path: Path | None, timeout_s: float) -> None:
    """Reload the running daemon's configuration (SIGHUP). Exit code 0 only if the new configuration is in use.

    The file is checked first: exit code 78 if it has errors. Exit code 1 if no daemon answers, if the daemon
    cannot be signalled, or if it keeps its old configuration; the reason is printed. If the scanner
    refuses the token in the new configuration, or cannot be reached, a warning is printed; the exit code is still 0.
    """
    from bridge.cli import state
    from bridge.cli.hang_up import NotOurs, hang_up
    from bridge.observe.admin_client import ask

    conf = _load(path)
    address = conf.admin.address
    before = ask(address)
    if before is None:
        _fail(no_daemon(address))
    pid = before["pid"]
    if type(pid) is not int or pid <= 1:  # another program may answer on that port, and -1 would mean every process
        _fail(f"the program at {address} is not a scanbridge daemon: it reports the process id {pid!r:.20}")
    try:
        hang_up(pid, address, state.owner(conf, path))
    except NotOurs as exc:
        _fail(
            f"{exc}, so it was not signalled: if the daemon runs in another container or on another machine, "
            "send it SIGHUP there; otherwise, another program answers at this address"
        )
    except PermissionError:
        _fail("the daemon runs as another user: run this command as that user or as root")
    except ProcessLookupError:
        _fail("the daemon runs in another container or on another machine: send it SIGHUP there")
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        now = ask(address)
        if now is not None and now["reload"]["count"] > before["reload"]["count"]:
            _report(now["reload"])
            _warn_about_scanner(address, now)
            return
        time.sleep(_POLL_S)
    _fail(f"no result within {timeout_s:g} s: see the log and `scanbridge status`")


def _load(path: Path | None) -> Config:
    """The configuration; if it has errors, the daemon is not signalled and keeps its configuration."""
    from bridge.daemon import config_file

    try:
        return config_file.load(path)
    except ConfigError as exc:
        fail_config(ConfigError(f"{exc}\nnothing was reloaded: a running daemon keeps its configuration"))


def _report(outcome: dict[str, Any]) -> None:
    if not outcome["ok"]:
        _fail(f"reload failed, keeping the old configuration: {outcome['problem']}")
    say("the new configuration is in use")


def _warn_about_scanner(address: Endpoint, state: dict[str, Any]) -> None:
    """A new token or URL shows its mistake only when the daemon asks the scanner, which it does at once."""
    from bridge.observe.admin_client import ask

    end = time.monotonic() + _SCANNER_S
    while not all(map(_is_known, state.get("scanner", ()))):
        if time.monotonic() > end:
            say_lines("WARNING: the scanner has not answered yet: see `scanbridge status`", err=True)
            return
        time.sleep(_POLL_S)
        state = ask(address) or state
    for host in state.get("scanner", ()):
        if problem := _problem(host):
            say_lines(f"WARNING: scanner {host['url']}: {problem}; see `scanbridge status`", err=True)


def _is_known(host: dict[str, Any]) -> bool:
    return host.get("age_s") is not None or bool(_problem(host))


def _problem(host: dict[str, Any]) -> str:
    return str(host.get("problem") or host.get("status_problem") or "")


def _fail(text: str) -> NoReturn:
    say_lines(text, err=True)
    sys.exit(1)
