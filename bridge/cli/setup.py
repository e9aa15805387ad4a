"""`scanbridge setup`: print settings for the mail server. Changes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.cli import postfix_commands, postfix_lines
from bridge.cli.config_option import config_option, fail_config, load_or_exit
from bridge.cli.postfix_lines import FRONT
from bridge.cli.single_values import Group
from bridge.cli.terminal import say_lines
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.config.model import Config


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
@click.option("--undo", is_flag=True, help="Print commands for `sh` that restore what --commands changed.")
@click.option(
    "--service",
    help="The smtpd service in master.cf that accepts mail from clients. [default: smtp/inet, or the only one]",
)
def postfix(
    path: Path | None,
    mode: str,
    listener: str | None,
    file: str | None,
    commands: bool,
    undo: bool,
    service: str | None,
) -> None:
    """Print the lines for Postfix's main.cf and master.cf.

    Exit code 78 if no listener is suitable or, with --commands, if master.cf does not contain the smtpd service
    (see --service). With --undo, all services are restored, or only the one that --service names.
    """
    _refuse_together(mode, file, commands, undo, service)
    try:
        conf = load_or_exit(path)
        front = _named(service)
        if commands and not undo and mode != "milter":
            front = _front(conf, front)
        lines = postfix_lines.for_postfix(conf, mode, listener, front or FRONT)
    except ConfigError as exc:
        fail_config(ConfigError(f"{path or 'embedded default'}: {exc}"))
    if undo:
        say_lines(postfix_commands.undo(lines, mode, front))
        return
    if commands:
        say_lines(postfix_commands.for_lines(lines, mode, postfix_lines.next_step(path), front or FRONT))
        return
    if file:
        say_lines(lines.main if file == "main.cf" else lines.master)
        return
    say_lines(f"#### main.cf: add\n{lines.main}\n")
    if lines.master:
        say_lines(f"#### master.cf: add\n{lines.master}\n")
    say_lines(postfix_lines.next_step(path))


def _refuse_together(mode: str, file: str | None, commands: bool, undo: bool, service: str | None) -> None:
    if (commands or undo) and file:
        raise click.UsageError(f"{'--undo' if undo else '--commands'} changes both files: leave out --file")
    if service and mode == "milter":
        raise click.UsageError("--mode milter applies to every smtpd: leave out --service")
    if service and undo and mode == "content-filter":
        raise click.UsageError("--undo --mode content-filter applies to all mail: leave out --service")


def _named(service: str | None) -> str | None:
    """`submission` is `submission/inet`."""
    if service is None:
        return None
    if not re.fullmatch(r"[\w.:\[\]-]+(/inet|/pass)?", service, re.ASCII):
        raise click.UsageError("--service: expected a service in master.cf, such as submission or 192.0.2.1:25/inet")
    return service if service.endswith(("/inet", "/pass")) else f"{service}/inet"


def _front(conf: Config, wanted: str | None) -> str | None:
    """The service in Postfix's master.cf. If there is no Postfix here, the script looks for it where it is run."""
    import subprocess

    from bridge.cli import postfix_settings

    try:
        settings = postfix_settings.read(None)
    except (OSError, subprocess.SubprocessError):
        return wanted
    return postfix_settings.front_service(conf, settings, wanted)
