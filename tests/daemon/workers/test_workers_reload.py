"""SIGHUP: a new configuration without a lost connection, with one process and with several."""

from __future__ import annotations

import os
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from bridge.config.model import Config
from bridge.daemon.reload import check_change
from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.testing import SmtpClient, answer, free_port, result
from tests.daemon.process_kit import (
    ROOT,
    Bridge,
    Gate,
    busy,
    environment,
    parts,
    running,
    scanbridge,
    start,
    until,
    write_config,
)
from tests.daemon.workers.workers_kit import clients_of_all, number, send, state, workers
from tests.processes import is_running
from tests.rewriting import rewrite


def change(bridge: Bridge, **sections: Any) -> None:
    """Replace these sections in the file."""
    path = bridge.directory / "bridge.yml"
    data, _ = yaml_file.read(path, path.read_text())
    rewrite(path, yaml_file.dump({**data, **sections}))


def once_it_is_read(pipe: Path) -> int:
    """A descriptor to write to. Plain `open` would wait for ever for a daemon that never reads the pipe."""
    opened: list[int] = []

    def has_reader() -> bool:
        with suppress(OSError):  # ENXIO: not yet
            opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    until(has_reader, "the daemon to read its configuration")
    os.set_blocking(opened[0], True)
    return opened[0]


def reload(bridge: Bridge) -> Any:
    return scanbridge("reload", "-c", bridge.directory / "bridge.yml")


def signalled(bridge: Bridge) -> dict[str, Any]:
    """Reload as a service manager does it, and return the result."""
    before = state(bridge)["reload"]["count"]
    bridge.signal(signal.SIGHUP)
    until(lambda: state(bridge)["reload"]["count"] > before, "the reload to finish")
    return dict(state(bridge)["reload"])


@pytest.mark.parametrize("count", [1, 2])
def test_a_bad_configuration_keeps_the_old_one(tmp_path: Path, count: int) -> None:
    """The log, the metrics, the status and the exit code show it; a good one is used afterwards."""
    with running(tmp_path, workers=count) as (bridge, _, _):
        pids, began = workers(bridge), number(bridge, "scanbridge_config_reload_time_seconds")
        assert number(bridge, "scanbridge_config_reload_success") == 1 and began > 1e9
        token = (tmp_path / "token").read_text()
        (tmp_path / "token").unlink()
        done = reload(bridge)
        assert done.returncode == 1 and "keeping the old configuration" in done.stderr
        assert bridge.has_logged("reload failed, keeping the old configuration")
        assert bridge.has_logged("it must contain the secret on one line")
        assert number(bridge, "scanbridge_config_reload_success") == 0
        assert workers(bridge) == pids and bridge.send().startswith("250 ")
        rewrite(tmp_path / "token", token)
        change(bridge, hostname="renamed.example")
        assert signalled(bridge)["ok"]
        assert number(bridge, "scanbridge_config_reload_success") == 1
        assert number(bridge, "scanbridge_config_reload_time_seconds") > began
        with SmtpClient(bridge.port) as client:
            assert client.reply().startswith(b"220 renamed.example ")


@pytest.mark.parametrize("count", [1, 2])
def test_a_reload_during_the_start_ended_the_daemon(tmp_path: Path, count: int) -> None:
    """systemd takes an end by SIGHUP for an ordinary one, and did not start it again: mail stopped."""
    with parts() as (_, scanner, next_hop):
        config, port, admin = write_config(tmp_path, scanner.url, next_hop.url, workers=count)
        text = config.read_text()
        config.unlink()
        os.mkfifo(config)
        command = [sys.executable, "-m", "bridge", "run", "-c", str(config)]
        bridge = Bridge(tmp_path, port, admin, command, environment(PYTHONPATH=str(ROOT)))
        try:
            with os.fdopen(once_it_is_read(config), "w") as file:
                bridge.signal(signal.SIGHUP)
                config.unlink()
                config.write_text(text)
                file.write(text)
            bridge.wait_ready()
            until(lambda: state(bridge)["reload"]["count"] == 1, "the reload that was asked for")
            assert bridge.send().startswith("250 ")
            bridge.signal()
            bridge.signal(signal.SIGHUP)
            assert bridge.wait() == 0
        finally:
            bridge.end()


