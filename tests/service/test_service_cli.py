"""`scanbridge service` as an operator uses it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.cli import main
from bridge.runtime import yaml_file
from bridge.runtime.build import version
from bridge.service import config_files, settings
from bridge.service.analysis.decision import delivered_anyway
from tests.service.service_kit import CONFIG, DEADLINE_S, command


def run(*arguments: str, cwd) -> subprocess.CompletedProcess[str]:
    return command(cwd, *arguments)


def call(*arguments: str, cwd) -> subprocess.CompletedProcess[str]:
    """The same in this process, for commands that exit by themselves."""
    with contextlib.chdir(cwd):
        done = CliRunner().invoke(main, ["service", *arguments])
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


def test_all_mistakes_are_reported_together(tmp_path):
    """A bad configuration exits with 78 and reports all its mistakes with their lines, but no secret."""
    (tmp_path / "service.yml").write_text(
        "listen: nowhere\n"
        "guard: {mainWorkerCount: 0, workers: 3}\n"
        "abby:\n"
        "  serviceProviders: {core: {hosts: ['http://core.example.org:9785']}}\n"
        "  staticApiTokens:\n"
        "    - {name: a, token: 'ge heim'}\n"
        "    - {name: b, token_file: absent}\n"
        "    - {name: c}\n"
        "database: mysql://x\n"
        "lists: [{name: ../x, category: sender}]\n"
        "decisions: {rules: [{verdict: v, decision: deliver}]}\n"
    )
    done = run("-c", "service.yml", cwd=tmp_path)
    assert done.returncode == 78
    assert "heim" not in done.stderr
    for line in (1, 2, 4, 6, 7, 8, 9, 10, 11):
        assert f"service.yml:{line}:" in done.stderr, done.stderr
    assert call("-c", "absent.yml", cwd=tmp_path).returncode == 78


def test_token_prints_64_hex_digits(tmp_path):
    """A new token every time, ready for the configuration."""
    first, second = (execute("token", cwd=tmp_path).stdout.strip() for execute in (run, call))
    assert re.fullmatch("[0-9a-f]{64}", first)
    assert first != second


def test_the_life_of_an_api_key(tmp_path):
    """A key is created and shown once, listed without its secret, and revoked."""
    (tmp_path / "service.yml").write_text(CONFIG)
    key = run("apikey", "create", "automation", cwd=tmp_path).stdout.strip()
    assert re.fullmatch("[0-9a-f]{64}", key)
    again = call("apikey", "create", "automation", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    listed = call("apikey", "list", cwd=tmp_path).stdout
    assert call("apikey", "list", "-c", "service.yml", cwd=tmp_path).stdout == listed
    assert "automation" in listed
    assert "active" in listed
    assert key not in listed
    assert call("apikey", "revoke", "automation", cwd=tmp_path).returncode == 0
    assert "revoked" in call("apikey", "list", cwd=tmp_path).stdout
    assert call("apikey", "revoke", "automation", cwd=tmp_path).returncode == 1


def test_a_key_that_could_not_be_printed_stayed_active(tmp_path):
    """Nobody knew it, and its name was taken. Nor is there a key without a name, from an unset variable."""
    (tmp_path / "service.yml").write_text(CONFIG)
    with open("/dev/full", "w") as full:
        create = [sys.executable, "-m", "bridge", "service", "apikey", "create", "automation"]
        done = subprocess.run(create, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 1 and "No space left on device" in done.stderr
    assert "active" not in call("apikey", "list", cwd=tmp_path).stdout
    assert call("apikey", "create", "automation", cwd=tmp_path).returncode == 0
    for name in ("", " ", "a\x1b[2J"):
        assert call("apikey", "create", name, cwd=tmp_path).returncode == 2


def test_it_prints_its_address_and_exits_on_sigterm(tmp_path):
    """The service runs on its own, prints its address, and exits cleanly on SIGTERM."""
    (tmp_path / "service.yml").write_text(CONFIG)
    whole = [sys.executable, "-m", "bridge", "service", "-c", "service.yml"]
    with subprocess.Popen(whole, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)", line).group(1))
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as client:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0


AMBIGUOUS = '{tags: ["mime:ambiguous:*"], verdict: ambiguous, decision: quarantine}'
MALWARE = '{tags: ["malware:*"], verdict: malware, decision: quarantine}'
UNFINISHED = "{tags: [incomplete], verdict: clean, decision: deliver}"


@pytest.mark.parametrize(
    ("decisions", "warned"),
    [
        ("{}", []),
        ('{scores: {"mime:ambiguous:delimiter": 8}}', []),
        (f"{{rules: [{AMBIGUOUS}]}}", ["malware:*"]),
        (f"{{rules: [{AMBIGUOUS}], otherwise: quarantine}}", []),
        (f"{{rules: [{MALWARE.replace('*', 'eicar')}]}}", ["malware:*"]),
        (f"{{rules: [{MALWARE.replace('quarantine', 'deliver')}]}}", ["malware:*"]),
        (f"{{rules: [{MALWARE}, {AMBIGUOUS}]}}", []),
        (f"{{rules: [{MALWARE}, {UNFINISHED}]}}", ["incomplete"]),
    ],
)
def test_a_rule_for_ambiguous_mail_switched_malware_protection_off(decisions, warned):
    """`rules` replaces all default rules, so a lone rule leaves malware to `otherwise`."""
    config = yaml_file.load(Path("service.yml"), settings.ServiceConfig, f"decisions: {decisions}")
    assert delivered_anyway(config.decisions) == warned


def test_a_service_that_delivers_malware_says_so_at_start(tmp_path):
    (tmp_path / "service.yml").write_text(f"{CONFIG}decisions: {{rules: [{AMBIGUOUS}]}}\n")
    whole = [sys.executable, "-m", "bridge", "service", "-c", "service.yml"]
    with subprocess.Popen(whole, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert any("mail with the malware:* tag is delivered" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(DEADLINE_S) == 0


def test_a_taken_port_is_a_readable_error(tmp_path):
    """There is no traceback, and the exit code is 1."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "service.yml").write_text(CONFIG.replace("127.0.0.1:0", f"127.0.0.1:{port}"))
        done = run("-c", "service.yml", cwd=tmp_path)
    assert done.returncode == 1
    assert f"service.yml:2: listen: cannot listen on 127.0.0.1:{port}" in done.stderr
    assert f"by process {os.getpid()} (" in done.stderr
    assert f" bridge starting: scanbridge service {version()}\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_defaults_follow_the_documented_shape(tmp_path):
    """Limits default to mainWorkerCount, or 20 without it; the timeout is one hour."""

    def load(text: str) -> settings.ServiceConfig:
        return yaml_file.load(tmp_path / "service.yml", settings.ServiceConfig, text)

    assert load("{}").guard.maxGuardRequestsInProcessing == load("{}").guard.guardRequestThrottleThreshold == 20
    assert load("{}").guard.scanSources.restApi is None
    assert load("{}").abby.serviceProviders.core.longRequestTimeout == 3_600_000
    guard = load("guard: {mainWorkerCount: 7}").guard
    assert (guard.maxGuardRequestsInProcessing, guard.guardRequestThrottleThreshold) == (7, 7)
    guard = load("guard: {mainWorkerCount: 7, guardRequestThrottleThreshold: 3}").guard
    assert (guard.maxGuardRequestsInProcessing, guard.guardRequestThrottleThreshold) == (7, 3)


