"""A node that does not become ready: the error says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.testing import Background, FakeScanner, answer
from deploy.cluster.network import Loopback
from deploy.cluster.node import Node
from deploy.cluster.plan import Plan


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
