"""`scanbridge setup`: what to write into the mail server's files. It prints, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import click

from bridge.cli import postfix_lines
from bridge.cli.common import config_option, fail_config, load_or_exit
from bridge.errors import ConfigError


@click.group()
def setup() -> None:
    """Print what the mail server needs, for this configuration. Nothing is changed."""


@setup.command()
@config_option
@click.option("--mode", type=click.Choice(postfix_lines.MODES), required=True, help="How Postfix uses the bridge.")
@click.option("--listener", help="Which one, where several fit.")
@click.option("--file", type=click.Choice(["main.cf", "master.cf"]), help="The lines of this file only.")
def postfix(path: Path | None, mode: str, listener: str | None, file: str | None) -> None:
    """Print the lines for Postfix's main.cf and master.cf. Exit code 78 when no listener fits."""
    try:
        lines = postfix_lines.for_postfix(load_or_exit(path), mode, listener)
    except ConfigError as exc:
        fail_config(ConfigError(f"{path or 'embedded default'}: {exc}"))
    if file:
        click.echo(lines.main if file == "main.cf" else lines.master, nl=False)
        return
    click.echo(f"#### main.cf: add\n{lines.main}")
    if lines.master:
        click.echo(f"#### master.cf: add\n{lines.master}")
    click.echo("# Then: postfix check && postfix reload && scanbridge check --postfix /etc/postfix")
