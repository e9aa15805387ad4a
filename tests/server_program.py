"""A real server program on loopback, for as long as tests need it."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from bridge.testing import until
from tests.requirements import unavailable


class ServerProgram:
    """A server program that runs until the tests end; `kill` ends it earlier."""

    def __init__(self, command: list[str], log: Path, port: int, deadline_s: float = 180.0) -> None:
        self.port = port
        self._log = log.open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        try:
            until(lambda: self._answers() or self._process.poll() is not None, f"{command[0]} to start", deadline_s)
            assert self._process.poll() is None
        except AssertionError:
            self.kill()
            unavailable(f"{command[0]} does not start: {log.read_text()[-500:]}")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()
