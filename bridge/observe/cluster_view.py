"""One view of all nodes of a cluster, for `scanbridge status --cluster` and the console.

There is no service that knows all nodes: each bridge and worker is asked at the address that the configuration names,
all at the same time, and the bridges report the state of the API nodes. A node that does not answer costs one timeout.
Nodes that are unreachable or have a problem come first.
"""

from __future__ import annotations

import socket
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from bridge.observe import admin_client
from bridge.runtime.counted import counted, spoken
from bridge.runtime.endpoints import Endpoint

BRIDGE, API_NODE, WORKER = "bridge", "API node", "worker"
_TIMEOUT_S = 3.0
_MOST_NODES = 200  # per kind
_AT_ONCE = 64  # threads


@dataclass(frozen=True, slots=True)
class NodeView:
    kind: str
    address: str
    summary: str
    is_reached: bool = True
    problem: str = ""  # why it is not working
    warnings: tuple[str, ...] = ()

    @property
    def rank(self) -> int:
        """Sort key: nodes that need attention first."""
        return 0 if not self.is_reached else 1 if self.problem else 2 if self.warnings else 3


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
        for kind in (BRIDGE, API_NODE, WORKER):
            nodes = [node for node in self.nodes if node.kind == kind]
            if nodes:
                well = sum(node.is_reached and not node.problem for node in nodes)
                parts.append(f"{well} of {counted(len(nodes), kind)}")
        return f"{', '.join(parts)} ready" if parts else "no nodes"

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.is_well, "warnings": list(self.warnings), "nodes": [asdict(node) for node in self.nodes]}


def look(bridges: list[Endpoint], workers: list[Endpoint], timeout_s: float = _TIMEOUT_S) -> ClusterView:
    """Ask all nodes."""
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        found = [(BRIDGE, address) for address in _each(pool, bridges)]
        found += [(WORKER, address) for address in _each(pool, workers)]
        answers = list(pool.map(lambda node: _ask(node[0], node[1], timeout_s), found))
    states = [state for state, _ in answers if state is not None]
    nodes = [node for _, node in answers] + _api_nodes(states)
    versions = sorted({str(state["version"]) for state in states})
    warnings = (f"bridges run different versions: {', '.join(versions)}",) if len(versions) > 1 else ()
    return ClusterView(tuple(sorted(nodes, key=lambda node: node.rank)), warnings)


def _each(pool: ThreadPoolExecutor, addresses: list[Endpoint]) -> list[Endpoint]:
    """A name stands for all its addresses, as that of a headless Kubernetes service does."""
    found = [resolved for some in pool.map(_resolved, addresses) for resolved in some]
    return list(dict.fromkeys(found))[:_MOST_NODES]


def _resolved(address: Endpoint) -> list[Endpoint]:
    if address.host:
        with suppress(OSError, UnicodeError):  # unknown: the node does not answer
            entries = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            return [Endpoint(str(entry[4][0]), address.port) for entry in entries]
    return [address]


def _ask(kind: str, address: Endpoint, timeout_s: float) -> tuple[dict[str, Any] | None, NodeView]:
    if kind == WORKER:
        return None, _worker(address, timeout_s)
    state = admin_client.ask(address, timeout_s)
    if state is None:
        return None, NodeView(kind, str(address), "does not answer", is_reached=False)
    problems = [str(text) for text in state.get("problems", ())]
    if not state["ready"] and not problems:
        problems = ["not ready"]
    summary = (
        f"{state['version']}, up {spoken(state['uptime_s'])}, "
        f"{state['in_processing']} of {state['max_in_processing']} mails "
        f"being processed, {state.get('mails', {}).get('summary', 'mail unknown')}"
    )
    warnings = tuple(map(str, state.get("warnings", ())))
    return state, NodeView(kind, str(address), summary, problem="; ".join(problems), warnings=warnings)


def _worker(address: Endpoint, timeout_s: float) -> NodeView:
    answer = admin_client.exchange(address, "/readyz", timeout_s)
    if answer is None:
        return NodeView(WORKER, str(address), "does not answer", is_reached=False)
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
