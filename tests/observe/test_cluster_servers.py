"""The servers that a cluster is built on are in the one view of all nodes: NATS, PostgreSQL, S3 storage and HAProxy."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import nats
import pytest
from nats.js.api import StreamConfig

from bridge.observe import cluster_servers
from bridge.observe.cluster_view import Nodes, look
from bridge.observe.node_view import KINDS
from bridge.runtime import yaml_file
from bridge.runtime.database import Database
from bridge.runtime.endpoints import Endpoint
from bridge.testing import configuration, eventually, free_port, running_bridge, until
from tests.daemon.process_kit import scanbridge
from tests.nats_kit import ClusteredServer, nats_cluster, nats_server
from tests.observe.page_kit import serving
from tests.postgresql import fresh_database
from tests.postgresql_pair import Pair
from tests.quarantine.s3_kit import ObjectServer, s3_config, s3_settings, write_keys
from tests.requirements import find, need
from tests.server_program import ServerProgram

SOON_S = 2.0  # for servers on this machine

_HAPROXY = """
defaults
    mode tcp
    timeout connect 1s
    timeout client 1s
    timeout server 1s
backend bridges
    default-server check inter 100ms fall 1 rise 1
    server bridge1 127.0.0.1:{up}
    server bridge2 127.0.0.1:{down}
frontend metrics
    mode http
    bind 127.0.0.1:{metrics}
    http-request use-service prometheus-exporter if {{ path /metrics }}
"""


@contextmanager
def storage(directory: Path) -> Iterator[ObjectServer]:
    server = ObjectServer(directory)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def haproxy(directory: Path, up: socket.socket | int, down: int) -> Iterator[ServerProgram]:
    """With two bridges; the first one may be a listening socket."""
    need("haproxy")
    up = up if isinstance(up, int) else up.getsockname()[1]
    config, metrics = directory / "haproxy.cfg", free_port()
    config.write_text(_HAPROXY.format(up=up, down=down, metrics=metrics))
    server = ServerProgram([str(find("haproxy")), "-db", "-f", str(config)], directory / "haproxy.log", metrics)
    try:
        yield server
    finally:
        server.kill()


def here(port: int) -> Endpoint:
    return Endpoint("127.0.0.1", port)


async def test_the_nats_server_that_leads_the_queue_is_named(tmp_path: Path) -> None:
    """One of three leads; without two of them, the third says that there is no leader."""

    def views(servers: list[ClusteredServer]) -> list[str]:
        return [node.summary for node in look(Nodes(nats=tuple(here(server.pages) for server in servers))).nodes]

    with nats_cluster(tmp_path) as servers:
        client = await nats.connect(servers[0].url)
        await client.jetstream().add_stream(StreamConfig(name="jobs", subjects=["jobs"], num_replicas=3))
        await client.close()
        await eventually(lambda: sum("leads jobs" in text for text in views(servers)) == 1, "a leader of the stream")
        said = views(servers)
        assert len(said) == 3 and sum("leads JetStream" in text for text in said) == 1
        assert {text.partition(",")[0] for text in said} == {"n0", "n1", "n2"}
        for server in servers[1:]:
            server.stop()
        await eventually(lambda: cluster_servers.nats(here(servers[0].pages), SOON_S).problem, "the loss to be noticed")
        found = look(Nodes(nats=tuple(here(server.pages) for server in servers)), SOON_S)
        assert found.summary() == "0 of 3 NATS servers ready" and not found.is_well
        assert [node.is_reached for node in found.nodes] == [False, False, True]


def test_a_nats_server_alone(tmp_path: Path) -> None:
    """It leads nobody; without JetStream it cannot be the queue's."""
    port = free_port()
    with nats_server(tmp_path, "-m", str(port), "-js", "-sd", str(tmp_path / "store")):
        until(lambda: cluster_servers.nats(here(port), SOON_S).is_reached, "its pages")
        found = cluster_servers.nats(here(port), SOON_S)
        assert found.summary.endswith("the only server") and not found.problem
    port = free_port()
    with nats_server(tmp_path, "-m", str(port)):
        until(lambda: cluster_servers.nats(here(port), SOON_S).is_reached, "its pages")
        assert cluster_servers.nats(here(port), SOON_S).problem == "JetStream is not enabled"


def test_a_standby_at_the_database_s_address_is_a_problem(pair: Pair) -> None:
    """Mail would pass, but no history and no release; the primary says how many standbys follow it."""
    primary, standby = (Database(server.url.format(name="postgres")) for server in (pair.primary, pair.standby))
    until(lambda: "primary, 1 standby" in cluster_servers.postgresql(primary, SOON_S).summary, "the standby to follow")
    found = cluster_servers.postgresql(standby, SOON_S)
    assert found.is_reached and "standby" in found.summary and "accepts no writes" in found.problem
    pair.lose_the_primary()
    gone = cluster_servers.postgresql(primary, SOON_S)
    assert not gone.is_reached and gone.summary.startswith("does not answer (")
    pair.promote_the_standby()
    assert "primary, 0 standbys" in cluster_servers.postgresql(standby, SOON_S).summary


