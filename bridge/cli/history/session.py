"""What the commands that read the history share: the configuration, the store, and questions with hidden addresses.

With `log.addresses`, the history has pseudonyms or domains instead of addresses; the question is changed in the same
way, or answered with the reason why it cannot be. Exit codes: 0 found, 3 nothing found (`explain`), 75 the history
cannot be read now, 78 configuration.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from bridge.cli.config_option import fail_config, load_or_exit
from bridge.cli.state import state_directory
from bridge.cli.terminal import say
from bridge.config.model import Config
from bridge.daemon import history_place
from bridge.errors import ConfigError
from bridge.history.hidden_addresses import HiddenAddresses
from bridge.history.next_commands import with_file
from bridge.history.query import HistoryQuery
from bridge.history.store import HistoryError, HistoryStore
from bridge.observe.redaction import Redaction

EXIT_NOT_FOUND, EXIT_LATER = 3, 75
_PATIENCE_S = 60.0  # an operator waits longer than the daemon
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HistorySession:
    config: Config
    path: Path | None
    state: Path
    store: HistoryStore
    redaction: Redaction

    @classmethod
    def open(cls, path: Path | None) -> HistorySession:
        conf = load_or_exit(path)
        try:
            state = state_directory(conf, path)
            if not history_place.has_server(conf):
                _need_readable(history_place.history_directory(state))
            store = history_place.history(conf, state, _PATIENCE_S)
            click.get_current_context().call_on_close(store.close)
            return cls(conf, path, state, store, history_place.redaction(conf, state))
        except ConfigError as exc:
            fail_config(exc)

    def query(self, wanted: dict[str, Any], **more: Any) -> HistoryQuery:
        """With addresses as the history has them."""
        try:
            return self.hidden.query(wanted, **more)
        except ValueError as exc:
            raise click.UsageError(str(exc)) from None

    @property
    def hidden(self) -> HiddenAddresses:
        return HiddenAddresses(self.redaction)

    def read(self, work: Callable[[], T]) -> T:
        """Run a search; exits if the history cannot be read."""
        try:
            return work()
        except HistoryError as exc:
            fail(f"the history cannot be read: {exc}", EXIT_LATER)

    @property
    def place(self) -> str:
        """Where it is, in words."""
        if history_place.has_server(self.config):
            return "the database in state_database"
        return str(history_place.history_directory(self.state))

    def command(self, *words: str) -> str:
        """A command line for the same configuration, to be copied."""
        return with_configuration(f"scanbridge {' '.join(map(shlex.quote, words))}", self.path)


def with_configuration(command: str, path: Path | None) -> str:
    """The same with `-c`, if that was given for this command."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("path") if context else None
    return command if source is not click.core.ParameterSource.COMMANDLINE else with_file(command, path)


def fail(text: str, code: int) -> NoReturn:
    say(text, err=True)
    sys.exit(code)


def _need_readable(directory: Path) -> None:
    """An unreadable directory would look like an empty history."""
    try:
        next(directory.iterdir(), None)
    except FileNotFoundError:
        pass
    except OSError as exc:
        step = "run this command as root or as the daemon's user"
        fail(f"{directory} cannot be read: {exc.strerror}; {step}", EXIT_LATER)
