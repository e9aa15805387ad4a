"""The admin address of a running daemon: metrics, health, status."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from bridge.runtime.known_hosts import has_known_host
from bridge.testing import TOKEN, FakeScanner, SmtpClient, answer, result
from tests.daemon.process_kit import MAIL, Bridge, get, running, scanbridge, until


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bridge, FakeScanner]]:
    """A daemon that has heard from its scanner and its next hop, whose series exist from then on."""
    with running(tmp_path_factory.mktemp("daemon")) as (bridge, scanner, _):
        until(lambda: "scanbridge_next_hop_up{" in get(bridge.admin, "/metrics")[1], "the test of the next hop")
        until(lambda: '"GREEN"' in get(bridge.admin, "/status")[1], "the scanner's status")
        yield bridge, scanner


def samples(bridge: Bridge) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    _, text = get(bridge.admin, "/metrics")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def mails(found: dict[tuple[str, frozenset[tuple[str, str]]], float]) -> float:
    return sum(value for (name, _), value in found.items() if name == "scanbridge_mails_total")


def test_metrics_are_valid_and_start_at_zero(tmp_path: Path) -> None:
    """prometheus_client's own parsers read them, and every series exists before the first mail."""
    with running(tmp_path) as (bridge, _, _):
        found = samples(bridge)
        request = urllib.request.Request(
            f"http://127.0.0.1:{bridge.admin}/metrics",
            headers={"Accept": "application/openmetrics-text; version=1.0.0"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            assert list(read_openmetrics(reply.read().decode()))
    assert mails(found) == 0
    assert found["scanbridge_in_processing_limit", frozenset()] == 20
    labels = frozenset({("listener", "mx"), ("decision", "quarantine"), ("action", "discard")})
    assert found["scanbridge_mails_total", labels] == 0
    assert found["scanbridge_failures_total", frozenset({("reason", "deadline")})] == 0
    assert found["scanbridge_log_lines_lost_total", frozenset()] == 0
    assert any(name == "scanbridge_build_info" for name, _ in found)


def test_clients_cannot_add_label_values(parts: tuple[Bridge, FakeScanner]) -> None:
    """Whatever clients and the scanner send, the set of series stays the same."""
    bridge, scanner = parts
    before = samples(bridge)
    for number, decision in enumerate(("deliver", "bounce", "drop", "quarantine", "weird-%d")):
        scanner.reply = answer(200, result(decision, verdict=f"verdict-{number}", tags=[f"tag-{number}"]))
        with SmtpClient(bridge.port) as client:
            client.open(f"EHLO host-{number}.example".encode())
            client.say(f"MAIL FROM:<{number}@sender-{number}.example>".encode(), b"RCPT TO:<b@example.org>", b"DATA")
            client.send(MAIL + b".\r\n")
            client.reply()
    scanner.reply = answer(200, result())
    after = samples(bridge)
    assert set(after) == set(before)
    assert mails(after) - mails(before) == 5


def test_health_pages(parts: tuple[Bridge, FakeScanner]) -> None:
    """Alive and ready, by both names; other pages do not exist."""
    bridge, _ = parts
    assert get(bridge.admin, "/livez") == (200, "ok\n")
    assert get(bridge.admin, "/readyz") == (200, "ok\n")
    assert get(bridge.admin, "/healthz") == (200, "ok\n")
    assert get(bridge.admin, "/nothing")[0] == 404


def test_status_shows_the_live_state(parts: tuple[Bridge, FakeScanner]) -> None:
    """As text and as JSON, and without secrets."""
    bridge, _ = parts
    config = bridge.directory / "bridge.yml"
    until(lambda: '"GREEN"' in get(bridge.admin, "/status")[1], "the scanner's status")
    shown = scanbridge("status", "-c", config)
    assert shown.returncode == 0 and "ready" in shown.stdout
    assert f"listener       mx: smtp on 127.0.0.1:{bridge.port}" in shown.stdout
    machine = scanbridge("status", "-c", config, "--json")
    state = json.loads(machine.stdout)
    assert state["ready"] is True and state["scanner"][0]["status"] == "GREEN"
    assert TOKEN not in shown.stdout + machine.stdout + get(bridge.admin, "/metrics")[1]


def test_check_succeeds_while_the_daemon_runs(parts: tuple[Bridge, FakeScanner]) -> None:
    """One line per check; the ports may be in use by the daemon itself."""
    bridge, _ = parts
    done = scanbridge("check", "-v", "-c", bridge.directory / "bridge.yml")
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stdout
    assert [line.split(":")[0] for line in lines] == [
        "configuration",
        "state directory",
        "token",
        "listener mx",
        "admin",
        "descriptors",
        "scanner http",
        "next hop smtp",
    ]
    assert all(": ok" in line or ": WARNING: " in line for line in lines) and TOKEN not in done.stdout


def test_the_token_is_neither_in_the_log_nor_in_the_process_list(tmp_path: Path) -> None:
    """It is only in its file and in requests to the scanner."""
    with running(tmp_path, {"is_program": True}) as (bridge, scanner, _):
        scanner.reply = answer(401, json.dumps({"error": "bad", "message": "no"}).encode())
        assert bridge.send().startswith("451 4.3.5 The scanner refused the request, try again later")
        scanner.reply = answer(200, result())
        until(lambda: "the scanner refused the request" in bridge.log, "the alarm")
        assert scanner.submissions[-1].authorization == f"Bearer {TOKEN}"
        for place in ("cmdline", "environ"):
            assert TOKEN not in Path(f"/proc/{bridge.process.pid}/{place}").read_text()
        assert TOKEN not in bridge.log + bridge.output


@pytest.mark.parametrize("path", ["/", "/metrics", "/status"])
def test_a_site_whose_name_points_here_cannot_read_the_pages(tmp_path: Path, path: str) -> None:
    """Any host name was accepted, so a site could make a browser on this machine read them (DNS rebinding)."""
    with running(tmp_path, admin={"hosts": ["Bridge.Example.org"]}) as (bridge, _, _):

        def status(*hosts: str) -> int:
            fields = "".join(f"Host: {host}\r\n" for host in hosts)
            with socket.create_connection(("127.0.0.1", bridge.admin), 30) as peer:
                peer.sendall(f"GET {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n".encode())
                return int(peer.makefile("rb").readline().split()[1])

        for host in ("127.0.0.1", "127.0.0.1:9082", "localhost:9082", "[::1]:9082", "prometheus", socket.gethostname()):
            assert status(host) == 200, host
        assert status("bridge.example.org.:443") == 200
        for host in ("evil.example", "evil.example:9082", "127.0.0.1.evil.example", "localhost.evil.example", "a.b:x"):
            assert status(host) == 421, host
        assert status("127.0.0.1", "evil.example") == 421
        assert get(bridge.admin, "/livez")[0] == 200


def test_a_site_whose_name_points_here_read_the_names_of_our_machines(tmp_path: Path) -> None:
    """/readyz answers under every host name, because load balancers use any; its text is for operators."""
    with running(tmp_path) as (bridge, scanner, _):
        scanner.reply = answer(401, json.dumps({"error": "bad", "message": "no"}).encode())
        assert bridge.send().startswith("451")
        until(lambda: get(bridge.admin, "/readyz")[0] == 503, "the problem to be noticed")

        def text(host: str) -> bytes:
            with socket.create_connection(("127.0.0.1", bridge.admin), 30) as peer:
                peer.sendall(f"GET /readyz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return peer.makefile("rb").read()

        for host in ("127.0.0.1", "localhost"):
            assert b"NOT SCANNING" in text(host)
        told = text("evil.example")
        assert told.startswith(b"HTTP/1.1 503") and told.endswith(b"\r\n\r\nnot ready\n")


def test_the_names_of_an_address_that_is_not_local_are_not_checked() -> None:
    """Prometheus reaches it by any name."""
    scope = {"server": ("192.0.2.1", 9082), "headers": [(b"host", b"mx.example.org:9082")]}
    assert has_known_host(scope, ())
    assert not has_known_host({**scope, "server": ("::ffff:127.0.0.1", 9082)}, ())
