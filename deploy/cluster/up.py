"""Starts a whole cluster on this machine: `python -m deploy.cluster.up DIRECTORY` (`make cluster`). See README.md.

Everything runs until Ctrl-C, or until `python -m deploy.cluster.up --down DIRECTORY`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from deploy.cluster.network import Loopback, Namespaces
from deploy.cluster.node import Node
from deploy.cluster.plan import FULL, Edit, Plan

READY_S = 120.0
_OURS = ("api", "worker", "bridge")  # started once the servers that they need are ready, and stopped before them


class Cluster:
    """All nodes of a plan. A context manager: leaving it stops them."""

    def __init__(
        self, directory: Path, counts: dict[str, int] = FULL, network: Loopback | None = None,
        edit: Edit = lambda name, text: text, say: Callable[[str], None] = lambda text: None,
        cancelled: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self.network = network or Loopback()
        self.plan = Plan(directory, self.network, dict(counts), edit)
        self._say, self._cancelled = say, cancelled
        self.nodes = self.plan.nodes()

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    def of(self, kind: str) -> list[Node]:
        return [node for node in self.nodes if node.kind == kind]

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start all, in stages. Raises TimeoutError or InterruptedError."""
        self._do(self._start, [node for node in self.nodes if node.kind not in _OURS])
        self._do(self._start, [node for node in self.nodes if node.kind in _OURS])

    def _start(self, node: Node) -> None:
        node.start()
        seconds = node.await_ready(READY_S, self._cancelled)
        self._say(f"{node.name:<12} {self.network.address(node.host):<14} ready after {seconds:.1f} s")

    def close(self) -> None:
        """Stop all, in reverse order: nodes that accept mail stop first."""
        self._do(Node.stop, self.of("bridge"))
        self._do(Node.stop, [node for node in self.nodes if node.kind in _OURS])
        self._do(Node.stop, self.nodes)
        self.network.close()

    def _do(self, action: Callable[[Node], None], nodes: list[Node]) -> None:
        with ThreadPoolExecutor(20) as pool:
            list(pool.map(action, nodes))


def main() -> int:
    parser = argparse.ArgumentParser(description="Start a whole cluster on this machine.")
    parser.add_argument("directory", type=Path, help="directory for configurations, logs and data; it is kept")
    parser.add_argument("--down", action="store_true", help="stop the cluster that runs in this directory")
    parser.add_argument(
        "--namespaces", action="store_true", help="run each node in its own network namespace (needs root)"
    )
    chosen = parser.parse_args()
    directory = chosen.directory.absolute()
    if chosen.down:
        return down(directory)
    return up(directory, chosen.namespaces)


def up(directory: Path, namespaces: bool) -> int:
    began = time.monotonic()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    if _running(directory):
        sys.exit(f"a cluster already runs in {directory}")
    network = Namespaces() if namespaces else Loopback()
    cluster = Cluster(directory, {**FULL, "mail": 2}, network, say=print, cancelled=ended)
    (directory / "pid").write_text(str(os.getpid()))
    try:
        with cluster:
            print(_summary(cluster, time.monotonic() - began), flush=True)
            ended.wait()
            print("stopping", flush=True)
    except InterruptedError:
        pass
    finally:
        (directory / "pid").unlink(missing_ok=True)
    print("stopped", flush=True)
    return 0


def down(directory: Path) -> int:
    pid = _running(directory)
    if not pid:
        print(f"no cluster runs in {directory}")
        return 1
    os.kill(pid, signal.SIGTERM)
    while _running(directory):
        time.sleep(0.1)
    return 0


def _running(directory: Path) -> int:
    """The process id of the program that runs the cluster in this directory, or 0."""
    with suppress(OSError, ValueError):
        pid = int((directory / "pid").read_text())
        if b"deploy.cluster.up" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return 0


def _summary(cluster: Cluster, seconds: float) -> str:
    address, directory = cluster.plan.address, cluster.plan.directory
    return f"""
The cluster is ready after {seconds:.0f} s.

mail        swaks --server {address("haproxy")}:10024 --to you@example.org    (or {address("haproxy", 2)}:10024)
arrives in  {directory}/mail1/Maildir
status      scanbridge status --cluster -c {directory}/bridge1/bridge.yml
metrics     http://{address("prometheus")}:9090/targets
logs        {directory}/*/log

Ctrl-C stops it.
"""


if __name__ == "__main__":
    sys.exit(main())
