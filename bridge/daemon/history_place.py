"""Where the history of this configuration is, and how addresses appear in it: for `wiring`, and for short commands.

Commands that read the history must answer at once, so nothing here imports SQLAlchemy unless the history is in
PostgreSQL.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.config.model import Config
from bridge.daemon import directories, named_files
from bridge.errors import ConfigError
from bridge.history import segment_files
from bridge.history.sqlite import SqliteHistory
from bridge.history.store import HistoryStore
from bridge.observe.redaction import FULL, Redaction
from bridge.runtime import durable_files

if TYPE_CHECKING:
    from bridge.runtime.database import Database


def has_server(conf: Config) -> bool:
    """Whether the state is in a database that other machines may share."""
    return not (conf.state_database or "sqlite:").startswith("sqlite:")


def history_directory(state: Path) -> Path:
    return state / "history"


def older_history(conf: Config, state: Path) -> Path | None:
    """The directory of the history that was kept before `state_database` was set: it is no longer searched."""
    directory = history_directory(state)
    return directory if has_server(conf) and segment_files.has_mails(directory) else None


def history(conf: Config, state: Path, wait_s: float | None = None) -> HistoryStore:
    """`wait_s`: how long a query of a database server may take. Raises ConfigError."""
    if not has_server(conf):
        return SqliteHistory(history_directory(state))
    from bridge.history.postgresql import BUSY_S, PostgresHistory  # it needs the driver

    return PostgresHistory(server(conf), BUSY_S if wait_s is None else wait_s)


def server(conf: Config) -> Database:
    """The database in `state_database`, which is not SQLite. Raises ConfigError."""
    password = _password(conf)
    if find_spec("psycopg") is None:
        raise ConfigError("state_database: the PostgreSQL driver is missing: pip install 'scanbridge[postgresql]'")
    from bridge.runtime.database import Database

    assert conf.state_database is not None
    return Database(conf.state_database, password, partial(_current_password, conf))


def _password(conf: Config) -> str | None:
    return read_secret(conf, conf.state_database_password_file, "state_database_password_file")


def _current_password(conf: Config) -> str | None:
    """The password at this moment; None if its file cannot be read."""
    try:
        return _password(conf)
    except ConfigError:
        return None


def redaction(conf: Config, state: Path | None = None) -> Redaction:
    """How addresses appear in the log and in the history. Raises ConfigError."""
    if conf.log.addresses == "full":
        return FULL
    if conf.log.addresses == "domain":
        return Redaction("domain")
    directory = state or directories.state_directory(conf.state_directory)
    path = directories.make_directory(directory, "state_directory") / "log-key"
    named_files.make_secret(path, "log.addresses")
    durable_files.give_to_owner(path)
    return Redaction("hashed", named_files.read_own_secret(path, "log.addresses").encode()[:64])  # BLAKE2's longest key


def read_secret(conf: Config, name: str | None, key: str) -> str | None:
    return named_files.read_secret(named_files.locate(name, conf.directory), key) if name else None
