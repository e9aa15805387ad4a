"""API nodes, workers and bridges of two versions with one queue and one database.

The old version is the first commit that had the queue, as other processes. `make test-upgrade`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.testing import free_port, until
from tests.daemon.process_kit import ROOT, environment, get
from tests.postgresql import fresh_database
from tests.requirements import need, unavailable
from tests.service.cluster_kit import Nats, nats_with_accounts
from tests.service.service_kit import EICAR, attached, mail
from tests.service.service_kit import TOKEN as SERVICE_TOKEN

pytestmark = pytest.mark.long
OLD = "692a7de0"
NEW = ROOT
LARGE = 2 * 1024 * 1024  # goes by reference


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the old version. It needs nothing that this one does not have."""
    need("git", "tar")
    place = tmp_path_factory.mktemp("old")
    archive = subprocess.run(["git", "-C", ROOT, "archive", OLD, "bridge"], capture_output=True).stdout
    if not archive:
        unavailable(f"commit {OLD} is not in this repository's history")
    subprocess.run(["tar", "-x", "-C", place], input=archive, check=True)
    return place


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    with nats_with_accounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


class Cluster:
    """What all nodes share."""

    def __init__(self, directory: Path, nats: Nats, database: str) -> None:
        self.directory = directory
        text = nats.config(f"q{free_port()}", directory)
        self._text = text.replace(f"sqlite:///{directory}/service.sqlite", database)
        (directory / "token").write_text(SERVICE_TOKEN)
        (directory / "clean.eml").write_bytes(mail())
        (directory / "small.eml").write_bytes(attached(EICAR))
        (directory / "large.eml").write_bytes(attached(b"x" * LARGE + EICAR))

    @contextmanager
    def node(self, source: Path, *words: str) -> Iterator[int]:
        """An API node (no words) or a worker, until it is told to leave. The port of its pages."""
        port = free_port()
        config = self.directory / f"{port}.yml"
        config.write_text(self._text.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        listen = ["--listen", f"127.0.0.1:{port}"] if words else []
        with (self.directory / f"{port}.log").open("wb") as log:
            command = [sys.executable, "-m", "bridge", "service", *words, "-c", config, *listen]
            process = subprocess.Popen(command, env=_environment(source), cwd="/", stdout=log, stderr=log)
        try:
            until(lambda: process.poll() is not None or get(port, "/livez")[0] == 200, "the node to start")
            assert process.poll() is None, (self.directory / f"{port}.log").read_text()
            yield port
            process.terminate()
            assert process.wait(60) == 0, (self.directory / f"{port}.log").read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait(60)

    def scan(self, source: Path, api: int) -> list[str]:
        """The decisions that a bridge of this version gets from this API node."""
        until(lambda: get(api, "/readyz")[0] == 200, "the API node to find a worker")
        config = self.directory / "bridge.yml"
        config.write_text(
            f"scanner: {{urls: ['http://127.0.0.1:{api}'], token_file: token}}\n"
            "listeners: [{name: milter, protocol: milter, address: '127.0.0.1:0'}]\n"
        )
        files = [self.directory / f"{name}.eml" for name in ("clean", "small", "large")]
        command = [sys.executable, "-m", "bridge", "scan", "-c", config, "--json", "--to", "b@example.net", *files]
        done = subprocess.run(
            command, env=_environment(source), cwd="/", capture_output=True, text=True, timeout=120, check=False
        )
        return [json.loads(line).get("decision", line) for line in done.stdout.splitlines()] or [done.stderr]


def _environment(source: Path) -> dict[str, str]:
    return environment(PYTHONPATH=os.fspath(source))


@pytest.fixture
def cluster(tmp_path: Path, nats: Nats, postgresql: Any) -> Cluster:
    return Cluster(tmp_path, nats, fresh_database(postgresql))


EXPECTED = ["deliver", "quarantine", "quarantine"]


@pytest.mark.parametrize("is_api_old", [True, False], ids=["old API node, new worker", "new API node, old worker"])
def test_nodes_of_two_versions_work_together(cluster: Cluster, old: Path, is_api_old: bool) -> None:
    """Mail of every size passes through the queue, for bridges of both versions."""
    api, worker = (old, NEW) if is_api_old else (NEW, old)
    with cluster.node(worker, "worker"), cluster.node(api) as port:
        for bridge in (old, NEW):
            assert cluster.scan(bridge, port) == EXPECTED


def test_a_cluster_is_upgraded_node_by_node(cluster: Cluster, old: Path) -> None:
    """Workers first, then API nodes; and a node of the old version is started again in the middle."""
    with ExitStack() as all_nodes:
        workers = ExitStack()
        workers.enter_context(cluster.node(old, "worker"))
        before = ExitStack()
        api = before.enter_context(cluster.node(old))
        assert cluster.scan(old, api) == EXPECTED
        all_nodes.enter_context(cluster.node(NEW, "worker"))
        assert cluster.scan(old, api) == EXPECTED
        workers.close()
        assert cluster.scan(old, api) == EXPECTED, "the new worker alone"
        new = all_nodes.enter_context(cluster.node(NEW))
        assert cluster.scan(old, api) == cluster.scan(NEW, new) == EXPECTED
        before.close()
        again = before.enter_context(cluster.node(old))
        assert cluster.scan(NEW, again) == cluster.scan(old, new) == EXPECTED
        before.close()
