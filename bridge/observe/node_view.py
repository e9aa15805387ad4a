"""What is known about one node of a cluster, and the kinds of nodes in the order in which they are counted."""

from __future__ import annotations

from dataclasses import dataclass

BRIDGE, API_NODE, WORKER = "bridge", "API node", "worker"
NATS, POSTGRESQL, STORAGE, HAPROXY = "NATS", "PostgreSQL", "S3 storage", "HAProxy"
KINDS = {
    BRIDGE: ("bridge", "bridges"),
    API_NODE: ("API node", "API nodes"),
    WORKER: ("worker", "workers"),
    NATS: ("NATS server", "NATS servers"),
    POSTGRESQL: ("PostgreSQL server", "PostgreSQL servers"),
    STORAGE: ("S3 storage", "S3 storages"),
    HAPROXY: ("HAProxy", "HAProxies"),
}  # what one and several are called


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


def unreached(kind: str, address: object, why: str = "") -> NodeView:
    return NodeView(kind, str(address), f"does not answer{f' ({why})' if why else ''}", is_reached=False)
