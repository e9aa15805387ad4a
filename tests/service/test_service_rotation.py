"""A token is replaced, as docs/operate/rotate-a-token.md says, while mail arrives without a pause."""

from __future__ import annotations

import os
import signal
import smtplib
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.testing import free_port
from tests.daemon import process_kit
from tests.rewriting import rewrite
from tests.service.service_kit import DEADLINE_S, ServiceProcess, command, wait_for
from tests.warm_commands import warm_commands

SERVICE = """
listen: 127.0.0.1:{port}
guard: {{scanSources: {{restApi: {{}}}}}}
abby:
  serviceProviders: {{core: {{hosts: []}}}}
  staticApiTokens:
    - {{name: bridge, token_file: service-token, permissions: [scan, status]}}
"""
BRIDGE = """
scanner: {{urls: ["http://127.0.0.1:{port}"], token_file: api-token}}
listeners:
  - {{name: mx, protocol: smtp, address: "127.0.0.1:{smtp}", profile: postfix-proxy}}
relay: {{next_hop: "maildir:{directory}/Maildir"}}
state_directory: {directory}/state
admin: {{address: "127.0.0.1:{admin}"}}
"""


class Sender:
    """Sends one mail after the other until the `with` block ends."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self.accepted = 0
        self.refused: list[str] = []

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)

    def _send(self) -> None:
        while not self._ended.is_set():
            try:
                with smtplib.SMTP("127.0.0.1", self._port, timeout=DEADLINE_S) as client:
                    client.sendmail("a@example.org", ["b@example.net"], f"Subject: {self.accepted}\r\n\r\nx\r\n")
                self.accepted += 1
            except (OSError, smtplib.SMTPException) as exc:
                self.refused.append(repr(exc))

    def more(self) -> None:
        goal = self.accepted + 10
        wait_for(lambda: self.accepted >= goal or self.refused)
        assert not self.refused


def scanbridge(directory: Path, *arguments: str) -> str:
    done = process_kit.scanbridge(*arguments, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def sending(directory: Path, ports: dict[str, int], more: str = "") -> Iterator[Sender]:
    """A bridge with this configuration, to which mail is sent until the block ends."""
    (directory / "bridge.yml").write_text(BRIDGE.format(directory=directory, **ports) + more)
    run = ["run", "-c", "bridge.yml"]
    with open(os.devnull, "wb") as nowhere:
        out = nowhere.fileno()
        bridge = warm_commands(os.getpid()).start(run, process_kit.environment(), directory, out, out)
    try:
        wait_for(lambda: _answers(ports["smtp"]))
        with Sender(ports["smtp"]) as sender:
            sender.more()
            yield sender
    finally:
        bridge.send_signal(signal.SIGTERM)
        bridge.wait(DEADLINE_S)


@pytest.fixture
def ports() -> dict[str, int]:
    return {"port": free_port(), "smtp": free_port(), "admin": free_port()}


def test_no_mail_is_refused_while_a_token_is_replaced(tmp_path, ports):
    """Both accepted, then the new one used, then the old one removed; every mail is delivered."""
    (tmp_path / "service.yml").write_text(SERVICE.format(**ports))
    old, new = (command(tmp_path, "token").stdout for _ in range(2))
    for name in ("service-token", "api-token"):
        (tmp_path / name).write_text(old)
        (tmp_path / name).chmod(0o600)
    service = ServiceProcess(tmp_path)
    try:
        service.wait()
        with sending(tmp_path, ports) as sender:
            rewrite(tmp_path / "service-token", f"{old}\n{new}")
            _reload(service, 1)
            sender.more()
            rewrite(tmp_path / "api-token", new)
            assert "the new configuration is in use" in scanbridge(tmp_path, "reload", "-c", "bridge.yml")
            sender.more()
            rewrite(tmp_path / "service-token", new)
            _reload(service, 2)
            sender.more()
            scanbridge(tmp_path, "check", "-c", "bridge.yml")
    finally:
        service.end()
    assert not sender.refused
    assert len(list((tmp_path / "Maildir" / "new").iterdir())) == sender.accepted


def test_the_embedded_service_accepts_the_token_that_its_file_has_after_a_reload(tmp_path, ports):
    """A bridge with the embedded service has one token file for both."""
    with sending(tmp_path, ports, "embedded_service: true\n") as sender:
        for _ in range(2):
            rewrite(tmp_path / "api-token", command(tmp_path, "token").stdout)
            assert "the new configuration is in use" in scanbridge(tmp_path, "reload", "-c", "bridge.yml")
            sender.more()
        rewrite(tmp_path / "api-token", "\n")
        done = [sys.executable, "-m", "bridge", "reload", "-c", "bridge.yml"]
        assert subprocess.run(done, cwd=tmp_path, capture_output=True, timeout=60, check=False).returncode == 1
        sender.more()
    assert not sender.refused


def _reload(service: ServiceProcess, count: int) -> None:
    service.process.send_signal(signal.SIGHUP)
    wait_for(lambda: service.log().count("reload succeeded") == count)


def _answers(port: int) -> bool:
    try:
        with smtplib.SMTP("127.0.0.1", port, timeout=1) as client:
            return client.noop()[0] == 250
    except OSError:
        return False
