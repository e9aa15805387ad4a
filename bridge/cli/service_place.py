"""Where the service's configuration and database are, for all commands about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bridge.cli.config_option import EXIT_CONFIG, fail_config
from bridge.cli.terminal import say, say_lines
from bridge.errors import BridgeError, ConfigError

if TYPE_CHECKING:
    from bridge.service.config_files import Loaded
    from bridge.service.store import Store

DEFAULT = Path("service.yml")
CONFIG_HELP = "Configuration of the service: a file, or a directory with guard/core/guard.yml and abby/abby/abby.yml."
own_config = click.option("-c", "--config", "own", type=click.Path(path_type=Path), help=CONFIG_HELP)


@contextmanager
def opened_store(path: Path | None) -> Iterator[Store]:
    """The service's database. An error ends the command."""
    from bridge.cli.state import act_for
    from bridge.runtime.database import Database
    from bridge.service.store import Store

    url = _database(path)
    store = Store(url)
    try:
        if (file := Database(url).path) is not None:
            act_for(file.parent, "database")
        store.open()
        yield store
    except BridgeError as exc:
        say_lines(f"scanbridge service: {exc}", err=True)
        sys.exit(1)
    finally:
        store.close()


def _database(path: Path | None) -> str:
    """The configured one; without a configuration, that of the service embedded in `scanbridge run --demo`."""
    if path is None and not DEFAULT.exists():
        from bridge.daemon import config_file, directories
        from bridge.service import settings

        state = directories.state_directory(None, config_file.DEMO)
        if not state.exists():
            say(
                "service.yml was not found, and there is no embedded service yet: use -c FILE, or start "
                "`scanbridge run --demo`",
                err=True,
            )
            sys.exit(EXIT_CONFIG)
        say(f"using the database of the embedded service in {state}", err=True)
        return settings.embedded_database(state)
    return load_or_exit(path or DEFAULT).config.database_url


def load_or_exit(path: Path) -> Loaded:
    from bridge.service.config_files import load

    try:
        return load(path)
    except ConfigError as exc:
        fail_config(exc)
