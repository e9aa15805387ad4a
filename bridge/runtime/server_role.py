"""Which PostgreSQL server answers at an address now: the primary, or a standby that accepts no writes.

For the views of a cluster. After a failover, another server answers at the same address.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, make_url, select, text
from sqlalchemy.exc import SQLAlchemyError

from bridge.runtime.database import Database, DatabaseUnusable, reason

_PORT = 5432


@dataclass(frozen=True, slots=True)
class ServerRole:
    version: str
    is_primary: bool
    standbys: int  # that receive its changes now


def server_address(database: Database) -> str:
    """Host and port, or the directory of its socket; no user and no options."""
    url = make_url(database.url)
    named = url.host or url.query.get("host", "localhost")
    if not isinstance(named, str):  # several servers, of which one is the primary
        return ", ".join(named)
    host = named
    if host.startswith("/"):
        return host
    return f"[{host}]:{url.port or _PORT}" if ":" in host else f"{host}:{url.port or _PORT}"


def server_role(database: Database, timeout_s: float) -> ServerRole:
    """Ask the server. Raises DatabaseUnusable."""
    engine = database.engine(wait_s=timeout_s, connections=1, statement_s=timeout_s)
    try:
        with engine.connect() as connection:
            facts = select(func.current_setting("server_version"), func.pg_is_in_recovery())
            version, is_standby = connection.execute(facts).one()
            standbys = connection.execute(text("SELECT count(*) FROM pg_stat_replication")).scalar_one()
    except SQLAlchemyError as exc:
        raise DatabaseUnusable(reason(exc)) from exc
    finally:
        engine.dispose()
    return ServerRole(str(version).split()[0], not is_standby, int(standbys))
