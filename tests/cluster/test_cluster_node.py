"""A node that does not become ready: the error says why, and an operator restarts a NATS server that needs it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge.testing import Background, FakeScanner, answer
from deploy.cluster.network import Loopback
from deploy.cluster.node import Node
from deploy.cluster.plan import Plan
from tests.cluster.monkey import Monkey
from tests.cluster.operators import Operator


def test_the_error_names_what_the_node_said_last(tmp_path: Path) -> None:
    """Only the end of its log was shown, and a bridge that is not ready logs nothing about that."""
    background, page = Background(), FakeScanner()
    background.run(page.start())
    page.status = answer(503, b"no scanner is up\n")
    network = Loopback()
    plan = Plan(tmp_path, network)
    node = Node("bridge", "bridge2", 2, tmp_path, ["sleep", "60"], lambda: plan.trouble_at(f"{page.url}/admin/status"))
    node.start()
    try:
        with pytest.raises(TimeoutError, match=r"bridge2 is not ready after 0 s: .* answers 503 no scanner is up; the"):
            node.await_ready(0.1)
        page.status = answer(200)
        assert node.await_ready(60.0) < 60.0
    finally:
        node.kill()
        network.close()
        background.run(page.stop())
        background.close()


_BEHIND = b'{"status":"unavailable","error":"JetStream stream \'S > jobs\' is not current: group node unhealthy"}'
_DISABLED = b'{"status":"unavailable","error":"JetStream not enabled (10076)"}'


class Server:
    """A node whose health page says what the test wants."""

    def __init__(self, directory: Path, name: str, plan: Plan, background: Background) -> None:
        self.page, self._background = FakeScanner(), background
        background.run(self.page.start())
        place = directory / name
        place.mkdir()
        url = f"{self.page.url}/admin/status"
        self.node = Node("nats", name, 1, place, ["sleep", "60"], lambda: plan.trouble_at(url))
        self.node.start()
        self.first = self.node.process

    def say(self, error: bytes) -> None:
        self.page.status = answer(503, error) if error else answer(200)

    @property
    def was_restarted(self) -> bool:
        return self.node.process is not self.first

    def close(self) -> None:
        self.node.kill()
        self._background.run(self.page.stop())


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    background, network = Background(), Loopback()
    plan = Plan(tmp_path, network)
    found = [Server(tmp_path, f"nats{number}", plan, background) for number in (1, 2, 3)]
    yield found
    for server in found:
        server.close()
    network.close()
    background.close()


@pytest.mark.parametrize(
    ("said", "restarted"),
    [
        ((b"", b"", _BEHIND), [3]),
        ((b"", b"", b'{"error":"JetStream is not current with the meta leader"}'), [3]),
        ((b"", b"", b'{"error":"JetStream has not established contact with a meta leader"}'), []),
        ((_DISABLED, b"", _BEHIND), [1]),
        ((_DISABLED, b"", b"no worker is there"), [1]),
    ],
)
def test_an_operator_restarts_the_nats_server_that_keeps_a_cluster_from_recovering(
    servers: list[Server], said: tuple[bytes, ...], restarted: list[int]
) -> None:
    """One was not current until another one was restarted, whose JetStream had been off since its disk was full."""
    for server, error in zip(servers, said, strict=True):
        server.say(error)
    operator = Operator(lambda: [server.node for server in servers], patience_s=0.5)
    with pytest.raises(TimeoutError):
        operator.await_ready(servers[2].node, 3.0)
    assert [number for number, server in enumerate(servers, 1) if server.was_restarted] == restarted
    count = operator.restarts.total()
    assert bool(count) == bool(restarted)
    for server in servers:
        server.say(b"")
    operator.await_ready(servers[2].node, 60.0)
    assert operator.restarts.total() == count


def test_a_rig_whose_node_does_not_come_back_ends_at_once() -> None:
    """The rest of twenty minutes passed first."""
    world = SimpleNamespace(cluster=SimpleNamespace(of=lambda kind: []))  # it has no nodes to choose from
    monkey = Monkey(world, 1)  # type: ignore[arg-type]
    began = time.monotonic()
    monkey.start()
    monkey.wait(600)
    with pytest.raises(AttributeError):
        monkey.heal()
    assert time.monotonic() - began < 300
