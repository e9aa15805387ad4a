"""The nodes of this configuration's cluster: those listed in `cluster`, and the servers that the bridges share."""

from __future__ import annotations

from bridge.config.model import Config
from bridge.daemon import history_place, wiring
from bridge.errors import ConfigError
from bridge.observe.cluster_view import Nodes
from bridge.observe.node_view import POSTGRESQL, STORAGE, NodeView
from bridge.quarantine.s3_store import S3Settings
from bridge.runtime.database import Database


def nodes_of(conf: Config) -> Nodes:
    """If a password cannot be read, its server is not queried, and the view says so."""
    unasked: list[NodeView] = []
    database: Database | None = None
    storage: S3Settings | None = None
    try:
        database = history_place.server(conf) if history_place.has_server(conf) else None
    except ConfigError as exc:
        unasked.append(_unasked(POSTGRESQL, "state_database", exc))
    try:
        storage = wiring.bucket_settings(conf)
    except ConfigError as exc:
        unasked.append(_unasked(STORAGE, "quarantine.s3", exc))
    named = conf.cluster
    return Nodes(
        bridges=tuple(named.bridges),
        workers=tuple(named.workers),
        nats=tuple(named.nats),
        haproxy=tuple(named.haproxy),
        database=database,
        storage=storage,
        unasked=tuple(unasked),
    )


def _unasked(kind: str, key: str, exc: ConfigError) -> NodeView:
    return NodeView(kind, f"in {key}", f"cannot be queried ({exc})", is_reached=False)
