"""Scans passed on to core nodes, which are services themselves."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from bridge.service import core_nodes as core_module
from tests.service.service_kit import CONFIG, EICAR, GTUBE, attached, free_port, mail, service, submit_head, wait_for

MIB = 1024 * 1024


def _front(*ports: int, scheme: str = "http", more: str = "") -> str:
    hosts = ", ".join(f'"{scheme}://127.0.0.1:{port}"' for port in ports)
    return CONFIG.replace("abby:\n", f"abby:\n  serviceProviders: {{core: {{hosts: [{hosts}]{more}}}}}\n")


def _at(port: int) -> str:
    return CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{port}")


@pytest.fixture
def place(tmp_path):
    def make(name: str) -> Path:
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        return path

    return make


def _decided(node) -> int:
    text = node.request("GET", "/metrics").body.decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("scanservice_decisions_total"))


def test_mail_is_passed_on_byte_for_byte(place):
    """The node sees the same mail and envelope, small or large, and its answer is ours."""
    with service(place("node")) as node, service(place("front"), _front(node.port)) as front:
        assert front.submit(mail()).json["decision"] == "deliver"
        assert front.submit(mail(GTUBE), sender="", remoteAddress="192.0.2.1", senderHelo="x").json["verdict"] == "spam"
        assert front.submit(attached(b"x" * (2 * MIB) + EICAR)).json["decision"] == "quarantine"
        assert _decided(node) == 3
        assert front.status().json == {"messageQueueStatus": "GREEN"}


def test_a_dead_node_is_left_out_and_comes_back(place, monkeypatch):
    """While one of two is dead every mail is answered; when it returns, it gets mail again."""
    monkeypatch.setattr(core_module, "PROBE_EVERY_S", 0.1)
    port = free_port()
    with service(place("one")) as one, service(place("front"), _front(port, one.port)) as front:
        for _ in range(4):
            assert front.submit(mail()).json["decision"] == "deliver"
        assert _decided(one) == 4
        assert front.status().json == {"messageQueueStatus": "GREEN"}
        with service(place("two"), _at(port)) as two:
            wait_for(lambda: front.submit(mail()).status == 200 and _decided(two) > 0)


def test_without_any_node_the_answer_is_502_and_the_status_red(place):
    """Nobody can analyze: the client is told so, and readiness goes."""
    with service(place("front"), _front(free_port())) as front:
        answer = front.submit(mail())
        assert (answer.status, answer.json["error"]) == (502, "core_unavailable")
        assert front.status().json == {"messageQueueStatus": "RED"}
        assert front.request("GET", "/readyz").status == 503


def test_full_nodes_are_a_503(place):
    """A node at its limit is passed over; when all are, the client shall come again."""
    small = CONFIG.replace("{restApi: {}}", "{restApi: {}}, mainWorkerCount: 1")
    with ExitStack() as stack:
        node = stack.enter_context(service(place("node"), small))
        front = stack.enter_context(service(place("front"), _front(node.port)))
        held = stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
        held.sendall(submit_head(1000))
        wait_for(lambda: node.status().json == {"messageQueueStatus": "RED"})
        answer = front.submit(mail())
        assert (answer.status, answer.json["error"]) == (503, "saturated")
        other = stack.enter_context(service(place("other")))
        both = stack.enter_context(service(place("both"), _front(node.port, other.port)))
        assert all(both.submit(mail()).status == 200 for _ in range(3))


def test_the_least_busy_node_is_asked_first():
    """Order of the nodes: living before dead, then by mails in flight."""
    nodes = [core_module.Node("a", 2), core_module.Node("b", 0, alive=False), core_module.Node("c", 1)]
    assert [node.url for node in core_module.by_preference(nodes)] == ["c", "a", "b"]


def test_nodes_are_verified_over_tls(place):
    """A node with a certificate of our own authority is trusted, without it it is not asked."""
    authority = trustme.CA()
    node_dir = place("node")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(node_dir / "node.pem"))
    authority.cert_pem.write_to_path(str(place("front") / "ca.pem"))
    tls = CONFIG + "tls: {cert_file: node.pem, key_file: node.pem}\n"
    with service(node_dir, tls) as node:
        with service(place("front"), _front(node.port, scheme="https", more=", caFile: ca.pem")) as front:
            assert front.submit(mail()).json["decision"] == "deliver"
        with service(place("stranger"), _front(node.port, scheme="https")) as stranger:
            assert stranger.submit(mail()).status == 502
        assert node.config.scheme == "https"
