"""A complete daemon in a thread, with a scripted scanner and a recording next hop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.config.model import Config
from bridge.daemon.daemon import Daemon
from bridge.runtime import yaml_file
from bridge.scanner.circuit import Circuit
from bridge.testing.background import Background
from bridge.testing.next_hop import NextHop
from bridge.testing.ports import free_port
from bridge.testing.scanner import FakeScanner, answer, result
from bridge.testing.smtp_client import SmtpClient

TOKEN = "0123456789abcdef" * 4


@dataclass
class RunningBridge:
    """A complete daemon on loopback, with its scanner and next hop."""

    daemon: Daemon
    scanner: FakeScanner
    next_hop: NextHop
    background: Background
    port: int  # the first listener's
    admin_port: int
    directory: Path

    @property
    def quarantined(self) -> list[Path]:
        return sorted((self.directory / "state" / "quarantine").glob("*.eml"))

    def connect(self, timeout_s: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    def client(self, source: str = "127.0.0.1") -> SmtpClient:
        return SmtpClient(self.port, source)

    def forget(self) -> None:
        """For tests that share a bridge: scanner and next hop behave well again, as if they always had."""
        self.scanner.reply = answer(200, result())
        self.background.run(self._forget_failures())
        self.scanner.submissions.clear()
        self.next_hop.replies.clear()
        self.next_hop.mails.clear()

    async def _forget_failures(self) -> None:
        for host in self.daemon.scanner.hosts:
            if host.check is not None:  # it may still fail, and count as one more failure
                await asyncio.wait({host.check})
            host.saturated_until = 0.0
            host.circuit = Circuit(longest_pause_s=0.0)
            host.is_broken = False


@contextmanager
def running_bridge(directory: Path, config: dict[str, Any] | None = None, **listener: Any) -> Iterator[RunningBridge]:
    """Run a daemon whose configuration is `configuration(...)` with these arguments."""
    background, scanner, next_hop = Background(), FakeScanner(), NextHop()
    background.run(scanner.start())
    background.run(next_hop.start())
    data = configuration(directory, scanner, next_hop, config, **listener)
    conf = yaml_file.load(directory / "bridge.yml", Config, yaml_file.dump(data))
    daemon = background.run(Daemon.start(conf))
    port, admin_port = conf.listeners[0].address.port, conf.admin.address.port
    try:
        yield RunningBridge(daemon, scanner, next_hop, background, port, admin_port, directory)
    finally:
        background.run(daemon.stop(2.0))
        background.run(scanner.stop())
        background.run(next_hop.stop())
        background.close()


def configuration(
    directory: Path, scanner: FakeScanner, next_hop: NextHop, config: dict[str, Any] | None = None, **listener: Any
) -> dict[str, Any]:
    """The test defaults, with `config` merged over them and `listener` merged over the only listener."""
    (directory / "token").write_text(TOKEN + "\n")
    port, admin_port = free_port(), free_port()
    data: dict[str, Any] = {
        "scanner": {"urls": [scanner.url], "token_file": "token"},
        "listeners": [{"name": "test", "address": f"127.0.0.1:{port}", **listener}],
        "relay": {"next_hop": next_hop.url, "probe_interval": "0s"},  # a probe is one more connection to count
        "admin": {"address": f"127.0.0.1:{admin_port}"},
        "state_directory": str(directory / "state"),
        "hostname": "bridge.example",
        "drain_timeout": "5s",
    }
    for key, value in (config or {}).items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data.get(key), dict) else value
    return data