def test_a_frozen_postgresql_does_not_answer(pair: Pair) -> None:
    """It accepts connections and says nothing; the view must not wait for it."""
    with pair.primary.frozen():
        assert not cluster_servers.postgresql(Database(pair.url), SOON_S).is_reached


def test_the_storage_answers_to_our_keys_only(tmp_path: Path) -> None:
    """With wrong keys, or none that answers, mail for the quarantine is deferred."""
    with storage(tmp_path) as server:
        ours = s3_settings(server.port, "kept")
        assert cluster_servers.storage(ours, SOON_S).summary == "answers"
        assert not server.names, "nothing was written"
        wrong = cluster_servers.storage(replace(ours, secret_key="wrong-wrong-wrong"), SOON_S)
        assert not wrong.is_reached and "403" in wrong.summary
    assert not cluster_servers.storage(ours, SOON_S).is_reached


def test_a_storage_that_hangs_costs_one_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = s3_settings(silent.getsockname()[1], "kept")
        assert not cluster_servers.storage(settings, 0.5).is_reached


def test_haproxy_says_which_bridges_it_sees(tmp_path: Path) -> None:
    """A bridge that is down for HAProxy is a warning; with no bridge left, no mail passes it."""
    with socket.create_server(("127.0.0.1", 0)) as bridge, haproxy(tmp_path, bridge, free_port()) as server:
        address = here(server.port)
        until(lambda: cluster_servers.haproxy(address, SOON_S).warnings, "the first checks")
        found = cluster_servers.haproxy(address, SOON_S)
        assert "1 of 2 servers of bridges up" in found.summary and not found.problem
        assert found.warnings == ("bridge2 of bridges is DOWN",)
        bridge.close()
        until(lambda: cluster_servers.haproxy(address, SOON_S).problem, "no bridge to be up")
        assert cluster_servers.haproxy(address, SOON_S).problem == "no server of bridges is up"
    assert not cluster_servers.haproxy(address, SOON_S).is_reached


@pytest.mark.parametrize("page", [b"[]", b"{}", b"not json", b'{"server_name": "x"}', b"[" * 100_000])
def test_other_programs_answers_are_no_nodes(page: bytes) -> None:
    """An address of something else must neither count as a node that works, nor end the command."""
    with serving(page) as port:
        for ask in (cluster_servers.nats, cluster_servers.haproxy):
            found = ask(here(port), SOON_S)
            assert not found.is_reached or found.problem


def test_status_shows_every_kind_of_node(tmp_path: Path, postgresql: str) -> None:
    """One line each, the exit code says whether all work, and a server that stops is named first."""
    write_keys(tmp_path)
    (tmp_path / "bridge").mkdir()
    with ExitStack() as stack:
        bridge = stack.enter_context(running_bridge(tmp_path / "bridge"))
        objects = stack.enter_context(storage(tmp_path / "s3"))
        pages = free_port()
        queue = stack.enter_context(nats_server(tmp_path, "-m", str(pages), "-js", "-sd", str(tmp_path / "store")))
        proxy = stack.enter_context(haproxy(tmp_path, bridge.port, bridge.port))
        more = {
            "cluster": {
                "bridges": [f"127.0.0.1:{bridge.admin_port}"],
                "nats": [f"127.0.0.1:{pages}"],
                "haproxy": [f"127.0.0.1:{proxy.port}"],
            },
            "state_database": fresh_database(postgresql),
            "quarantine": s3_config(objects.port),
        }
        path = tmp_path / "bridge.yml"
        path.write_text(yaml_file.dump(configuration(tmp_path, bridge.scanner, bridge.next_hop, more)))
        done = until(lambda: (ran := scanbridge("status", "--cluster", "-c", path)).returncode == 0 and ran, "a view")
        total = "1 of 1 bridge, 1 of 1 API node, 1 of 1 NATS server, 1 of 1 PostgreSQL server, 1 of 1 S3 storage"
        assert f"cluster        {total}, 1 of 1 HAProxy ready\n" in done.stdout
        shown = {line[:15].strip() for line in done.stdout.splitlines()}
        assert shown == {"cluster", *KINDS} - {"worker"}
        queue.stop()
        objects.stop()
        stopped = scanbridge("status", "--cluster", "-c", path)
        assert stopped.returncode == 1
        first, second = stopped.stdout.splitlines()[:2]
        assert first == f"NATS 127.0.0.1:{pages} does not answer" and second.startswith(
            "S3 storage s3://mail/kept/here"
        )
        objects.start(objects.port)
        (tmp_path / "access-key").unlink()
        told = json.loads(scanbridge("status", "--cluster", "--json", "-c", path).stdout)
        (unread,) = [node for node in told["nodes"] if node["kind"] == "S3 storage"]
        assert unread["is_reached"] is False and "access_key_file" in unread["summary"]
