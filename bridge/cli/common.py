"""What all commands share: finding the configuration, reporting its errors, the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from bridge.cli.terminal import say_lines
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.config.model import Config
    from bridge.runtime.endpoints import Endpoint

EXIT_CONFIG = 78  # EX_CONFIG: a service manager must not restart us
SYSTEM_CONFIG = Path("/etc/scanbridge/bridge.yml")  # the package's

config_option = click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path, dir_okay=False, readable=False),  # `load` says why it cannot be read
    envvar="SCANBRIDGE_CONFIG",
    default=lambda: SYSTEM_CONFIG if SYSTEM_CONFIG.exists() else None,
    help=f"Configuration file. Default: {SYSTEM_CONFIG} if it exists, else the embedded default.",
)


def load_or_exit(path: Path | None) -> Config:
    """The configuration, or all its errors on standard error and exit code 78."""
    from bridge.daemon import config_file

    try:
        return config_file.load(path)
    except ConfigError as exc:
        fail_config(exc)


def admin_address(path: Path | None) -> Endpoint:
    """Where the daemon of this configuration answers, or the configuration's errors and exit code 78."""
    from bridge.config import admin_address

    return admin_address.read(path) or load_or_exit(path).admin.address


def fail_config(exc: ConfigError) -> NoReturn:
    say_lines(str(exc), err=True)
    sys.exit(EXIT_CONFIG)
