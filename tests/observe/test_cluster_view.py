"""One view of all nodes: nodes that do not answer come first, and the exit code says whether all nodes work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.cli.status import cluster_table
from bridge.observe import cluster_view
from bridge.observe.cluster_view import ClusterView, Nodes
from bridge.observe.node_view import API_NODE, BRIDGE, WORKER, NodeView
from bridge.runtime import yaml_file
from bridge.runtime.endpoints import Endpoint
from bridge.testing import RunningBridge, configuration, free_port, running_bridge, until
from tests.daemon.process_kit import scanbridge


@pytest.fixture(scope="module")
def bridges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningBridge]]:
    with (
        running_bridge(tmp_path_factory.mktemp("one")) as one,
        running_bridge(tmp_path_factory.mktemp("two")) as two,
    ):
        yield [one, two]


def config(directory: Path, bridge: RunningBridge, **cluster: list[str]) -> Path:
    """A configuration that names the nodes of a cluster."""
    data = configuration(directory, bridge.scanner, bridge.next_hop, {"cluster": cluster})
    path = directory / "bridge.yml"
    path.write_text(yaml_file.dump(data))
    return path


def test_all_nodes_are_in_one_view(tmp_path: Path, bridges: list[RunningBridge]) -> None:
    """Bridges by their admin addresses, scanners as the bridges see them; exit code 0."""
    named = [f"127.0.0.1:{bridge.admin_port}" for bridge in bridges]
    path = config(tmp_path, bridges[0], bridges=named)
    done = until(lambda: (shown := scanbridge("status", "--cluster", "-c", path)).returncode == 0 and shown, "a view")
    assert "cluster        2 of 2 bridges, 2 of 2 API nodes ready\n" in done.stdout
    for name in (*named, *(bridge.scanner.url for bridge in bridges)):
        assert name in done.stdout


def test_a_node_that_does_not_answer_comes_first(tmp_path: Path, bridges: list[RunningBridge]) -> None:
    """In the text and in JSON, and the exit code is 1."""
    gone, worker = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    path = config(tmp_path, bridges[0], bridges=[f"127.0.0.1:{bridges[0].admin_port}", gone], workers=[worker])
    done = scanbridge("status", "--cluster", "-c", path)
    assert done.returncode == 1
    assert done.stdout.splitlines()[:2] == [f"bridge {gone} does not answer", f"worker {worker} does not answer"]
    told = json.loads(scanbridge("status", "--cluster", "--json", "-c", path).stdout)
    assert told["ok"] is False and [node["address"] for node in told["nodes"]][:2] == [gone, worker]


def test_without_nodes_the_command_says_what_to_add(tmp_path: Path, bridges: list[RunningBridge]) -> None:
    done = scanbridge("status", "--cluster", "-c", config(tmp_path, bridges[0]))
    assert done.returncode == 78 and "cluster.bridges" in done.stderr


def test_a_name_stands_for_all_its_addresses() -> None:
    """As that of a headless Kubernetes service does."""
    named = (Endpoint("localhost", 1), Endpoint("127.0.0.1", 1), Endpoint("no-such-name.invalid", 1))
    found = {node.address for node in cluster_view.look(Nodes(bridges=named), 1.0).nodes}
    assert {"127.0.0.1:1", "no-such-name.invalid:1"} <= found and "localhost:1" not in found


def test_problems_come_before_warnings_before_the_rest() -> None:
    nodes = (
        NodeView(WORKER, "w1", "does not answer", is_reached=False),
        NodeView(API_NODE, "a1", "RED", problem="connection refused (for all bridges)"),
        NodeView(BRIDGE, "b1", "0.1", warnings=("list x\x1b[31m is stale",)),
    )
    text = cluster_table(ClusterView(nodes, ("bridges run different versions: 0.1, 0.2",)))
    assert text.splitlines()[:5] == [
        "worker w1 does not answer",
        "API node a1: connection refused (for all bridges)",
        "WARNING: bridges run different versions: 0.1, 0.2",
        "WARNING: bridge b1: list x?[31m is stale",
        "cluster        1 of 1 bridge, 0 of 1 API node, 0 of 1 worker ready",
    ]