def test_a_token_can_be_read_from_a_file(tmp_path, monkeypatch):
    """The file is in the credentials directory if there is one, else next to the configuration."""
    text = "abby: {serviceProviders: {core: {}}, staticApiTokens: [{name: a, token_file: secret}]}"

    def token() -> str:
        return config_files.load(tmp_path / "service.yml").config.abby.staticApiTokens[0].secrets[0]

    (tmp_path / "service.yml").write_text(text)
    (tmp_path / "secret").write_text("next-to-the-configuration\n")
    assert token() == "next-to-the-configuration"
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "secret").write_text("in-the-credentials-directory")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path / "credentials"))
    assert token() == "in-the-credentials-directory"
    assert "credentials-directory" not in repr(config_files.load(tmp_path / "service.yml"))


def test_without_a_configuration_keys_are_for_the_embedded_service(tmp_path, monkeypatch):
    """The embedded service has lists too, and keys for them can be created."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    assert call("apikey", "list", cwd=tmp_path).returncode == 78
    (tmp_path / "state").mkdir()
    assert re.fullmatch("[0-9a-f]{64}\n", call("apikey", "create", "me", cwd=tmp_path).stdout)
    assert (tmp_path / "state" / "service.sqlite").exists()


def test_an_analyzer_that_is_missing_is_a_configuration_error(tmp_path):
    """A mistake that shows only at start-up is reported the same way."""
    (tmp_path / "service.yml").write_text(CONFIG + "analyzers: {plugins: {absent: {}}}\n")
    done = run(cwd=tmp_path)
    assert (done.returncode, "plugins.absent" in done.stderr) == (78, True)
