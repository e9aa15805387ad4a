"""The servers that a cluster is built on, each asked once: NATS, PostgreSQL, S3 storage and HAProxy.

NATS and HAProxy are queried through their monitoring pages, which need no password; PostgreSQL and the storage are
queried as the bridges use them. The result says which NATS server leads, and whether PostgreSQL is the primary: with a
standby at its address, mail passes, but nothing is written. Changes nothing anywhere.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

from bridge.errors import BridgeError
from bridge.observe import admin_client
from bridge.observe.node_view import HAPROXY, NATS, POSTGRESQL, STORAGE, NodeView, unreached
from bridge.quarantine import s3_store
from bridge.quarantine.s3_store import S3Settings
from bridge.runtime.counted import counted, spoken
from bridge.runtime.database import Database
from bridge.runtime.endpoints import Endpoint
from bridge.runtime.server_role import server_address, server_role

_SERVER_STATUS = re.compile(r'^haproxy_server_status\{proxy="([^"]*)",server="([^"]*)",state="([^"]*)"\} 1\b', re.M)
_PROCESS = re.compile(r"^haproxy_process_uptime_seconds (\d+)", re.M)
_VERSION = re.compile(r'^haproxy_process_build_info\{version="([^"]*)"\}', re.M)
_UP, _INTENDED = "UP", frozenset({"MAINT", "DRAIN", "NOLB"})  # what an operator, or the server itself, has asked for


def nats(address: Endpoint, timeout_s: float) -> NodeView:
    """`address` is that of its `http` setting."""
    about = _object(address, "/varz", timeout_s)
    if about is None or "server_name" not in about:
        return unreached(NATS, address)
    streams = _object(address, "/jsz?accounts=true&streams=true", timeout_s)
    if streams is None:
        return NodeView(
            NATS, str(address), str(about["server_name"]), problem="its /jsz page (JetStream) does not respond"
        )
    health = admin_client.exchange(address, "/healthz", timeout_s)
    name = str(about["server_name"])
    summary = f"{name}, {about.get('version', 'unknown version')}, up {about.get('uptime', 'unknown')}, "
    summary += _nats_role(name, streams)
    return NodeView(NATS, str(address), summary, problem=_nats_problem(streams, health))


def _nats_role(name: str, jetstream: dict[str, Any]) -> str:
    if "meta_cluster" not in jetstream:
        return "the only server"
    roles = ["leads JetStream"] if _leader(jetstream, "meta_cluster") == name else []
    streams = [stream for account in _list(jetstream, "account_details") for stream in _list(account, "stream_detail")]
    led = sorted(str(stream.get("name")) for stream in streams if _leader(stream, "cluster") == name)
    roles += [f"leads {', '.join(led)}"] if led else []
    return " and ".join(roles) or "follows"


def _nats_problem(jetstream: dict[str, Any], health: tuple[int, bytes] | None) -> str:
    if "server_id" not in jetstream or jetstream.get("disabled"):
        return "JetStream is not enabled"
    if "meta_cluster" in jetstream and not _leader(jetstream, "meta_cluster"):
        return "JetStream has no leader"
    if health is None or health[0] != 200:
        return f"not healthy: {_error_of(health)}"
    return ""


def _leader(about: dict[str, Any], key: str) -> str:
    group = about.get(key)
    return str(group.get("leader") or "") if isinstance(group, dict) else ""


def _list(about: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = about.get(key)
    return [part for part in found if isinstance(part, dict)] if isinstance(found, list) else []


def _error_of(health: tuple[int, bytes] | None) -> str:
    try:
        return str(json.loads(health[1])["error"]) if health else "no answer"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "see its log"


def postgresql(database: Database, timeout_s: float) -> NodeView:
    address = server_address(database)
    try:
        role = server_role(database, timeout_s)
    except BridgeError as exc:
        return unreached(POSTGRESQL, address, str(exc))
    if not role.is_primary:
        return NodeView(POSTGRESQL, address, f"{role.version}, standby", problem="a standby, which accepts no writes")
    return NodeView(POSTGRESQL, address, f"{role.version}, primary, {counted(role.standbys, 'standby', 'standbys')}")


def storage(settings: S3Settings, timeout_s: float) -> NodeView:
    try:
        s3_store.reach(settings, timeout_s)
    except BridgeError as exc:
        return unreached(STORAGE, settings.name, str(exc))
    return NodeView(STORAGE, settings.name, "answers")


def haproxy(address: Endpoint, timeout_s: float) -> NodeView:
    """`address` is that of its `prometheus-exporter`."""
    page = admin_client.get(address, "/metrics?scope=global&scope=server", timeout_s)
    text = page.decode(errors="replace") if page is not None else ""
    up = _PROCESS.search(text)
    if up is None:
        return unreached(HAPROXY, address)
    version = _VERSION.search(text)
    summary = f"{version[1] if version else 'unknown version'}, up {spoken(float(up[1]))}"
    states: dict[str, dict[str, str]] = defaultdict(dict)
    for proxy, server, state in _SERVER_STATUS.findall(text):
        states[proxy][server] = state
    dead = [proxy for proxy, servers in states.items() if not _up(servers)]
    for proxy, servers in states.items():
        summary += f", {len(_up(servers))} of {counted(len(servers), 'server')} of {proxy} up"
    down = [
        f"{server} of {proxy} is {state}"
        for proxy, servers in states.items()
        for server, state in servers.items()
        if state != _UP and state not in _INTENDED
    ]
    problem = f"no server of {', '.join(dead)} is up" if dead else ""
    return NodeView(HAPROXY, str(address), summary, problem=problem, warnings=tuple(down))


def _up(servers: dict[str, str]) -> list[str]:
    return [server for server, state in servers.items() if state == _UP]


def _object(address: Endpoint, page: str, timeout_s: float) -> dict[str, Any] | None:
    answer = admin_client.get(address, page, timeout_s)
    try:
        found = json.loads(answer) if answer is not None else None
    except (ValueError, RecursionError):  # another program's answer
        return None
    return found if isinstance(found, dict) else None