@pytest.mark.parametrize("count", [1, 2])
def test_a_reload_with_a_refused_token_said_nothing(tmp_path: Path, count: int) -> None:
    """The configuration is in use (exit code 0), and the warning names the scanner and its answer."""
    with running(tmp_path, workers=count) as (bridge, scanner, _):
        done = reload(bridge)
        assert (done.returncode, done.stderr) == (0, "")
        scanner.status = answer(401)
        rewrite(tmp_path / "token", "another-token-that-the-scanner-does-not-know\n")
        done = reload(bridge)
        assert done.returncode == 0 and "the new configuration is in use" in done.stdout
        assert f"WARNING: scanner {scanner.url}: the token was refused" in done.stderr, done.stderr
        change(bridge, scanner={"urls": [f"http://127.0.0.1:{free_port()}"], "token_file": "token"})
        done = reload(bridge)
        assert done.returncode == 0 and "WARNING: scanner http://127.0.0.1:" in done.stderr, done.stderr


def test_a_change_that_needs_a_restart_is_refused(tmp_path: Path) -> None:
    """And `scanbridge reload` finds the mistakes of a bad file before it signals the daemon."""
    with running(tmp_path, workers=2) as (bridge, _, _):
        change(bridge, log={"format": "json"}, state_directory=str(tmp_path / "elsewhere"))
        outcome = signalled(bridge)
        assert not outcome["ok"]
        assert "state_directory: cannot be changed by a reload" in outcome["problem"]
        assert "log: cannot be changed by a reload" in outcome["problem"]
        rewrite(tmp_path / "bridge.yml", "listeners: 3\n")
        assert reload(bridge).returncode == 78
        bridge.signal(signal.SIGHUP)  # without the check of `scanbridge reload`
        until(lambda: "expected a list" in bridge.log, "a log line about the mistake")
        assert bridge.send().startswith("250 ")


def test_a_state_directory_that_the_unit_sets_too_is_no_change(tmp_path: Path) -> None:
    """The package's file names the directory that systemd sets; a file without the key was refused until a restart.

    systemd's name of it may be a link.
    """
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    unit = environment(PYTHONPATH=str(ROOT), STATE_DIRECTORY=str(tmp_path / "link"))
    with parts() as (_, scanner, next_hop):
        bridge = start(*write_config(tmp_path, scanner.url, next_hop.url), env=unit)
        try:
            for directory in (None, str(tmp_path / "link"), str(tmp_path / "state")):
                change(bridge, state_directory=directory)
                assert (done := reload(bridge)).returncode == 0, done.stderr
            change(bridge, state_directory=str(tmp_path))
            assert "state_directory: cannot be changed by a reload" in reload(bridge).stderr
            assert bridge.send().startswith("250 ")
        finally:
            bridge.end()


_SERVER = "postgresql://scanbridge@192.0.2.61/scanbridge"
_IN_MEMORY = {"late_decisions": {"store": "memory"}}


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ({}, {"late_decisions": {"store": "sqlite"}}, []),
        ({"late_decisions": {"store": "sqlite"}}, {}, []),
        ({}, _IN_MEMORY, ["late_decisions"]),
        ({}, {"late_decisions": {"max_age": "1h"}}, ["late_decisions"]),
        ({}, {"state_database": _SERVER}, ["state_database"]),
        ({"state_database": _SERVER}, {}, ["state_database"]),
        ({}, {"state_database": _SERVER, **_IN_MEMORY}, ["state_database", "late_decisions"]),
        ({"state_database": _SERVER}, {"state_database": f"{_SERVER}2"}, ["state_database"]),
        (_IN_MEMORY, {**_IN_MEMORY, "state_database": _SERVER}, ["state_database"]),
        ({"workers": 1}, {}, []),
        ({}, {"admin": {"address": "127.0.0.1:9082"}}, []),
        ({}, {"log": {}, "tracing": None}, []),
        (
            {"state_database": "postgresql://u@h/n", "state_database_password_file": "a"},
            {"state_database": "postgresql://u@h/n", "state_database_password_file": "b"},
            ["state_database_password_file"],
        ),
    ],
)  # fmt: skip
def test_only_a_change_of_what_is_in_effect_needs_a_restart(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], refused: list[str]
) -> None:
    """A default that is written down is no change. Another database always is one: after a reload, mail was treated
    according to the personal lists in the old one."""
    path, _, _ = write_config(tmp_path, "http://127.0.0.1:1", "smtp://127.0.0.1:1", history={"enabled": False})
    data, _ = yaml_file.read(path, path.read_text())
    del data["admin"]
    before, after = (yaml_file.load(path, Config, yaml_file.dump({**data, **more})) for more in (old, new))
    try:
        check_change(before, after)
        found = []
    except ConfigError as exc:
        found = [line.partition(":")[0] for line in str(exc).splitlines()]
    assert found == refused


