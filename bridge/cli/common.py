"""What all commands share: finding the configuration, reporting its errors, the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import click

from bridge.cli.terminal import say_lines
from bridge.config.model import Config
from bridge.daemon.daemon import load
from bridge.errors import ConfigError

EXIT_CONFIG = 78  # EX_CONFIG: a service manager must not restart us

config_option = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="SCANBRIDGE_CONFIG",
    help="Configuration file. If omitted, the embedded default is used.",
)


def load_or_exit(path: Path | None) -> Config:
    """The configuration, or all its errors on standard error and exit code 78."""
    try:
        return load(path)
    except ConfigError as exc:
        fail_config(exc)


def fail_config(exc: ConfigError) -> NoReturn:
    say_lines(str(exc), err=True)
    sys.exit(EXIT_CONFIG)
