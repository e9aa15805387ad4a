"""`scanbridge service check`: the queue of analyses in NATS, and its workers."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bridge.cli.check.finding import Finding
from bridge.daemon.service_process import located
from bridge.errors import ConfigError
from bridge.runtime.counted import counted
from bridge.service.config_files import Loaded
from bridge.service.nats_settings import Nats
from bridge.service.store import Store

if TYPE_CHECKING:
    from bridge.service.cluster.probe import Found

_WHERE = ("abby", "serviceProviders", "core", "nats")


async def check_queue(loaded: Loaded) -> list[Finding]:
    settings = loaded.config.abby.serviceProviders.core.nats
    if settings is None:
        return []
    try:
        from bridge.service.cluster.probe import probe
    except ImportError:
        return [Finding("nats", f"{loaded.at(*_WHERE)}: a library is missing: pip install 'scanbridge[nats]'")]
    try:
        servers = await probe(settings, Store(loaded.config.database_url).identity())
    except ConfigError as exc:
        return [Finding("nats", located(loaded, exc))]
    where = loaded.at(*_WHERE)
    found = [
        Finding(f"nats {server.server}", f"{where}: {server.server}: {server.problem}" if server.problem else "")
        for server in servers
    ]
    reached = [server for server in servers if not server.problem]
    found += _secrets(loaded, settings)
    return found + (list(_workers(where, settings, reached)) if reached else [])


def _secrets(loaded: Loaded, settings: Nats) -> Iterator[Finding]:
    for key in ("credentials_file", "token_file", "password_file", "client_key_file"):
        name = getattr(settings, key)
        path = settings.path(name) if name else None
        if path is not None and path.stat().st_mode & stat.S_IROTH:
            text = f"{loaded.at(*_WHERE, key)}: every user of this machine can read this file; run chmod 600 {path}"
            yield Finding(f"nats {key}", warning=text)


def _workers(where: str, settings: Nats, servers: list[Found]) -> Iterator[Finding]:
    workers = {id_: sign for server in servers for id_, sign in server.workers.items()}
    strangers = set().union(*(server.strangers for server in servers))
    detail = f"{len(workers)} connected, {sum(sign.slots for sign in workers.values())} slots"
    none = "no worker is connected, so mail is refused; start `scanbridge service worker` with this configuration"
    yield Finding("workers", detail=detail, warning="" if workers else f"{where}: {none}")
    if strangers:
        others = counted(len(strangers), "worker")
        text = f"not used: {others} with another database; set `database` to the same value"
        yield Finding("workers", warning=f"{where}: {text}")
    if settings.replicas == 1 and any(server.is_cluster for server in servers):
        text = "NATS is a cluster, but each queued mail is stored on only one server; set `replicas: 3`"
        yield Finding("nats", warning=f"{where}: {text}")
