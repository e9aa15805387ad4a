"""Scans forwarded to core nodes, which are services themselves."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from bridge.errors import ConfigError
from bridge.service.core_nodes import CoreNode, by_preference
from bridge.service.settings import Timings
from tests.service.lying_server import LyingServer
from tests.service.service_kit import (
    CONFIG,
    DEADLINE_S,
    EICAR,
    GTUBE,
    attached,
    free_port,
    mail,
    service,
    submit_head,
    wait_for,
)

MIB = 1024 * 1024


def _front(*ports: int, scheme: str = "http", more: str = "") -> str:
    hosts = ", ".join(f'"{scheme}://127.0.0.1:{port}"' for port in ports)
    return CONFIG.replace("core: {}", f"core: {{hosts: [{hosts}]{more}}}")


def _at(port: int) -> str:
    return CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{port}")


@pytest.fixture
def place(tmp_path):
    """Directories whose services share one database, as nodes must."""
    (tmp_path / "service.sqlite").touch()

    def make(name: str, own_database: bool = False) -> Path:
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        if not own_database and not (path / "service.sqlite").exists():
            (path / "service.sqlite").symlink_to(tmp_path / "service.sqlite")
        return path

    return make


def _decided(node) -> int:
    text = node.request("GET", "/metrics").body.decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("scanservice_decisions_total"))


def test_mail_is_forwarded_byte_for_byte(place):
    """The node gets the same mail and envelope, small or large, and the client gets its answer."""
    with service(place("node")) as node, service(place("front"), _front(node.port)) as front:
        assert front.submit(mail()).json["decision"] == "deliver"
        assert front.submit(mail(GTUBE), sender="", remoteAddress="192.0.2.1", senderHelo="x").json["verdict"] == "spam"
        assert front.submit(attached(b"x" * (2 * MIB) + EICAR)).json["decision"] == "quarantine"
        assert _decided(node) == 3
        assert front.status().json == {"messageQueueStatus": "GREEN"}


def test_a_dead_node_is_excluded_until_it_answers_again(place):
    """While one of two nodes is dead, every mail is answered; when it is back, it gets mail again."""
    port, fast = free_port(), Timings(probe_interval_s=0.1)
    with (
        service(place("alive")) as alive,
        service(place("front"), _front(port, alive.port), timings=fast) as front,
    ):
        for _ in range(4):
            assert front.submit(mail()).json["decision"] == "deliver"
        assert _decided(alive) == 4
        assert front.status().json == {"messageQueueStatus": "GREEN"}
        with service(place("restarted"), _at(port)) as restarted:
            wait_for(lambda: front.submit(mail()).status == 200 and _decided(restarted) > 0)


def test_without_any_node_the_answer_is_502_and_the_status_red(place):
    """With no node to analyze mail, clients get 502 and the service is not ready."""
    with service(place("front"), _front(free_port())) as front:
        answer = front.submit(mail())
        assert (answer.status, answer.json["error"]) == (502, "core_unavailable")
        assert front.status().json == {"messageQueueStatus": "RED"}
        assert front.request("GET", "/readyz").status == 503


def test_a_node_with_another_database_prevents_the_start(place):
    """A change of a list would be accepted here and have no effect there."""
    with service(place("node", own_database=True)) as node:
        with pytest.raises(ConfigError, match="it uses another database"):
            service(place("front"), _front(node.port)).__enter__()
        with service(place("other", own_database=True), _at(free_port())) as unrelated:
            assert unrelated.submit(mail()).status == 200


def test_a_node_with_another_database_gets_no_mail_if_it_appears_later(place, caplog):
    """The front is not ready, and says why once."""
    port, fast = free_port(), Timings(probe_interval_s=0.1)
    with service(place("front"), _front(port), timings=fast) as front:
        assert front.submit(mail()).status == 502
        with service(place("node", own_database=True), _at(port)) as node:
            wait_for(lambda: "it uses another database" in caplog.text)
            for _ in range(3):
                assert front.submit(mail()).status == 502
            assert _decided(node) == 0
            assert front.request("GET", "/readyz").status == 503
        assert caplog.text.count("it uses another database") == 1
        with service(place("repaired"), _at(port)):
            wait_for(lambda: front.submit(mail()).status == 200)


def _expired(directory: Path) -> Path:
    """A CA, and a certificate that it issued for one day of the past. trustme issues only valid ones."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1", not_after=datetime(2020, 1, 2, tzinfo=UTC))
    leaf.private_key_and_cert_chain_pem.write_to_path(str(directory / "node.pem"))
    return _write(authority, directory)


def _misnamed(directory: Path) -> Path:
    authority = trustme.CA()
    authority.issue_cert("mta2.example.org").private_key_and_cert_chain_pem.write_to_path(str(directory / "node.pem"))
    return _write(authority, directory)


def _of_another_issuer(directory: Path) -> Path:
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(directory / "node.pem"))
    return _write(trustme.CA(), directory)


def _write(authority: trustme.CA, directory: Path) -> Path:
    authority.cert_pem.write_to_path(str(directory / "ca.pem"))
    return directory / "ca.pem"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_expired, "its certificate has expired"),
        (_misnamed, "its certificate is for another name"),
        (_of_another_issuer, "its certificate has an unknown issuer"),
    ],
)
def test_the_certificate_problem_of_a_node_is_named_once(place, caplog, make, said):
    """At start, without a mail, and not again for each mail or probe."""
    ca_file = make(place("node"))
    tls = CONFIG + "tls: {cert_file: node.pem, key_file: node.pem}\n"
    more = f", caFile: {ca_file}"
    with (
        service(place("node"), tls) as node,
        service(place("front"), _front(node.port, scheme="https", more=more)) as front,
    ):
        assert said in caplog.text
        for _ in range(3):
            assert front.submit(mail()).status == 502
            assert front.request("GET", "/readyz").status == 503
    assert caplog.text.count(said) == 1, caplog.text


def test_full_nodes_lead_to_503(place):
    """A node at its limit is skipped; if all are, the client is asked to retry."""
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


def test_the_least_busy_node_is_used_first():
    """Order of the nodes: alive before dead, then by the number of mails in flight."""
    nodes = [CoreNode("a", 2), CoreNode("b", 0, alive=False), CoreNode("c", 1)]
    assert [node.url for node in by_preference(nodes)] == ["c", "a", "b"]


def test_nodes_are_verified_over_tls(place):
    """A node is trusted only if its certificate comes from the configured authority."""
    authority = trustme.CA()
    node_dir = place("node")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(node_dir / "node.pem"))
    authority.cert_pem.write_to_path(str(place("front") / "ca.pem"))
    tls = CONFIG + "tls: {cert_file: node.pem, key_file: node.pem}\n"
    with service(node_dir, tls) as node:
        with service(place("front"), _front(node.port, scheme="https", more=", caFile: ca.pem")) as front:
            assert front.submit(mail()).json["decision"] == "deliver"
        with service(place("untrusting"), _front(node.port, scheme="https")) as untrusting:
            assert untrusting.submit(mail()).status == 502
        assert node.config.scheme == "https"


def test_questions_without_a_token_became_questions_to_every_node(place):
    """Each GET of /readyz asked all nodes, on a connection of its own. Those that wait share one question."""
    silent = LyingServer()
    with service(place("front"), _front(silent.port)) as front, ExitStack() as stack:
        before = silent.connections
        waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", front.port))) for _ in range(100)]
        for client in waiting:
            client.settimeout(DEADLINE_S)
            client.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert all(client.recv(1000).startswith(b"HTTP/1.1 503 ") for client in waiting)
        assert silent.connections - before < 50
    silent.close()