def test_one_process_changes_its_configuration_under_open_connections(tmp_path: Path) -> None:
    """Mail in processing ends with the old policy; the next mail on the same connection gets the new one."""
    with running(tmp_path) as (bridge, scanner, next_hop):
        gate = Gate(scanner)
        with bridge.client() as client, bridge.client() as other:
            send(client)
            gate.arrived()
            change(bridge, policy={"deliver": "reject"}, admission={"max_in_processing": 7})
            done = reload(bridge)
            assert (done.returncode, done.stdout) == (0, "the new configuration is in use\n")
            gate.let_go = True
            assert client.reply() == b"250 2.0.0 Ok: queued as NEXT1"
            assert client.mail().startswith(b"550 5.7.1 ") and other.mail().startswith(b"550 5.7.1 ")
        assert len(next_hop.mails) == 1
        assert number(bridge, "scanbridge_in_processing_limit") == 7
        assert number(bridge, "scanbridge_mails_total") == 3
        bridge.signal()
        assert bridge.wait() == 0


@pytest.mark.parametrize("count", [1, 2])
def test_a_listener_that_was_renamed_twice_made_reloads_fail(tmp_path: Path, count: int) -> None:
    """The server with the first name had closed its socket, and the second one's was in the way of a new one."""
    with running(tmp_path, workers=count) as (bridge, _, _):
        for name, protocol in (("second", "smtp"), ("third", "lmtp"), ("second", "smtp")):
            change(bridge, listeners=[{"name": name, "protocol": protocol, "address": f"127.0.0.1:{bridge.port}"}])
            assert signalled(bridge)["ok"]
        assert bridge.send().startswith("250 ")


@pytest.mark.parametrize("count", [1, 2])
def test_listeners_come_and_go(tmp_path: Path, count: int) -> None:
    """A new one opens, a removed one drains and closes its port, and a kept one never closes."""
    with running(tmp_path, workers=count) as (bridge, scanner, _), ExitStack() as stack:
        stays = {"name": "mx", "address": f"127.0.0.1:{bridge.port}"}
        first, second = free_port(), free_port()
        change(bridge, listeners=[stays, {"name": "first", "address": f"127.0.0.1:{first}"}])
        assert signalled(bridge)["ok"]
        gate = Gate(scanner)
        running_mail = stack.enter_context(SmtpClient(first))
        running_mail.open()
        send(running_mail)
        gate.arrived()
        change(bridge, listeners=[stays, {"name": "second", "protocol": "lmtp", "address": f"127.0.0.1:{second}"}])
        assert signalled(bridge)["ok"]
        until(lambda: not busy(first), "the port to close")
        gate.let_go = True
        assert running_mail.reply().startswith(b"250 ")
        with SmtpClient(second) as client:
            assert b"LMTP" in client.reply()
        assert bridge.send().startswith("250 ")
        assert [listener["name"] for listener in state(bridge)["listeners"]] == ["mx", "second"]
        assert number(bridge, "scanbridge_mails_total", listener="first") == 1
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        change(bridge, listeners=[stays, {"name": "third", "address": address}])
        outcome = signalled(bridge)
        assert not outcome["ok"] and "Address already in use" in outcome["problem"]
        with SmtpClient(second) as client:
            assert b"LMTP" in client.reply()


