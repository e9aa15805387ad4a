"""The work of `scanbridge lists refresh`: refresh the local copies now. A running daemon uses them within a second."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from bridge.cli.config_option import fail_config, load_or_exit
from bridge.cli.lists.session import EXIT_FAILED, EXIT_KEY, EXIT_TEMPORARY, exit_code, fail, hint, run, with_hint
from bridge.cli.state import make_state_directory
from bridge.cli.terminal import say, say_json
from bridge.daemon import list_wiring
from bridge.errors import BridgeError, ConfigError
from bridge.lists.copies import Copies
from bridge.lists.fetch import refresh as fetch
from bridge.runtime.counted import counted

_MOST_SERIOUS_FIRST = (EXIT_FAILED, EXIT_KEY, EXIT_TEMPORARY, 0)


def refresh(path: Path | None, as_json: bool) -> NoReturn:
    """Ends the process with its exit code."""
    conf = load_or_exit(path)
    wanted = list_wiring.wanted_lists(conf)
    if not wanted:
        say("nothing to refresh: no listener enforces a list", err=True)
        if as_json:
            say_json({"lists": [], "exit_code": 0}, indent=2)
        sys.exit(0)
    try:
        copies = Copies(make_state_directory(conf, path) / "lists")
        job = list_wiring.list_job(conf, copies.directory, wanted)
    except ConfigError as exc:
        fail_config(exc)
    try:
        problems = run(fetch(replace(job, settings=with_hint(job.settings))))
    except OSError as exc:
        step = "check its owner and the free space"
        fail(CopiesUnwritable(f"{copies.directory} cannot be written to: {exc.strerror}; {step}"))
    copies.want(wanted)
    copies.look()
    codes = {exit_code(problem) for problem in problems.values()} | {0}
    code = next(code for code in _MOST_SERIOUS_FIRST if code in codes)
    rows = []
    for listed in wanted:
        copy, problem = copies.get(listed.name, listed.tenant), problems.get(str(listed))
        about = {"entries": copy.table.about.count, "skipped": copy.table.about.skipped} if copy else {}
        rows.append(
            {"list": listed.name, "tenant": listed.tenant, **about, "problem": str(problem) if problem else None}
        )
        if not as_json:
            count = copy.table.about.count if copy else 0
            shown = counted(count, "entry", "entries") if copy else "no local copy"
            say(
                f"{listed}: {shown}" + (f"; not refreshed: {problem}{hint(problem)}" if problem else ""),
                err=bool(problem),
            )
    if as_json:
        say_json({"lists": rows, "exit_code": code}, indent=2)
    sys.exit(code)


class CopiesUnwritable(BridgeError):
    """The local copies cannot be written."""
