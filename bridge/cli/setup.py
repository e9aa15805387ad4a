"""`scanbridge setup`: print settings for the mail server. Changes nothing."""

from __future__ import annotations

from pathlib import Path

import click

from bridge.cli import postfix_commands, postfix_lines
from bridge.cli.common import config_option, fail_config, load_or_exit
from bridge.cli.single_values import Group
from bridge.cli.terminal import say_lines
from bridge.errors import ConfigError


@click.group(cls=Group)
def setup() -> None:
    """Print the mail server settings for this configuration. Changes nothing."""


@setup.command()
@config_option
@click.option(
    "--mode", type=click.Choice(postfix_lines.MODES), required=True, help="How Postfix passes mail to the bridge."
)
@click.option("--listener", help="Listener to use, if several are suitable.")
@click.option("--file", type=click.Choice(["main.cf", "master.cf"]), help="Print only the lines for this file.")
@click.option(
    "--commands", is_flag=True, help="Print postconf commands for `sh` instead; running them again changes nothing."
)
@click.option("--undo", is_flag=True, help="Print postconf commands for `sh` that remove these settings.")
def postfix(path: Path | None, mode: str, listener: str | None, file: str | None, commands: bool, undo: bool) -> None:
    """Print the lines for Postfix's main.cf and master.cf. Exit code 78 if no listener is suitable."""
    if (commands or undo) and file:
        raise click.UsageError(f"{'--undo' if undo else '--commands'} changes both files: leave out --file")
    try:
        lines = postfix_lines.for_postfix(load_or_exit(path), mode, listener)
    except ConfigError as exc:
        fail_config(ConfigError(f"{path or 'embedded default'}: {exc}"))
    if undo:
        say_lines(postfix_commands.undo(lines))
        return
    if commands:
        say_lines(postfix_commands.for_lines(lines, postfix_lines.next_step(path)))
        return
    if file:
        say_lines(lines.main if file == "main.cf" else lines.master)
        return
    say_lines(f"#### main.cf: add\n{lines.main}\n")
    if lines.master:
        say_lines(f"#### master.cf: add\n{lines.master}\n")
    say_lines(postfix_lines.next_step(path))