def test_a_failed_reload_left_a_listener_open_that_deferred_all_its_mail(tmp_path: Path) -> None:
    """There were file descriptors for the first new listener, but not for the second; no later reload could succeed."""
    with running(tmp_path, scanner={"status_interval": "1m"}) as (bridge, _, _):
        first, second = free_port(), free_port()
        new = [{"name": f"new{port}", "address": f"127.0.0.1:{port}"} for port in (first, second)]
        change(bridge, listeners=[{"name": "mx", "address": f"127.0.0.1:{bridge.port}"}, *new])
        pid, kind = bridge.process.pid, resource.RLIMIT_NOFILE
        before = resource.prlimit(pid, kind)
        used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
        last = [number for number in range(1000) if number not in used][5]  # two sockets, and some copies of the first
        resource.prlimit(pid, kind, (last, before[1]))
        bridge.signal(signal.SIGHUP)
        assert bridge.has_logged("reload failed, keeping the old configuration")
        resource.prlimit(pid, kind, before)
        assert not busy(first) and not busy(second)
        assert bridge.send().startswith("250 ")
        assert signalled(bridge)["ok"]
        assert busy(first) and busy(second)


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.long), 2])
def test_a_renewed_certificate_is_presented(tmp_path: Path, count: int) -> None:
    """The file names stay the same, the contents change."""
    authority = trustme.CA()

    def issue() -> str:
        made = authority.issue_cert("127.0.0.1")
        made.private_key_pem.write_to_path(tmp_path / "key.pem")
        made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode()).hex()

    def shown(port: int) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        authority.configure_trust(context)
        with SmtpClient(port) as client:
            client.open()
            client.say(b"STARTTLS")
            with context.wrap_socket(client.sock, server_hostname="127.0.0.1") as encrypted:
                return (encrypted.getpeercert(binary_form=True) or b"").hex()

    old = issue()
    port = free_port()
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    listeners = [{"name": "mx", "address": f"127.0.0.1:{port}", "tls": tls}]
    with running(tmp_path, workers=count, listeners=listeners) as (bridge, _, _):
        assert shown(port) == old
        new = issue()
        assert signalled(bridge)["ok"]
        assert {shown(port) for _ in range(5)} == {new}


def test_workers_are_replaced_one_after_the_other_under_load(tmp_path: Path) -> None:
    """New processes, no connection refused, no mail lost, and no counter goes backwards."""
    with running(tmp_path, workers=2) as (bridge, scanner, next_hop), ExitStack() as stack:
        gate = Gate(scanner)
        before = workers(bridge)
        (waiting, *_), *_ = clients_of_all(bridge, stack).values()
        send(waiting)
        gate.arrived()
        gate.let_go = False
        done, answers = threading.Event(), []

        def keep_sending() -> None:
            while not done.is_set():
                with SmtpClient(bridge.port) as client, suppress(ConnectionError):  # closed with a 421
                    if client.reply().startswith(b"220"):
                        client.say(b"EHLO client.example")
                        answers.append(client.mail())

        scanner.reply = answer(200, result())  # new mail passes; mail at the gate still waits
        threads = [threading.Thread(target=keep_sending) for _ in range(3)]
        for thread in threads:
            thread.start()
        change(bridge, hostname="renamed.example")
        assert signalled(bridge)["ok"]
        counted = number(bridge, "scanbridge_mails_total")
        end = time.monotonic() + 120
        while len(answers) < 50 and time.monotonic() < end:
            assert number(bridge, "scanbridge_mails_total") >= counted
            counted = number(bridge, "scanbridge_mails_total")
        done.set()
        for thread in threads:
            thread.join(60)
        gate.let_go = True
        assert waiting.reply().startswith(b"250 ")
        accepted = sum(reply.startswith(b"250 ") for reply in answers)
        assert len(next_hop.mails) == accepted + 1 and accepted >= 50
        until(lambda: not any(map(is_running, before)), "the old workers to exit")
        assert len(workers(bridge)) == 2 and not set(workers(bridge)) & set(before)
        assert number(bridge, "scanbridge_mails_total", action="relay") == accepted + 1
