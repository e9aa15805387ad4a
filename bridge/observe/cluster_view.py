"""One view of all nodes of a cluster, for `scanbridge status --cluster` and the console.

There is no service that knows all nodes: each is asked at the address that the configuration names, all at the same
time, and the bridges report the state of the API nodes. A node that does not answer costs one timeout. Nodes that are
unreachable or have a problem come first.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from bridge.observe import admin_client, cluster_servers
from bridge.observe.node_view import API_NODE, BRIDGE, KINDS, WORKER, NodeView, unreached
from bridge.quarantine.s3_store import S3Settings
from bridge.runtime.counted import counted, spoken
from bridge.runtime.database import Database
from bridge.runtime.endpoints import Endpoint

T = TypeVar("T")
Answer = tuple[dict[str, Any] | None, NodeView]  # a bridge's whole status, and what is shown

_TIMEOUT_S = 3.0
_MOST_NODES = 200  # per kind
_AT_ONCE = 64  # threads


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes to ask."""

    bridges: tuple[Endpoint, ...] = ()  # their admin addresses
    workers: tuple[Endpoint, ...] = ()
    nats: tuple[Endpoint, ...] = ()  # their monitoring pages
    haproxy: tuple[Endpoint, ...] = ()  # their metrics
    database: Database | None = None  # a PostgreSQL server
    storage: S3Settings | None = None
    unasked: tuple[NodeView, ...] = ()  # those that cannot be asked, and why


@dataclass(frozen=True, slots=True)
class ClusterView:
    nodes: tuple[NodeView, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        return not any(node.problem or not node.is_reached for node in self.nodes)

    def summary(self) -> str:
        """How many nodes of each kind are ready."""
        parts = []
        for kind, nouns in KINDS.items():
            nodes = [node for node in self.nodes if node.kind == kind]
            if nodes:
                well = sum(node.is_reached and not node.problem for node in nodes)
                parts.append(f"{well} of {counted(len(nodes), *nouns)}")
        return f"{', '.join(parts)} ready" if parts else "no nodes"

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.is_well, "warnings": list(self.warnings), "nodes": [asdict(node) for node in self.nodes]}


def look(nodes: Nodes, timeout_s: float = _TIMEOUT_S) -> ClusterView:
    """Ask all nodes."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        answers = list(pool.map(lambda ask: ask(), _questions(pool, nodes, timeout_s)))
    states = [state for state, _ in answers if state is not None]
    found = [*(node for _, node in answers), *_api_nodes(states), *nodes.unasked]
    versions = sorted({str(state["version"]) for state in states})
    warnings = (f"bridges run different versions: {', '.join(versions)}",) if len(versions) > 1 else ()
    order = list(KINDS)
    return ClusterView(tuple(sorted(found, key=lambda node: (node.rank, order.index(node.kind)))), warnings)


def _questions(pool: ThreadPoolExecutor, nodes: Nodes, timeout_s: float) -> list[Callable[[], Answer]]:
    """One for each node."""
    named: list[tuple[Callable[[Endpoint, float], Answer], tuple[Endpoint, ...]]] = [
        (_bridge, nodes.bridges),
        (_with_no_state(_worker), nodes.workers),
        (_with_no_state(cluster_servers.nats), nodes.nats),
        (_with_no_state(cluster_servers.haproxy), nodes.haproxy),
    ]
    found: list[Callable[[], Answer]] = [
        partial(ask, address, timeout_s) for ask, addresses in named for address in _each(pool, addresses)
    ]
    if nodes.database is not None:
        found.append(partial(_with_no_state(cluster_servers.postgresql), nodes.database, timeout_s))
    if nodes.storage is not None:
        found.append(partial(_with_no_state(cluster_servers.storage), nodes.storage, timeout_s))
    return found


def _with_no_state(ask: Callable[[T, float], NodeView]) -> Callable[[T, float], Answer]:
    return lambda node, timeout_s: (None, ask(node, timeout_s))


def _each(pool: ThreadPoolExecutor, addresses: tuple[Endpoint, ...]) -> list[Endpoint]:
    """A name stands for all its addresses, as that of a headless Kubernetes service does."""
    found = [resolved for some in pool.map(_resolved, addresses) for resolved in some]
    return list(dict.fromkeys(found))[:_MOST_NODES]


def _resolved(address: Endpoint) -> list[Endpoint]:
    if address.host:
        with suppress(OSError, UnicodeError):  # unknown: the node does not answer
            entries = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            return [Endpoint(str(entry[4][0]), address.port) for entry in entries]
    return [address]


def _bridge(address: Endpoint, timeout_s: float) -> Answer:
    state = admin_client.ask(address, timeout_s)
    if state is None:
        return None, unreached(BRIDGE, address)
    problems = [str(text) for text in state.get("problems", ())]
    if not state["ready"] and not problems:
        problems = ["not ready"]
    summary = (
        f"{state['version']}, up {spoken(state['uptime_s'])}, "
        f"{state['in_processing']} of {state['max_in_processing']} mails "
        f"being processed, {state.get('mails', {}).get('summary', 'mail counts unknown')}"
    )
    warnings = tuple(map(str, state.get("warnings", ())))
    return state, NodeView(BRIDGE, str(address), summary, problem="; ".join(problems), warnings=warnings)


def _worker(address: Endpoint, timeout_s: float) -> NodeView:
    answer = admin_client.exchange(address, "/readyz", timeout_s)
    if answer is None:
        return unreached(WORKER, address)
    if answer[0] == 200:
        return NodeView(WORKER, str(address), "ready")
    return NodeView(WORKER, str(address), "not ready", problem="not taking mail; see its log")


def _api_nodes(states: list[dict[str, Any]]) -> list[NodeView]:
    """The API nodes, as reported by the bridges."""
    seen: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for state in states:
        for host in state.get("scanner", ()):
            seen[str(host["url"])].append(host)
    return [_api_node(url, hosts) for url, hosts in seen.items()]


def _api_node(url: str, hosts: list[dict[str, Any]]) -> NodeView:
    reasons = [str(host["problem"]) for host in hosts if host.get("problem")]
    statuses = sorted({str(host["status"]) for host in hosts})
    summary = f"{', '.join(statuses)}, {sum(int(host['in_flight']) for host in hosts)} in flight"
    if not reasons:
        return NodeView(API_NODE, url, summary)
    which = "for all bridges" if len(reasons) == len(hosts) else f"for {len(reasons)} of {len(hosts)} bridges"
    return NodeView(API_NODE, url, summary, problem=f"{reasons[0]} ({which})")
