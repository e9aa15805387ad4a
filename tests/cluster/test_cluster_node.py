"""A node that does not become ready: the error says why, and the operator restarts a NATS server that stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.testing import Background, FakeScanner, answer
from deploy.cluster.network import Loopback
from deploy.cluster.node import Node
from deploy.cluster.plan import Plan
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


_BEHIND = b'{"status":"unavailable","status_code":503,"error":"JetStream stream \'S > jobs\' is not current: x"}'


@pytest.mark.parametrize(
    ("kind", "said", "restarted"),
    [
        ("nats", _BEHIND, True),
        ("nats", b'{"error":"JetStream is not current with the meta leader"}', True),
        ("nats", b'{"error":"JetStream has not established contact with a meta leader"}', False),
        ("worker", _BEHIND, False),
    ],
)
def test_only_a_nats_server_that_stays_behind_is_restarted(
    tmp_path: Path, kind: str, said: bytes, restarted: bool
) -> None:
    """One was not current for 18 minutes, until it was restarted; every other node has to come back by itself."""
    background, page = Background(), FakeScanner()
    background.run(page.start())
    page.status = answer(503, said)
    network = Loopback()
    plan = Plan(tmp_path, network)
    node = Node(kind, f"{kind}1", 1, tmp_path, ["sleep", "60"], lambda: plan.trouble_at(f"{page.url}/admin/status"))
    node.start()
    first, operator = node.process, Operator(patience_s=0.5)
    try:
        with pytest.raises(TimeoutError):
            operator.await_ready(node, 3.0)
        assert (node.process is not first) == restarted == bool(operator.restarts)
        count = len(operator.restarts)
        page.status = answer(200)
        operator.await_ready(node, 60.0)
        assert len(operator.restarts) == count and node.is_alive()
    finally:
        node.kill()
        network.close()
        background.run(page.stop())
        background.close()
