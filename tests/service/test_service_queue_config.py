"""The queue in the configuration: what is refused, what `service check` says, and that TLS cannot be taken away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from nats.errors import Error

from bridge.api.scanning import AnalysisResult, Decision
from bridge.errors import ConfigError
from bridge.runtime.nats_client import NatsClient
from bridge.service.cluster.members import DOUBT_S, GONE_S, Members
from bridge.service.cluster.site import WorkerSite
from bridge.service.cluster.wire import JobHead, Malformed, Names, NodeSign, WorkerSign, read_job
from bridge.service.config_files import load
from bridge.service.settings import ServiceConfig
from tests.service.cluster_kit import nats_with_accounts, worker
from tests.service.service_kit import CONFIG, command, free_port

LOCAL = 'servers: ["nats://127.0.0.1:4222"]'


@pytest.mark.parametrize(
    ("nats", "said"),
    [
        ("servers: []", "1 or more"),
        ('servers: ["nats://mq.example.org:4222"]', "nats:// is not encrypted"),
        ('servers: ["tls://u:secret@mq.example.org:4222"]', "without a user name or password"),
        ('servers: ["tls://a.example.org", "nats://127.0.0.1"]', "either tls:// or nats://"),
        (f"{LOCAL}, credentials_file: a, token_file: b", "only one of"),
        (f"{LOCAL}, user: a", "user and password_file must be set together"),
        (f"{LOCAL}, ca_file: a", "without tls://"),
        (f"{LOCAL}, replicas: 2", "replicas"),
        (f"{LOCAL}, name: a.b", "name"),
        (f"{LOCAL}, sevrers: []", "sevrers"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, nats: str, said: str) -> None:
    """And the service does not start."""
    (tmp_path / "service.yml").write_text(CONFIG.replace("core: {}", f"core: {{nats: {{{nats}}}}}"))
    with pytest.raises(ConfigError, match=r"service\.yml:5: ") as error:
        load(tmp_path / "service.yml")
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_hosts_and_a_queue_exclude_each_other(tmp_path: Path) -> None:
    """A scan has one way."""
    core = f'core: {{hosts: ["http://127.0.0.1:9999"], nats: {{{LOCAL}}}}}'
    (tmp_path / "service.yml").write_text(CONFIG.replace("core: {}", core))
    with pytest.raises(ConfigError, match="either hosts or nats"):
        load(tmp_path / "service.yml")


async def test_a_missing_secret_prevents_the_start(tmp_path: Path) -> None:
    """The error names the key."""
    text = CONFIG.replace("core: {}", f"core: {{nats: {{{LOCAL}, token_file: missing}}}}")
    (tmp_path / "service.yml").write_text(text)
    with pytest.raises(ConfigError, match=r"nats\.token_file: cannot read missing: No such file"):
        WorkerSite(load(tmp_path / "service.yml").config)


def test_a_worker_needs_a_queue(tmp_path: Path) -> None:
    """Exit code 78, and the key that is missing."""
    (tmp_path / "service.yml").write_text(CONFIG)
    done = command(tmp_path, "worker", "-c", "service.yml")
    assert done.returncode == 78
    assert "abby.serviceProviders.core.nats: this key is required" in done.stderr


def test_check_says_whether_nats_and_workers_are_there(tmp_path: Path) -> None:
    """A server that cannot be reached or refuses us is a problem, a missing worker a warning."""
    with nats_with_accounts(tmp_path) as cluster:
        text = cluster.config("checked", tmp_path).replace("127.0.0.1:0", f"127.0.0.1:{free_port()}")
        (tmp_path / "service.yml").write_text(text)
        (tmp_path / "service.sqlite").touch()
        done = command(tmp_path, "check", "-c", "service.yml")
        assert (done.returncode, "no worker is connected" in done.stdout) == (0, True), done.stdout + done.stderr
        with worker(tmp_path, text):
            done = command(tmp_path, "check", "-c", "service.yml", "-v")
            assert "1 connected, 20 slots" in done.stdout, done.stdout
            other = text.replace("service.sqlite", "other.sqlite")
            (tmp_path / "service.yml").write_text(other)
            assert "not used: 1 worker with another database" in command(tmp_path, "check", "-c", "service.yml").stdout
        (tmp_path / "service.yml").write_text(text)
        (tmp_path / "password").write_text("wrong")
        done = command(tmp_path, "check", "-c", "service.yml")
        assert (done.returncode, "Authorization Violation" in done.stdout) == (1, True), done.stdout
    done = command(tmp_path, "check", "-c", "service.yml")
    assert (done.returncode, "Connection refused" in done.stdout) == (1, True), done.stdout


async def test_a_server_that_does_not_offer_tls_gets_no_password() -> None:
    """Whoever is in between can change the server's first line, but the client does not go on without TLS."""
    received = bytearray()

    async def without_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true}\r\n')
        received.extend(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(without_tls, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = NatsClient()
    try:
        with pytest.raises(Error, match="does not require TLS"):
            await client.connect(
                [f"tls://127.0.0.1:{port}"], user="u", password="secret", allow_reconnect=False, error_cb=_ignore
            )
    finally:
        await client.close()
        server.close()
        await server.wait_closed()
    assert not received


async def _ignore(_error: Exception) -> None:
    pass


def test_the_limits_follow_workers_and_other_nodes() -> None:
    """What all workers take, less what others have put in; who gives no sign is gone."""
    now = [0.0]
    members = Members("me", lambda: now[0])
    assert (members.limits(), members.workers) == ((0, 0), [])
    members.worker(WorkerSign("a", 20, 0, 30, 25))
    members.worker(WorkerSign("b", 10, 3, 10, 10))
    members.node(NodeSign("me", 100))
    members.node(NodeSign("other", 15))
    assert (members.limits(), members.slots, members.busy) == ((25, 20), 30, 3)
    now[0] += DOUBT_S + 0.1
    assert members.in_doubt
    members.worker(WorkerSign("a", 20, 0, 30, 25))
    assert not members.in_doubt
    now[0] += GONE_S - 0.5
    members.expire()
    assert (members.limits(), members.elsewhere) == ((30, 25), 0)
    members.worker(WorkerSign("a", 20, 0, 30, 25, leaving=True))
    assert members.limits() == (0, 0)


def _framed(head: bytes) -> bytes:
    return len(head).to_bytes(4) + head


def test_a_job_reads_as_it_was_written_and_nothing_else_is_one() -> None:
    """Whatever is in the stream, a worker survives it."""
    head = JobHead("0" * 8 + "-0000" * 3 + "-" + "0" * 12, "node", "2026", 3, b"{}")
    assert read_job(head.to_bytes() + b"abc") == (head, b"abc")
    for wrong in (
        b"",
        b"\0\0\0\x02{}",
        b"\0\0\0\x04null",
        b"\xff\xff\xff\xff",
        head.to_bytes().replace(b"node", b"a.>*"),
        _framed(b'{"ggrid": "00000000-0000-0000-0000-000000000000", "node": "a", "created": "", "size": Infinity}'),
    ):
        with pytest.raises(Malformed):
            read_job(wrong)
    for wrong in (b"", b"[]", b'{"id": "*"}', b'{"id": "a", "slots": "x"}', b'{"id": "a", "slots": 1e999}'):
        with pytest.raises(Malformed):
            WorkerSign.from_bytes(wrong)
    with pytest.raises(Malformed):
        NodeSign.from_bytes(b'{"id": "a", "waiting": Infinity}')
    assert Names.of("x", "a.b *").jobs == "x.jobs.a-b--"


GGRID = "00000000-0000-0000-0000-000000000000"


def test_nodes_of_a_newer_version_may_say_more() -> None:
    """Whatever they add, an older node understands the rest: both are there during an upgrade."""
    more = {"version": 2, "priority": "high", "about": {"x": [1, None]}}
    job = {"ggrid": GGRID, "node": "a", "created": "2026", "size": 3, "parameters": "{}", **more}
    assert read_job(_framed(json.dumps(job).encode()) + b"abc") == (JobHead(GGRID, "a", "2026", 3, b"{}"), b"abc")
    sign = {"id": "a", "slots": 4, "busy": 1, "limit": 8, "threshold": 6, "leaving": True, **more}
    assert WorkerSign.from_bytes(json.dumps(sign).encode()) == WorkerSign("a", 4, 1, 8, 6, leaving=True)
    assert NodeSign.from_bytes(json.dumps({"id": "a", "waiting": 7, **more}).encode()) == NodeSign("a", 7)
    answer = {"decision": "bounce", "ggrid": GGRID, **more}
    assert AnalysisResult.from_json(json.dumps(answer).encode()).decision is Decision.BOUNCE


def test_nodes_of_another_version_may_say_less() -> None:
    """Only what nothing can be done without is needed: which mail, for whom, how large, and how many slots."""
    job = _framed(json.dumps({"ggrid": GGRID, "node": "a", "size": 3}).encode())
    assert read_job(job) == (JobHead(GGRID, "a", "", 3, None), b"")
    assert WorkerSign.from_bytes(b'{"id": "a", "slots": 4}') == WorkerSign("a", 4, 0, 4, 4)
    assert NodeSign.from_bytes(b'{"id": "a"}') == NodeSign("a", 0)
    assert AnalysisResult.from_json(b'{"decision": "bounce"}') == AnalysisResult(Decision.BOUNCE)


def test_the_default_has_no_queue() -> None:
    """Nothing of NATS is needed without it."""
    assert ServiceConfig().abby.serviceProviders.core.nats is None
