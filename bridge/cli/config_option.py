"""What all commands share: finding the configuration, reporting its errors, the exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from bridge.cli.terminal import say_lines
from bridge.errors import ConfigError

if TYPE_CHECKING:
    from bridge.config.model import Config
    from bridge.runtime.endpoints import Endpoint

EXIT_CONFIG = 78  # EX_CONFIG: a service manager must not restart us
VARIABLE = "SCANBRIDGE_CONFIG"
SYSTEM_CONFIG = Path("/etc/scanbridge/bridge.yml")  # the package's


class _ConfigOption(click.Option):
    def get_error_hint(self, ctx: click.Context | None) -> str:
        """What to correct: the variable, if the value came from there, and not -c."""
        if ctx is not None and ctx.get_parameter_source(str(self.name)) is ParameterSource.ENVIRONMENT:
            return f"the environment variable {self.envvar}"
        return super().get_error_hint(ctx)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """An empty value comes from an unset variable in a script; as a path it would mean the current directory."""
        if value == "":
            raise click.BadParameter("the file name is empty: give a file, or leave out -c", ctx=ctx, param=self)
        return super().type_cast_value(ctx, value)


config_option = click.option(
    "-c",
    "--config",
    "path",
    cls=_ConfigOption,
    type=click.Path(path_type=Path, dir_okay=False, readable=False),  # `load` says why it cannot be read
    envvar=VARIABLE,
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


def no_daemon(address: Endpoint) -> str:
    """The message if no daemon answers at the admin address."""
    from bridge.runtime.port_owner import listener

    if not address.systemd and (found := listener(address)):
        return (
            f"no daemon answers at {address} (admin.address), although {found} listens there. If that is the daemon, "
            "it is still starting or not responding: try again, then check its log and restart it. "
            "If it is another program, change admin.address"
        )
    return (
        f"no daemon answers at {address} (admin.address); is it running? Start it with `scanbridge run`, "
        "or give the configuration of the running daemon with -c "
        "(if you have changed admin.address, restart the daemon)"
    )


def configuration_used() -> str:
    """The end of a line that says that nothing was found: which configuration was used, unless -c named it."""
    context = click.get_current_context(silent=True)
    if context is None or context.get_parameter_source("path") is ParameterSource.COMMANDLINE:
        return ""
    path = context.params.get("path")
    return f"; configuration: {path or 'the embedded default'} (use -c FILE for another one)"


def fail_config(exc: ConfigError) -> NoReturn:
    from bridge.config.line_of_key import with_lines
    from bridge.runtime.yaml_file import CHECK_PATH

    text = str(exc).replace(CHECK_PATH, _check_path())
    say_lines(with_lines(text, _path_used()), err=True)
    sys.exit(EXIT_CONFIG)


def _path_used() -> Path | None:
    """The configuration of the bridge that this command uses; None for the embedded default."""
    context = click.get_current_context(silent=True)
    return None if context is None or context.params.get("demo") else context.params.get("path")


def _check_path() -> str:
    """The next step if the configuration cannot be found: it depends on how its path was given."""
    context: click.Context | None = click.get_current_context()
    while context is not None:
        match context.get_parameter_source("path"):
            case ParameterSource.COMMANDLINE:
                return "check the path given with -c"
            case ParameterSource.ENVIRONMENT:
                return f"check the environment variable {VARIABLE}"
        context = context.parent
    return "give the file with -c"
