"""`scanbridge lists refresh`: make the local copies of lists anew, now. A running daemon sees them within a second."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from bridge.cli.common import config_option, fail_config, load_or_exit
from bridge.cli.lists.session import EXIT_FAILED, exit_code, fail, run
from bridge.daemon import resources, wiring
from bridge.errors import BridgeError, ConfigError
from bridge.lists.copies import Copies
from bridge.lists.fetch import refresh as fetch

_GRAVITY = (EXIT_FAILED, 77, 75, 0)  # of several, the one that needs a person


@click.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="JSON for machines.")
def refresh(path: Path | None, as_json: bool) -> None:
    """Make the local copies of the lists that listeners enforce anew, now.

    Exit code 0 only if all are fresh; a copy that cannot be had stays as it was.
    """
    conf = load_or_exit(path)
    wanted = wiring.wanted_lists(conf)
    if not wanted:
        fail(ConfigError("no listener names lists: add lists: {block: [...]} to one"))
    copies = Copies(resources.state_directory(conf.state_directory) / "lists")
    try:
        resources.make_directory(copies.directory.parent, "state_directory")
        job = wiring.list_job(conf, copies.directory, wanted)
    except ConfigError as exc:
        fail_config(exc)
    try:
        problems = run(fetch(job))
    except OSError as exc:
        fail(NoPlace(f"{copies.directory}: cannot be written: {exc.strerror}"))
    copies.want(wanted)
    copies.look()
    codes = {exit_code(problem) for problem in problems.values()} | {0}
    code = next(one for one in _GRAVITY if one in codes)
    rows = []
    for one in wanted:
        copy, problem = copies.get(one.name, one.tenant), problems.get(str(one))
        about = {"entries": copy.table.about.count, "skipped": copy.table.about.skipped} if copy else {}
        rows.append({"list": one.name, "tenant": one.tenant, **about, "problem": str(problem) if problem else None})
        if not as_json:
            shown = f"{copy.table.about.count:,} entries" if copy else "no local copy"
            click.echo(f"{one}: {shown}" + (f"; not refreshed: {problem}" if problem else ""), err=bool(problem))
    if as_json:
        click.echo(json.dumps({"lists": rows, "exit_code": code}, indent=2))
    sys.exit(code)


class NoPlace(BridgeError):
    """The copies cannot be written."""
